"""The cells of a notebook, ranked: every figure is a record's, and the worst are named."""

import re
from dataclasses import replace

import plotted
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory import MB

from ipygpulogger import History
from ipygpulogger.records import Owner
from ipygpulogger.render.markup import Part
from ipygpulogger.render.summary import html, summary
from ipygpulogger.render.table import Bar


def gpu(before, after, top, *how, index=0, **more):
    return plotted.gpu(before, after, plotted.peak(top, *how), index, **more)


def cell(count, before, after, top, *how, time_s=1.0, **more):
    fields = {"cell_id": f"c{count}", "source": f"f({count})"} | more
    return plotted.cell(count, count, time_s, before, after, plotted.peak(top, *how), **fields)


def told(records, by="needed"):
    return summary(records, by).splitlines()


def test_the_whole_of_it():
    """A golden one: the heading, a row for each memory with its bar, what bars mean, the highest."""
    cells = [
        cell(1, 110, 480, 500, time_s=2.1, source="import torch"),
        cell(2, 480, 430, 510, time_s=12.0, source="load()", status="error", error="OSError"),
        cell(3, 480, 900, 2100, gpus=[gpu(0, 2467, 3900)], time_s=8.25, source="model.fit(x)"),
        cell(4, 900, 900, 900, time_s=9.0, gpulog_only=True),
    ]
    assert told(cells) == [
        "4 cells (1 that only ran %gpulog left out), ranked by needed; MB",
        "             Consumed Needed          Highest    Time  Cell",
        "In [3]  RAM       420   1620 █░░░        2100  8.25 s  model.fit(x)",
        "        GPU      2467   3900 ██████░░    3900",
        "In [1]  RAM       370    390 █            500  2.10 s  import torch",
        "In [2]  RAM       -50     30 ░            510  12.0 s  failed: OSError: load()",
        "highest: RAM 2.1 GB, raised by In [3]; GPU 3.8 GB, raised by In [3]",
        "█ consumed  ░ more for a moment",
    ]


@given(st.lists(st.integers(0, 999), min_size=2, max_size=2), st.integers(1, 2000), st.integers(1, 20))
def test_a_bar_of_blocks_is_in_proportion(sizes, scale, width):
    """As wide as the column; what is seen at all has a character, and both parts end where their sum does."""
    parts = [Part("", size * MB) for size in sizes]
    drawn = Bar(parts, max(scale, sum(sizes)) * MB).blocks(width)
    assert len(drawn) == width
    assert re.fullmatch("█*░* *", drawn)
    for shown, size in ((drawn.count("█"), sizes[0]), (len(drawn.rstrip()), sum(sizes))):
        assert bool(shown) == bool(size)
        assert 0 <= shown - size * width / max(scale, sum(sizes)) < 1


def test_a_cell_is_shown_by_the_line_that_says_what_it_does():
    """Not by an import above it."""
    assert told([cell(1, 0, 9, 9, source="import torch", main_line="model = f()")])[2].endswith(
        "  model = f()"
    )


def test_it_says_what_it_is_ranked_by():
    """The order has a name; by "peak", as earlier versions called it, it is by need."""
    cells = [cell(1, 0, 9, 9, time_s=1), cell(2, 50, 50, 60, time_s=3), cell(3, 70, 75, 75, time_s=2)]
    for by, order, says in (
        ("needed", "213", "ranked by needed"),
        ("peak", "213", "ranked by needed"),
        ("consumed", "132", "ranked by consumed"),
        ("highest", "321", "ranked by highest"),
        ("time", "231", "ranked by time"),
    ):
        lines = told(cells, by)
        assert lines[0] == f"3 cells, {says}; MB"
        assert "".join(re.findall(r"In \[(\d)\] +RAM", "\n".join(lines))) == order


def test_what_is_not_exact_is_at_least():
    """A bounded or a sampled peak is shown as what it is: a lower bound; also the highest of all."""
    cells = [
        cell(1, 0, 0, 90, "sampled", gpus=[gpu(0, 0, 80, "bounded", 85)]),
        cell(2, 0, 0, 70, "bounded", 70),
    ]
    lines = told(cells)
    assert re.search(r"RAM +0 +≥90 ░+ +≥90 ", lines[2])
    assert re.search(r"GPU +0 +≥80 ░+ +≥80$", lines[3])
    assert re.search(r"RAM +0 +70 ░+ +70 ", lines[4])
    highest = "highest: RAM at least 90 MB, raised by In [1]; GPU at least 80 MB, raised by In [1]"
    assert highest in " ".join(lines)


def test_the_highest_is_known_where_no_other_can_have_been_higher():
    """Where the mark cannot be reset, it bounds each cell after the one that raised it: that one is the highest."""
    cells = [cell(1, 0, 0, 90), cell(2, 0, 0, 50, "bounded", 90), cell(3, 0, 0, 95, "bounded", 95)]
    assert "highest: RAM 90 MB, raised by In [1]" in told(cells[:2])
    assert "highest: RAM 95 MB, raised by In [3]" in told(cells)
    cells[2] = cell(3, 0, 0, 50, "bounded", 92)
    assert "highest: RAM at least 90 MB, raised by In [1]" in told(cells)


def test_a_coarse_grain_is_told_once():
    """Where the kernel counts RAM more coarsely than 1 MB and 1 %, a line below the table says how coarsely."""
    fine, coarse = cell(1, 0, 0, 400), cell(2, 0, 0, 400)
    coarse = replace(coarse, gen=replace(coarse.gen, peak=replace(coarse.gen.peak, precision_bytes=96 * MB)))
    assert not [line for line in told([fine]) if "±" in line]
    assert [line for line in told([fine, coarse]) if "±" in line] == [
        "RAM: each highest is within ±96 MB, as coarsely as the kernel counts"
    ]


