"""A notebook's parameters: typed and placed as papermill does, and never anything but values."""

import math

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipygpulogger.cli.arguments import inject, typed


def tagged(*tags, minor=5):
    """A cell for each tag; None for a cell without one."""
    nb = nbformat.v4.new_notebook()
    nb.nbformat_minor = minor
    for i, tag in enumerate(tags):
        metadata = {"tags": [tag, "other"]} if tag else {}
        cell = nbformat.v4.new_code_cell(f"'cell {i}'", metadata=metadata)
        if minor < 5:
            del cell["id"]
        nb.cells.append(cell)
    return nb


def sources(nb):
    return [cell.source for cell in nb.cells]


VALUES = {"True": True, "False": False, "None": None, "3": 3, "-3": -3, "1_000": 1000, "0.5": 0.5}
VALUES |= {"1e-3": 0.001, "3.0": 3.0, "inf": math.inf}
TEXTS = ("true", "", "a b", "[1]", "__import__('os')")


@pytest.mark.parametrize(("text", "value"), [*VALUES.items(), *((text, text) for text in TEXTS)])
def test_types(text, value):
    """None, a bool, an int, a float, else the very text: papermill's rule for -p."""
    assert (typed(text), type(typed(text))) == (value, type(value))


@pytest.mark.parametrize(
    ("tags", "place", "found"),
    [
        ((None, "parameters", None), [0, 1, "P", 2], True),
        ((None, "parameters", "parameters"), [0, 1, "P", 2], True),
        ((None, "parameters", "injected-parameters", None), [0, 1, "P", 3], True),
        (("injected-parameters", "parameters"), ["P", 1], True),
        ((None, None), ["P", 0, 1], False),
        ((), ["P"], False),
    ],
)
@pytest.mark.parametrize("minor", [4, 5])
def test_places(tags, place, found, minor):
    """In place of an injected cell, else after the first tagged one, else on top; and the notebook is valid."""
    nb = tagged(*tags, minor=minor)
    assert inject(nb, {"x": 1}) == found
    names = {"# Parameters\nx = 1": "P"} | {f"'cell {i}'": i for i in range(9)}
    assert [names[source] for source in sources(nb)] == place
    (cell,) = (cell for cell in nb.cells if cell.source.startswith("# Parameters"))
    assert cell.metadata["tags"] == ["injected-parameters"]
    nbformat.validate(nb)


def test_twice_is_once():
    """Injecting again replaces, and the cell has the same id, so that two runs can be compared."""
    nb = tagged("parameters", None)
    inject(nb, {"x": 1})
    first = nb.cells[1].id
    inject(nb, {"x": 2})
    assert sources(nb) == ["'cell 0'", "# Parameters\nx = 2", "'cell 1'"]
    assert nb.cells[1].id == first


@given(st.text())
def test_every_value_arrives(text):
    """What is given is in the variable, whatever quotes or newlines it has, and inf and nan."""
    value = typed(text)
    nb = tagged()
    inject(nb, {"x": value, "inf": math.inf, "nan": math.nan})
    namespace = {}
    exec(nb.cells[0].source, namespace)
    assert repr(namespace["x"]) == repr(value)
    assert namespace["inf"] == math.inf
    assert math.isnan(namespace["nan"])


@pytest.mark.parametrize("name", ["", "1x", "a b", "x\nimport os", "class", "x=1;y"])
def test_names(name):
    """A name that no variable can have is refused, so no name is ever code; the notebook stays as it was."""
    nb = tagged(None)
    with pytest.raises(ValueError, match="is not a valid name of a variable"):
        inject(nb, {"fine": 1, name: 1})
    assert sources(nb) == ["'cell 0'"]
