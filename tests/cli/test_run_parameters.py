"""`ipygpulogger run -p` and `-f`: parameters in an execution."""

import nbformat
import pytest
from command_line import command, refused


def test_parameters(notebook, tmp_path):
    """-p and -f: a cell after the tagged one, typed as papermill does, dashes and all; -p wins; numbering as it is."""
    path = notebook(
        "lr = 1.0; name = 'a'; n = 0", "assert (lr, name, n) == (-1e-3, '--fast', 7), (lr, name, n)"
    )
    nb = nbformat.read(path, as_version=4)
    nb.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(nb, path)
    values = tmp_path / "values.yaml"
    values.write_text("lr: 5\nn: 7\n")
    done = command("run", path, "-p", "lr", "-1e-3", "--parameters", "name", "--fast", "-f", values)
    assert done.returncode == 0, done.stderr
    executed = nbformat.read(path.with_name("nb.executed.ipynb"), as_version=4)
    assert executed.cells[1].metadata["tags"] == ["injected-parameters"]
    assert executed.cells[1].source == "# Parameters\nlr = -0.001\nn = 7\nname = '--fast'"
    assert len(nbformat.read(path, as_version=4).cells) == 2


def test_parameters_are_code(tmp_path):
    """A parameter makes a cell of code: a notebook without another one is measured like any."""
    path = tmp_path / "nb.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("words")]), path)
    done = command("run", path, "-p", "x", "1")
    assert (done.returncode, "no cell with code" in done.stderr) == (0, False)
    assert done.stdout.endswith("  # Parameters\n")


def test_parameters_nobody_expects(notebook):
    """Without a tagged cell they stand on top, and that is said."""
    path = notebook("x + 1")
    done = command("run", path, "-p", "x", "1")
    assert done.returncode == 0, done.stderr
    assert "no cell is tagged 'parameters'" in done.stderr


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cycle.yaml", "f: &a [*a]"),
        ("cycle.yaml", "f: &a {x: *a}"),
        ("deep.json", f'{{"f": {"[" * 600}{"]" * 600}}}'),
    ],
)
def test_parameters_without_an_end(notebook, tmp_path, capsys, name, content):
    """A value that holds itself, or lies deeper than Python reads: one sentence, exit 2, nothing written."""
    path = notebook("1")
    tmp_path.joinpath(name).write_text(content)
    assert refused(["run", path, "-f", tmp_path / name], capsys, "too deep")
    assert {p.name for p in tmp_path.iterdir()} == {"nb.ipynb", name}


def test_the_parameters_stay(notebook, tmp_path, capsys):
    """No target may be the file of parameters."""
    path, values = notebook("1"), tmp_path / "values.jsonl"
    values.write_text('{"x": 1}')
    for option in "--output", "--log", "--html":
        assert refused(["run", path, "-f", values, option, values], capsys, "the file of parameters itself")
    assert values.read_text() == '{"x": 1}'