def test_what_nobody_tells_is_not_zero():
    """A device without per-process usage: n/a, and none is the highest."""
    lines = told([cell(1, 0, 5, 5, gpus=[gpu(0, 0, 0, attributed=False)])])
    assert re.search(r"GPU +n/a +n/a +n/a$", lines[3])
    assert lines[-2] == "highest: RAM 5 MB, raised by In [1]"


def test_of_many_devices_those_where_something_happened():
    """The devices that moved, and the fullest, which the ranking may be due to; each keeps its name in all cells."""
    gpus = [gpu(900, 900, 900), gpu(10, 10, 10, index=1), gpu(0, 7, 7, index=2), gpu(0, 0, 8, index=3)]
    lines = told([cell(1, 0, 5, 5, gpus=gpus), cell(2, 0, 5, 5, gpus=gpus[2:3])])
    rows = re.findall(r"GPU\d(?= +\d+ +\d+ [█░ ]+ \d+(?: |$))", "\n".join(lines), re.MULTILINE)
    assert rows == ["GPU0", "GPU2", "GPU3", "GPU2"]


def test_long_histories_are_short():
    """Twenty cells, and how many more; the highest is named wherever it stands."""
    cells = [cell(count, 0, 0, 100 + count // 50) for count in range(1234)]
    lines = told(cells)
    assert lines[0] == "1,234 cells, ranked by needed; MB"
    assert sum(bool(re.search(r"In \[\d+\] +RAM", line)) for line in lines) == 20
    assert "and 1,214 more" in lines
    assert lines[-2] == "highest: RAM 124 MB, raised by In [1200]"


def test_a_quiet_notebook_has_no_highest():
    """Under a megabyte nothing is worth a sentence; without a cell that is said."""
    assert len(told([cell(1, 0, 0, 0), cell(2, 0, 0, 0, time_s=2.0)])) == 5
    assert told([]) == ["no cell has been reported yet"]


def test_who_only_ran_while_memory_was_there_did_not_raise_it():
    """The highest is of the cell that needed most of those that came so far."""
    cells = [cell(3, 900, 900, 900), cell(2, 0, 900, 900), cell(4, 900, 0, 904), cell(5, 100, 1000, 1000)]
    assert told(cells[:3])[-2] == "highest: RAM 904 MB, raised by In [2]"
    assert told(cells)[-2] == "highest: RAM 1.0 GB, raised by In [5]"
    assert (
        told([*cells, cell(6, 100, 1100, 1100, gpulog_only=True)])[-2]
        == "highest: RAM 1.1 GB, raised by In [6]"
    )


def leaks(*growths, device=True, names="", **more):
    """Runs of a cell that consume so many MB, and after which these names hold more."""
    found, use = [], 0
    for count, growth in enumerate(growths, 4):
        gpus = [gpu(use, use + growth, use + growth)] if device else []
        ram = (100, 100) if device else (use, use + growth)
        owners = (Owner(names[count - 4], growth * MB, "cpu", "variable"), GROWS) if names else ()
        found.append(cell(count, *ram, max(ram), gpus=gpus, owners=owners, cell_id="c", source="f()", **more))
        use += growth
    return found


GROWS = Owner("losses", 5 * MB, "cpu", "variable")


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (leaks(120, 118, 121), "In [6] f(): 3 runs, +118 to +121 MB on GPU each"),
        (leaks(5, 6, 7, device=False), "In [6] f(): 3 runs, +5 to +7 MB each"),
        (leaks(100, 100, 100, names="abc"), "In [6] f(): 3 runs, +100 MB on GPU each: losses"),
        (leaks(100, 100, 100, names="aaa", device=False), "In [6] f(): 3 runs, +100 MB each: a, losses"),
        (leaks(*range(10, 30)), "In [23] f(): 20 runs, +10 to +29 MB on GPU each"),
    ],
)
def test_a_leak_is_named_with_what_grew(runs, said):
    """The last runs, where it grew and how much, and the names that grew in all of them."""
    assert History(runs).suspects() == [tuple(runs)]
    assert told(runs)[-2:] == [
        "May leak: every run consumed more, and left more in use than the one before:",
        f"  {said}",
    ]
    many = [replace(run, cell_id=f"c{number}") for number in range(8) for run in runs]
    assert told(many)[-1] == "  and 3 more"


def test_it_fits_a_narrow_page():
    """Eighty columns, however long the source and the names."""
    cells = [cell(count, 0, 99999, 123456, gpus=[gpu(0, 70000, 143771)], source="x" * 80) for count in (1, 2)]
    cells += [cell(3, 0, 5, 5, label="y " * 40, status="error", error="Z" * 80)]
    assert max(map(len, told(cells))) <= 80


@pytest.mark.parametrize(
    ("cell_id", "linked"),
    [
        ("3f1b-x_9", True),
        (None, False),
        ("vscode-notebook-cell:x.ipynb#W0sZmlsZQ%3D%3D", False),
        ('"><script>', False),
        ("a" * 65, False),
    ],
)
def test_a_row_links_to_its_cell(cell_id, linked):
    """Where the id is that of a cell of a notebook file, which JupyterLab and nbconvert follow; else plain."""
    page = html([cell(1, 0, 9, 9, cell_id=cell_id)])
    assert (f'href="#cell-id={cell_id}">In\N{NO-BREAK SPACE}[1]</a>' in page) == linked
    assert ("<a" in page) == linked
