"""Objects of the user's: classes that lie, frames, tracebacks and code objects."""

import inspect
import sys
import traceback

from ipygpulogger.runtime.objects import (
    bases_of,
    is_made_in_python,
    module_of,
    namespace_of,
    nested_code,
    walk_stack,
    walk_tb,
)


def test_what_a_metaclass_overrides_is_neither_believed_nor_run():
    """Bases, namespace, module and kind are the interpreter's own."""
    asked = []

    class Hostile(type):
        def __getattribute__(cls, name):
            asked.append(name)
            raise AttributeError(name)

    class Base(list):
        held = 5

    class Victim(Base, metaclass=Hostile):
        pass

    asked.clear()  # what making the class asked
    found = bases_of(Victim), namespace_of(Victim), module_of(Victim), is_made_in_python(Victim)
    assert asked == []
    assert found[0] == (Victim, Base, list, object)
    assert found[1]["__module__"] == found[2] == __name__
    assert found[3]
    assert not is_made_in_python(list)


def test_frames_tracebacks_and_code_are_those_of_pythons_own_modules():
    """A frame and its callers, a traceback's entries, the code within code; what is none of these has none."""

    def inner():
        return list(walk_stack(sys._getframe())), [info.frame for info in inspect.stack()]

    ours, pythons = inner()
    assert ours == pythons
    assert list(walk_stack(None)) == []
    try:
        inner(1)
    except TypeError as error:
        pythons = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        assert [link.tb_frame for link in walk_tb(error.__traceback__)] == pythons
    assert [list(walk_tb(one)) for one in (None, "text", 3)] == [[], [], []]
    code = compile("def a():\n  def b(): lambda: 0\nclass c:\n  def d(self): ...\n", "", "exec")
    assert [one.co_name for one in nested_code(code)] == ["<module>", "a", "b", "<lambda>", "c", "d"]
