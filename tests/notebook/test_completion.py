"""What completion offers in lines of the magics: subcommands and options, and nothing else."""

import IPython
import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.completer import provisionalcompleter

from ipygpulogger import IPyGPULogger
from ipygpulogger.notebook.completion import offered
from ipygpulogger.notebook.options import COMMANDS

WITH_WORDS = ("start", "summary", "save", "snapshot")
OPTIONS = [f"{name}=" for name in IPyGPULogger.in_order()]
LINES = {  # what stands before the cursor, and what is offered there
    "%gpulog ": list(COMMANDS),
    "%gpulog st": ["start", "stop", "status"],
    "gpulog su": ["summary"],
    "  %gpulog  sum": ["summary"],
    "fig = %gpulog pl": ["plot"],
    "%gpulog -": ["-h", "--help"],
    "%gpulog fly": [],
    "%gpulog start ": OPTIONS,
    "%gpulog start re": ["report=", "reset_peaks="],
    "%gpulog start compact=True ": [name for name in OPTIONS if name != "compact="],
    "%gpulog start compact=": [],
    "%gpulog start compact=T": [],
    "%gpulog start quiet='10MB 1s' co": ["compact="],
    "%gpulog start quiet='10MB co": [],
    "%gpulog start nonsense=": [],
    "%gpulog summary ": ["--by"],
    "%gpulog summary --": ["--by"],
    "%gpulog summary --by ": ["needed", "consumed", "highest", "time"],
    "%gpulog summary --by c": ["consumed"],
    "%gpulog summary --by needed ": [],
    "%gpulog save x.csv ": [],
    "%gpulog save -": [],
    "%gpulog snapshot -": ["--failed"],
    "%gpulog snapshot --failed -": [],
    **{f"%gpulog {command} ": [] for command in COMMANDS if command not in WITH_WORDS},
    "%gpulog free s": [],
    "%gpulog fly ": [],
    "%%gpulog ": ["--lines", "--peak", "--peak=all", "--label"],
    "%%gpulog --l": ["--lines", "--label"],
    "%%gpulog --lines --l": ["--label"],
    "%%gpulog --label ": [],
    "%%gpulog --label 'a model' ": ["--lines", "--peak", "--peak=all"],
    "%%gpulog x": [],
}
NOT_OURS = [
    "%gpulog",
    "%%gpulog",
    "%gpu",
    "%gpulogger st",
    "x = gpulog st",
    "print('%gpulog st",
    "%time %gpulog st",
    "%gpulog save sa",
    "%gpulog snapshot --failed sa",
]


@pytest.mark.parametrize("line", LINES)
def test_what_is_offered(line):
    """Each completion begins with what it replaces, which stands before the cursor."""
    begun, found = offered(line)
    assert found == LINES[line]
    assert line.endswith(begun)
    assert all(word.startswith(begun) for word in found)


@pytest.mark.parametrize("line", NOT_OURS)
def test_other_lines_are_not_ours(line):
    """IPython's own completion has them to itself."""
    assert offered(line)[1] == []


@given(st.text(alphabet="%gpulosa -=,'\"/~.\\\n"))
def test_no_line_is_too_strange(text):
    """Whatever stands behind the magic: words that go on with what is typed."""
    begun, found = offered(f"%gpulog {text}")
    assert f"%gpulog {text}".endswith(begun)
    assert all(word.startswith(begun) for word in found)


# -- in IPython's completer ------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["jedi", "no jedi"])
def complete(request, extension):
    """Complete a cell at its end; the text that each completion makes of it."""
    extension.Completer.use_jedi = request.param

    def complete(cell, at=None):
        at = len(cell) if at is None else at
        with provisionalcompleter():
            found = list(extension.Completer.completions(cell, at))
        return [cell[: one.start] + one.text + cell[one.end :] for one in found if one.text]

    return complete


@pytest.mark.parametrize("line", LINES)
def test_nothing_else_is_offered(complete, line):
    """No file, no name of Python's, no other magic, with jedi and without it."""
    begun, words = offered(line)
    made = [line[: len(line) - len(begun)] + word for word in words]
    assert not made or [one for one in complete(line) if one != line or one in made] == made


def test_elsewhere_ipython_completes_as_ever(complete, shell, tmp_path, monkeypatch):
    """The magics' own names, other magics' lines, Python; a variable called gpulog; a line of another cell."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved").mkdir()
    assert "%gpulog" in complete("%gpul")
    for line in ("%gpulog save sa", "%gpulog snapshot --failed sa"):
        assert f"{line}ved/" in complete(line)
    assert "%cd saved/" in complete("%cd sa")
    shell.user_ns["statement"] = 1
    assert "statement" in complete("stat")
    if IPython.version_info >= (8, 6):  # an earlier one does not say where in its cell a line stands
        assert "x = 1\n%%gpulog --lines" not in complete("x = 1\n%%gpulog --l")
    assert complete("x = 1\n%gpulog su") == ["x = 1\n%gpulog summary"]
    assert complete("%gpulog su\nx = 1", at=len("%gpulog su")) == ["%gpulog summary\nx = 1"]
    shell.user_ns["gpulog"] = 1
    assert "gpulog summary" not in complete("gpulog su")
    assert complete("%gpulog su") == ["%gpulog summary"]
    del shell.user_ns["gpulog"], shell.user_ns["statement"]


def test_the_options_of_a_call_are_offered(complete, shell):
    """IPyGPULogger(qu<Tab>: from its signature."""
    shell.user_ns["IPyGPULogger"] = IPyGPULogger
    assert "IPyGPULogger(quiet=" in complete("IPyGPULogger(qu")
    assert "IPyGPULogger(compact=True, reset_peaks=" in complete("IPyGPULogger(compact=True, res")
    del shell.user_ns["IPyGPULogger"]
