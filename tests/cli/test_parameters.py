"""A notebook's parameters: typed and placed as papermill does, and never anything but values."""

import math
import sys
from datetime import date

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipygpulogger.cli.arguments import inject, read, typed


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


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_every_value_arrives(value):
    """What JSON or YAML can hold is in the variable, whatever quotes, newlines or infinities it has."""
    nb = tagged()
    inject(nb, {"x": value})
    namespace = {}
    exec(nb.cells[0].source, namespace)
    assert namespace["x"] == value


def test_what_python_cannot_write():
    """nan is float('nan'); a date of YAML is text."""
    nb = tagged()
    inject(nb, {"x": math.nan, "day": date(2026, 1, 2)})
    namespace = {}
    exec(nb.cells[0].source, namespace)
    assert math.isnan(namespace["x"])
    assert namespace["day"] == "2026-01-02"


@pytest.mark.parametrize("name", ["", "1x", "a b", "x\nimport os", "class", "x=1;y", 3, None])
def test_names(name):
    """A name that no variable can have is refused, so no name is ever code; the notebook stays as it was."""
    nb = tagged(None)
    with pytest.raises(ValueError, match="is not a valid name of a variable"):
        inject(nb, {"fine": 1, name: 1})
    assert sources(nb) == ["'cell 0'"]


@pytest.mark.parametrize("content", ['{"lr": 0.1, "names": ["a"]}', "lr: 0.1\nnames:\n  - a\n"])
def test_files(tmp_path, content):
    """JSON or YAML, told by what is in the file."""
    path = tmp_path / "parameters.yaml"
    path.write_text(content)
    assert read(path) == {"lr": 0.1, "names": ["a"]}


MISSING, EMPTY, BROKEN = "cannot be read", "holds no parameters", "neither JSON nor YAML"
CONTENT = [(None, MISSING), (b"\xff\xfe", MISSING), *((c, EMPTY) for c in (b"", b"[1, 2]", b"just words"))]
CONTENT += [
    (c, BROKEN) for c in (b"a: [1", b"\x00", b"x: !!python/object/apply:os.getcwd []", b"[" * 100_000)
]


@pytest.mark.parametrize(("content", "says"), CONTENT)
def test_files_without_parameters(tmp_path, content, says):
    """Missing, binary, empty, a list, broken, code: one sentence that names the file; nothing is run."""
    path = tmp_path / "parameters.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=says) as caught:
        read(path)
    assert "parameters.yaml" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_without_pyyaml(tmp_path, monkeypatch):
    """JSON needs nothing; YAML names the command that installs its reader."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "p.yaml"
    path.write_text('{"x": 1}')
    assert read(path) == {"x": 1}
    path.write_text("x: 1")
    with pytest.raises(ValueError, match="pip install pyyaml"):
        read(path)
