"""The page of a run in which other processes worked: their peaks are in its figures, their time is no cell's."""

import re

import pytest
from plotted import cell
from processes import of

from ipygpulogger import History
from ipygpulogger.analysis import ranking
from ipygpulogger.render import summary
from ipygpulogger.render.page import page

CELLS = [cell(count, count * 70.0, 62, 500, 590, 900, source=f"f({count})") for count in range(1, 4)]
RANKS = [
    of(rank, 100 * (rank + 1), on_gpu={rank: 1000 * (rank + 1)}, started_at=CELLS[1].started_at)
    for rank in range(4)
]
MIXED = [*CELLS[:2], *RANKS, CELLS[2]]


def words(markup):
    return " ".join(re.sub(r"<style.*?</style>|<[^>]*>", " ", markup, flags=re.DOTALL).split())


def page_of(records, at_most, monkeypatch):
    monkeypatch.setattr(ranking, "MOST", at_most)
    history = History(records)
    return words(page("x", records, ranked=summary.html(history)))


@pytest.mark.parametrize("at_most", [ranking.MOST, 0])
def test_other_processes_are_in_the_totals(at_most, monkeypatch):
    """The cells count and take time as without the others; without cells, the processes are what there is."""
    mixed, alone = (page_of(records, at_most, monkeypatch) for records in (MIXED, RANKS))
    for said in (
        "Time in cells 3 min 6 s",
        "Highest RAM 900 MB raised by In [1]",
        "UTC · 3 cells and 4 records of other processes Time",
        "3 cells and 4 records of other processes, ranked by needed",
    ):
        assert said in mixed
    assert "UTC · 4 records of processes" in alone
    assert "Time of all processes 8.00 s" in alone
    for told in mixed, alone:
        assert "Highest GPU 4.0 GB raised by In [1], rank 3" in told


def test_only_one_process_is_drawn():
    """The kernel, wherever its first cell stands; without it the first process."""
    for records, drawn, name in (
        (MIXED, CELLS, ""),
        ([*RANKS, *CELLS], CELLS, ""),
        (RANKS, RANKS[:1], "rank 0"),
        ([], [], ""),
    ):
        assert ranking.of_one_process(records) == (drawn, name)
