"""The cells of a notebook, ranked: every figure is a record's, and the worst are named."""

import re
from dataclasses import replace

import plotted
import pytest
from memory import MB

from ipygpulogger import History
from ipygpulogger.records import Owner
from ipygpulogger.render.summary import summary


def gpu(before, after, top, *how, index=0, **more):
    return plotted.gpu(before, after, plotted.peak(top, *how), index, **more)


def cell(count, before, after, top, *how, time_s=1.0, **more):
    fields = {"cell_id": f"c{count}", "source": f"f({count})"} | more
    return plotted.cell(count, count, time_s, before, after, plotted.peak(top, *how), **fields)


def told(records, by="peak", suspects=()):
    return summary(records, by, suspects).splitlines()


def test_the_whole_of_it():
    """A golden one: the heading, a row for each memory, marks and words."""
    cells = [
        cell(3, 480, 900, 2100, gpus=[gpu(0, 2467, 3900)], time_s=8.25, source="model.fit(x)"),
        cell(1, 110, 480, 500, time_s=2.1, source="import torch"),
        cell(2, 480, 430, 510, time_s=12.0, source="load()", status="error", error="OSError"),
    ]
    assert told(cells) == [
        "3 cells, by what each needed above what was in use before it; MB",
        "                 Consumed Peaked  Needed    Peak      Time  Cell",
        "* In [3]   RAM        420   1200    1620    2100    8.250s  model.fit(x)",
        "           GPU       2467   1433    3900    3900",
        "  In [1]   RAM        370     20     390     500    2.100s  import torch",
        "* In [2]   RAM        -50     30      30     510   12.000s  load()  (failed: OSError)",
        "* needed most: In [3], 1620 MB of RAM (peak 2100); In [3], 3900 MB on GPU (peak 3900)",
        "* consumed most: In [3], 420 MB of RAM; In [3], 2467 MB on GPU",
        "* longest: In [2], 12.000s",
    ]


def test_it_says_what_it_is_ranked_by():
    """The order is that of the records given, and has a name."""
    cells = [cell(count, 0, 5, 5) for count in (2, 3, 1)]
    for by, says in ("consumed", "who consumed most first"), ("time", "the longest first"):
        lines = told(cells, by)
        assert lines[0] == f"3 cells, {says}; MB"
        assert re.findall(r"In \[(\d)\] +RAM", "\n".join(lines)) == ["2", "3", "1"]


def test_what_is_not_exact_is_at_least():
    """A bounded or a sampled peak is shown as what it is: a lower bound; also among the worst."""
    cells = [
        cell(1, 0, 0, 90, "sampled", gpus=[gpu(0, 0, 80, "bounded", 85)]),
        cell(2, 0, 0, 70, "bounded", 70),
    ]
    lines = told(cells)
    assert re.search(r"RAM +0 +90 +≥90 +≥90 ", lines[2])
    assert re.search(r"GPU +0 +80 +≥80 +≥80$", lines[3])
    assert re.search(r"RAM +0 +70 +70 +70 ", lines[4])
    assert "* needed most: In [1], ≥90 MB of RAM (peak ≥90); In [1], ≥80 MB on GPU (peak ≥80)" in lines


def test_a_coarse_grain_is_told_once():
    """Where the kernel counts RAM more coarsely than 1 MB and 1 %, a line below the table says how coarsely."""
    fine, coarse = cell(1, 0, 0, 400), cell(2, 0, 0, 400)
    coarse = replace(coarse, gen=replace(coarse.gen, peak=replace(coarse.gen.peak, precision_bytes=96 * MB)))
    assert not [line for line in told([fine]) if "±" in line]
    assert [line for line in told([fine, coarse]) if "±" in line] == [
        "RAM: each peak is within ±96 MB, as coarsely as the kernel counts"
    ]


def test_what_nobody_tells_is_not_zero():
    """A device without per-process usage: n/a, and it is the worst of nothing."""
    lines = told([cell(1, 0, 5, 5, gpus=[gpu(0, 0, 0, attributed=False)])])
    assert re.search(r"GPU +n/a +n/a +n/a +n/a$", lines[3])
    assert not any("on GPU" in line for line in lines)


def test_of_many_devices_those_where_something_happened():
    """The devices that moved, and the fullest, which the ranking may be due to; each keeps its name in all cells."""
    gpus = [gpu(900, 900, 900), gpu(10, 10, 10, index=1), gpu(0, 7, 7, index=2), gpu(0, 0, 8, index=3)]
    lines = told([cell(1, 0, 5, 5, gpus=gpus), cell(2, 0, 5, 5, gpus=gpus[2:3])])
    rows = re.findall(r"GPU\d(?= +\d+ +\d+ +\d+ +\d+$)", "\n".join(lines), re.MULTILINE)
    assert rows == ["GPU0", "GPU2", "GPU3", "GPU2"]


def test_long_histories_are_short():
    """Twenty cells, and how many more; the worst are named wherever they stand."""
    cells = [cell(count, 0, 0, 100, time_s=float(count)) for count in range(1, 1235)]
    lines = told(cells)
    assert lines[0] == "1,234 cells, by what each needed above what was in use before it; MB"
    assert sum(bool(re.search(r"In \[\d+\] +RAM", line)) for line in lines) == 20
    assert "  and 1,214 more" in lines
    assert "* longest: In [1234], 1234.000s" in lines


def test_a_quiet_notebook_has_no_worst_memory():
    """Under a megabyte nobody is the worst; somebody took longest all the same. Without a cell that is said."""
    lines = told([cell(1, 0, 0, 0), cell(2, 0, 0, 0, time_s=2.0)])
    assert [line for line in lines if line.startswith("* ") and "RAM" not in line] == [
        "* longest: In [2], 2.000s"
    ]
    assert told([]) == ["no cell has been reported yet"]


def test_of_equals_the_first_is_the_worst():
    """Cells that run while what another took is still there have the same peak, and needed nothing."""
    cells = [cell(3, 900, 900, 900), cell(2, 0, 900, 900), cell(4, 900, 0, 900), cell(5, 100, 1000, 1000)]
    assert "* needed most: In [2], 900 MB of RAM (peak 900)" in told(cells)


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
        (leaks(120, 118, 121), "In [6] f(): 3 runs, +120, +118, +121 MB on GPU"),
        (leaks(5, 6, 7, device=False), "In [6] f(): 3 runs, +5, +6, +7 MB"),
        (leaks(100, 100, 100, names="abc"), "In [6] f(): 3 runs, +100 MB on GPU each: losses"),
        (leaks(100, 100, 100, names="aaa", device=False), "In [6] f(): 3 runs, +100 MB each: a, losses"),
        (leaks(*range(10, 30)), "In [23] f(): 20 runs, ..., +24, +25, +26, +27, +28, +29 MB on GPU"),
    ],
)
def test_a_leak_is_named_with_what_grew(runs, said):
    """The last runs, where it grew, one figure where all were alike, and the names that grew in all of them."""
    history = History(runs)
    assert history.suspects() == [tuple(runs)]
    assert told(history.rank(), "peak", history.suspects())[-2:] == [
        "May leak: every run consumed more, and left more in use than the one before:",
        f"  {said}",
    ]
    assert told(runs, "peak", [runs] * 8)[-1] == "  and 3 more"


def test_it_fits_a_narrow_page():
    """Rows of usual figures stay within 100 characters, however long the source."""
    cells = [cell(count, 0, 99999, 123456, gpus=[gpu(0, 70000, 143771)], source="x" * 80) for count in (1, 2)]
    assert max(map(len, told(cells))) <= 100
