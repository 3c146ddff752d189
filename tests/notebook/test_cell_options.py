"""What a cell's text asks for."""

import pytest
from reports import run

from ipygpulogger.notebook.cell import Request, is_gpulog_only, request_of, split_words

NOTHING = Request(explicit=False)
OURS = (
    *("%gpulog", "  %gpulog summary --by time", "%gpulog status\n\n# a comment\n%gpulog free\n"),
    *("fig = %gpulog plot", "gpulog", "gpulog summary --by peak", "gpulog -h", "%gpulog --help"),
    *("%gpulog?", "%gpulog??", "?%gpulog", "%%gpulog?", "??%%gpulog", "gpulog?", "?gpulog"),
    *("%load_ext ipygpulogger", "%reload_ext ipygpulogger", "load_ext ipygpulogger"),
    "# begin\n%load_ext ipygpulogger\n%gpulog start lines=True",
    *("%config IPyGPULogger", "%config IPyGPULogger.quiet = '10MB'", "config IPyGPULogger.compact = True"),
    *("%%gpulog", "%%gpulog stop\n\n"),
)
THEIRS = (
    *("", "# a comment", "x = 1", "%gpulog free\nx = 1", "x = 1\n%gpulog free", "%%gpulog\nx = 1"),
    *("%%gpulog --lines\n%gpulog free", "%%time\n%gpulog free", "%gpulogger", "%%gpulogger?", "x = gpulog?"),
    *("gpulog = 3", "gpulog.x", "gpulog(1)", "'%gpulog free'", "x = y %gpulog", "il.free()"),
    *("%load_ext autoreload", "%load_ext ipygpulogger_more", "%config IPyGPULoggers"),
    "%config InlineBackend.figure_format = 'svg'",
)


def test_which_cells_are_ours_alone():
    """Those of nothing but our own magics and comments; one line of the user's makes the cell the user's."""
    assert [code for code in OURS if not is_gpulog_only(code)] == []
    assert [code for code in THEIRS if is_gpulog_only(code)] == []


def test_the_words_of_a_line():
    """Quotes hold a word together; a backslash and a hash are parts of a path."""
    assert split_words(r"save C:\runs\#4.csv") == ["save", r"C:\runs\#4.csv"]
    assert split_words("save 'my run.csv'") == ["save", "my run.csv"]
    assert split_words("  ") == []


@pytest.mark.parametrize(
    ("source", "request_"),
    [
        ("x = 1", NOTHING),
        ("%%gpulog\nx = 1", Request()),
        ("\n%%gpulog --lines\nx = 1", Request(lines=True)),
        ("%%gpulog --label 'a model' --lines\nx = 1", Request(lines=True, label="a model")),
        ("%%gpulog --label=a\nx = 1", Request(label="a")),
        ("%%gpulog --peak\nx = 1", Request(peak=True)),
        ("%%gpulog --peak=all\nx = 1", Request(peak="all")),
        ("%%gpulog --peak=cpu\nx = 1", NOTHING),
        ("%%gpulog --peak --lines --label a\nx = 1", Request(lines=True, label="a", peak=True)),
        ("In [4]: %%gpulog\nx = 1", Request()),
        ("%%gpulog\n\n", NOTHING),
        ("%%gpulog --nonsense\nx = 1", NOTHING),
        ("%%gpulog --label\nx = 1", NOTHING),
        ("%%gpulogger\nx = 1", NOTHING),
        ("x = 1\n%%gpulog", NOTHING),
    ],
)
def test_what_a_cell_asks_for(source, request_):
    """Its first line alone says it; without code below, or with options that there are not, it asks nothing."""
    assert request_of(source) == request_


@pytest.mark.linux("elsewhere what lines needed is a range")
def test_a_cell_is_named_by_what_needed_most(il, shell):
    """By its heaviest line, or the line at its peak, if they were measured; its first line stays its source."""
    pytest.importorskip("memray")
    body = "import os\nx = bytearray(b'x') * (9 << 20)\ny = bytearray(b'x') * (30 << 20)\n"
    for option, line in (("", "x = "), ("--lines", "y = "), ("--peak", "y = ")):
        run(shell, f"%%gpulog {option}\n{body}")
        assert il.record.source == "import os"
        assert il.record.code_line.startswith(line), option
