"""Frames, tracebacks and code objects, held against what Python's own `traceback` and `inspect` say."""

import inspect
import sys
import traceback

from ipygpulogger.runtime.frames import nested_code, walk_stack, walk_tb


def test_the_stack():
    """A frame and its callers, as `inspect` lists them; none of no frame."""

    def inner():
        return list(walk_stack(sys._getframe())), [info.frame for info in inspect.stack()]

    ours, pythons = inner()
    assert ours == pythons
    assert list(walk_stack(None)) == []


def test_the_entries_of_a_traceback():
    """Each entry once, the outermost first, as `traceback.walk_tb` has them."""

    def fails():
        raise KeyError

    try:
        fails()
    except KeyError as error:
        found = list(walk_tb(error.__traceback__))
        assert [link.tb_frame for link in found] == [
            frame for frame, _ in traceback.walk_tb(error.__traceback__)
        ]
        assert len(found) == 2


def test_what_is_no_traceback_has_no_entries():
    """A user may put anything where a traceback is expected."""
    assert [list(walk_tb(one)) for one in (None, "text", 3)] == [[], [], []]


def test_nested_code():
    """A code object and all within it, depth first."""
    code = compile("def a():\n  def b(): lambda: 0\nclass c:\n  def d(self): ...\n", "", "exec")
    assert [one.co_name for one in nested_code(code)] == ["<module>", "a", "b", "<lambda>", "c", "d"]
