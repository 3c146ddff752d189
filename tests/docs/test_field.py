"""benchmarks/field.py reads the other tools right, and the page "Compared" and the README's lines are its results."""

import re

import pytest
from field_tools import outputs, results, tables
from field_tools.tools import TOOLS, chosen

RESULTS = results.RESULTS.read_text(encoding="utf-8")

# Recorded from the versions that TOOLS names.
JUMPER = """
                <tr>
                  <td class="jump-col-metric">CPU Util (Across 2 CPUs)</td>
                  <td>2.33</td>
                  <td>0.00</td>
                  <td>7.00</td>
                  <td>-</td>
                </tr>

                <tr>
                  <td class="jump-col-metric">Memory (GB)</td>
                  <td>0.31</td>
                  <td>0.12</td>
                  <td>0.41</td>
                  <td>23.54</td>
                </tr>
"""
MEMLAB = """## transient

active_bytes reserved_bytes line  code
         all            all
        peak           peak
     512.00B          2.00M    2  def transient(sizes, held_ms, empty):
       8.00M         22.00M    3      tensors = [torch.empty(size << 20, device="cuda") for size in sizes]
       8.00M         22.00M    4      time.sleep(held_ms / 1000)
"""
TOLD = {
    outputs.ipygpulogger: (
        "RAM: Consumed Peaked  Used Total in 0.017s (In [5])\nGen:        0     32       89 MB\ngrew: x 32 MB\n",
        32,
    ),
    outputs.cell_logger: (
        (
            "･ RAM:  △Consumed    △Peaked    Used Total | Exec time 0:00:00.635\n"
            "･ CPU:      1,000        300         51 MB |\n"
        ),
        1300,
    ),
    outputs.memory_usage: (
        (
            "In [4] used -2.0 MiB RAM in 0.74s (system mean cpu 8%, single max cpu 52%), peaked 300.0 MiB above final usage, "
            "current RAM usage now 52.1 MiB\n"
        ),
        300,
    ),
    outputs.memit: ("peak memory: 315.05 MiB, increment: 263.03 MiB\n", 263.03),
    outputs.jumper: (JUMPER, pytest.approx(0.29 * 1024)),
    outputs.memray: ("          Peak memory usage: 33.6 MB<br>\n", pytest.approx(32.04, abs=0.01)),
    outputs.memlab: (MEMLAB, 8),
}


@pytest.mark.parametrize("read", TOLD, ids=lambda read: read.__name__)
def test_what_a_tool_prints_is_read(read):
    """What it told of the cell, in MB of 2**20 bytes; None where it said nothing."""
    printed, rise_mb = TOLD[read]
    assert read(printed) == rise_mb
    assert read("[JUmPER]: No performance data available or recorded cells are too short\n") is None


@pytest.mark.parametrize(
    ("ours", "theirs", "says"),
    [
        ([1.0, 1.1, 1.2], [2.0, 2.1, 2.2], "ipygpulogger is first in `ms`."),
        ([1.0, 2.1, 3.0], [2.0, 2.2, 2.4], "Level with the best other tool in `ms` (memray)."),
        ([3.0, 3.1, 3.2], [2.0, 2.2, 2.4], "**Not first** in `ms`: memray 2.2, ipygpulogger light 3.1."),
    ],
)
def test_a_table_says_who_comes_first(ours, theirs, says):
    """By the medians, and level where the quartiles overlap."""
    rows = chosen("memray,light")
    figures = {"light": tables.figure(ours), "memray": tables.figure(theirs), "bare": tables.figure([0.1])}
    table = tables.Table("empty", "A title", rows, [tables.Column("ms", figures=figures)])
    assert table.lines()[-1] == says


def test_a_tool_that_failed_has_a_row_that_says_so():
    """And nobody is first in a column that has no other figure."""
    figures = {"light": tables.figure([1.0]), "memray": "not installed: no wheel"}
    table = tables.Table("empty", "A title", chosen("memray,light"), [tables.Column("ms", figures=figures)])
    assert any("memray" in line and "not installed: no wheel" in line for line in table.lines())
    assert "first" not in "".join(table.lines())


@pytest.mark.parametrize("path", [results.PAGE, results.README], ids=lambda path: path.name)
def test_the_page_is_made_from_the_results(path):
    """`python benchmarks/field.py --publish` would change nothing."""
    page = path.read_text(encoding="utf-8")
    assert results.published(RESULTS, page) == page


def test_the_results_have_every_table_and_the_page_the_main_ones():
    """With the day and the versions; the page names those that it leaves out, and what is not first there."""
    known, page = results.blocks(RESULTS), results.PAGE.read_text(encoding="utf-8")
    assert results.blocks(page).keys() - known.keys() == {"machine", "others"}
    assert page.count("Python 3.") == 1
    for body in known.values():
        assert "Python 3." in body
        assert all(f"| {name} " in body for name in results.OURS[:2])
        assert re.search(r"### (.*)", body)[1] in page
        assert all(line in page for line in re.findall(r"\*\*Not first.*", body))


def test_the_page_has_the_medians():
    """Every figure of its tables is that of the results, without the quartiles; no tool with a figure is left out."""
    known, page = results.blocks(RESULTS), results.blocks(results.PAGE.read_text(encoding="utf-8"))
    for key in known.keys() & page.keys():
        wanted = {name: list(cells.values()) for name, cells in results.rows(known[key]).items()}
        shown = {name: list(cells.values()) for name, cells in results.rows(page[key]).items()}
        medians = {
            name: [cell.partition(" (")[0].replace(" / ", "/") for cell in cells]
            for name, cells in wanted.items()
            if any(cells)
        }
        assert shown == medians


def test_the_page_names_every_tool():
    """With a link to where it comes from."""
    page = results.PAGE.read_text(encoding="utf-8")
    for tool in TOOLS:
        assert (
            f"https://pypi.org/project/{tool.requirement.partition('==')[0]}/" in page or not tool.requirement
        )
