"""A metaclass of the user's that lies about everything is neither believed nor run."""

from ipygpulogger.runtime.classes import bases_of, is_made_in_python, module_of, namespace_of


def test_what_a_metaclass_overrides():
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
