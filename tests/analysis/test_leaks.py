"""Cells that may leak: which ones are suspected, and which never."""

import dataclasses
from datetime import timedelta

import pytest
from handmade import cell
from made import plain
from sessions import cells, gpu, ram

from ipygpulogger import History
from ipygpulogger.analysis.leaks import growing_names
from ipygpulogger.records import CPU, DeviceUsage, Heap, Owner, Peak, RamUsage
from ipygpulogger.records.process import Process, ProcessRecord

MB = 2**20


def test_our_own_magics_are_no_suspects():
    """A cell of ours that grows each time is no leak of the user's code; nor are other processes' runs told."""
    runs = cells(ram(0, 10), ram(10, 20), ram(20, 30))
    assert History(runs).suspects()
    ours = [dataclasses.replace(run, gpulog_only=True) for run in runs]
    assert not History(ours).suspects()
    assert History(ours[:2]).marked(ours[2]) == ours[2]
    assert not History([ProcessRecord.of(run, Process("node", 7)) for run in runs]).suspects()


def test_a_cell_that_grows_with_every_run_is_suspected():
    """Three runs, each of which consumed and left more: in RAM, or on one device of several."""
    grown = cells(ram(0, 100), ram(100, 220), ram(220, 330))
    assert History(grown).suspects() == [tuple(grown)]
    before = cells(ram(0, 0), ram(0, 90))  # runs before the growth are no part of it
    on_second = cells(*(gpu(b, a, index=1, uuid="u") for b, a in ((0, 2), (2, 4), (4, 6))))
    assert History([*before, *on_second]).suspects() == [tuple(on_second)]


def owned(record, **sizes_mb):
    owners = (Owner(name, size_mb * MB, "cpu", "variable") for name, size_mb in sizes_mb.items())
    return dataclasses.replace(record, owners=tuple(owners))


def test_the_third_run_that_grows_is_marked():
    """With the names that grew in every run, the largest first; runs before and cells that grow once are not."""
    first, second, third, fourth = cells(ram(0, 100), ram(100, 220), ram(220, 330), ram(330, 340))
    history = History()
    for record in (owned(first, a=50, log=9, x=3), owned(second, log=90, a=20)):
        assert history.marked(record) is record
        history.append(record)
    marked = history.marked(owned(third, new=10, log=80, a=10))
    assert marked.notes[-1] == "grew in each of its last 3 runs: log, a"
    assert history.marked(third).notes[-1] == "grew in each of its last 3 runs"
    history.append(marked)
    assert history.marked(fourth).notes[-1] == "grew in each of its last 4 runs"
    assert history.marked(dataclasses.replace(third, cell_id="another")).notes == ()
    (shrunk,) = cells(ram(330, 200))
    assert history.marked(shrunk) is shrunk


@pytest.mark.parametrize(
    "runs",
    [
        [ram(0, 100), ram(100, 200)],  # twice only
        [ram(0, 500), ram(500, 500), ram(500, 500), ram(500, 500)],  # a cache filled once
        [ram(0, 100), ram(0, 100), ram(0, 100), ram(0, 100)],  # given back between
        [ram(0, 100), ram(100, 101), ram(101, 102), ram(102, 103)],  # a page or two
        [ram(0, 100), ram(100, 200), ram(200, 300), ram(300, 300)],  # mended since
        [ram(0, 100), ram(100, 300), ram(300, 400), ram(0, 100)],  # begun anew
        [ram(900, 800), ram(800, 700), ram(700, 600)],  # gives
        [
            gpu(0, 9, attributed=False),
            gpu(9, 19, attributed=False),
            gpu(19, 29, attributed=False),
        ],  # nobody's
        [gpu(0, 9, uuid="a"), gpu(9, 19, uuid="b"), gpu(19, 29, uuid="c")],  # three devices
    ],
)
def test_what_is_no_leak(runs):
    """Nothing that stops, comes back, or is nobody's own."""
    assert History(cells(*runs)).suspects() == []


def test_what_malloc_keeps_is_no_leak():
    """Growth that is freed memory in malloc's hands is not counted; the same growth in use is."""
    for kept, suspected in ((100, False), (0, True)):
        runs = [
            ram(100 * i, 100 * i + 100, heap_before=Heap(0, 0), heap_after=Heap(100 * MB, kept * MB))
            for i in range(3)
        ]
        assert bool(History(cells(*runs)).suspects()) is suspected


@pytest.mark.parametrize(("bytes_more", "suspected"), [(0, False), (1, True)])
@pytest.mark.parametrize("kind", ["RAM", "RAM that malloc kept before", "device"])
@pytest.mark.parametrize("figure", ["consumed", "left behind"])
def test_a_run_grows_by_more_than_a_megabyte(figure, kind, bytes_more, suspected):
    """Just a megabyte consumed, or left in use beyond the run before, is no growth; a byte more is."""
    runs = []
    for i in range(3):
        consumed, step = (MB + bytes_more, 9 * MB) if figure == "consumed" else (9 * MB, MB + bytes_more)
        before, after = i * step, i * step + consumed
        usage = before, after, Peak(after, after, "exact")
        heaps = (Heap(0, 5), Heap(0, 0)) if "malloc" in kind else ()
        runs.append(DeviceUsage(*usage, 0, "GPU") if kind == "device" else RamUsage(*usage, *heaps))
    assert bool(History(cells(*runs)).suspects()) is suspected


def test_a_device_that_came_later_is_looked_at():
    """A cell whose first run did not use the device leaks there all the same."""
    found = cells(ram(0, 0), gpu(0, 9), gpu(9, 19), gpu(19, 29))
    assert History(found).suspects() == [tuple(found[1:])]


def test_a_cell_with_the_same_number_ran_in_another_kernel():
    """Three kernels in which one cell ran: the number does not grow, so they are three."""
    found = [
        dataclasses.replace(one, execution_count=1) for one in cells(*(ram(0, 9 + 9 * i) for i in range(3)))
    ]
    assert History(found).suspects() == []


def test_cells_are_told_apart():
    """By their name and their first line: two that grow by turns are two suspects, three alike are none."""
    runs = [ram(i * 10, i * 10 + 10) for i in range(6)]
    mixed = [dataclasses.replace(record, cell_id="ab"[i % 2]) for i, record in enumerate(cells(*runs))]
    assert History(mixed).suspects() == [tuple(mixed[::2]), tuple(mixed[1::2])]
    for change in ("cell_id", "source"):
        found = [dataclasses.replace(record, **{change: str(i)}) for i, record in enumerate(cells(*runs))]
        assert History(found).suspects() == []
    nameless = [dataclasses.replace(record, cell_id=None) for record in cells(*runs)]
    assert History(nameless).suspects() == [tuple(nameless)]
    others = [
        dataclasses.replace(one, code=f"0000000{i}") for i, one in enumerate(nameless)
    ]  # all begin with ``if torch:``
    assert History(others).suspects() == []
    assert History([dataclasses.replace(one, code="00000001") for one in nameless]).suspects()
    with_ids = [dataclasses.replace(one, cell_id="id") for one in others]  # the same cell, edited
    assert History(with_ids).suspects() == [tuple(with_ids)]


def test_runs_in_different_kernels_are_no_leak():
    """A log of three kernels in which the cell ran once each, by chance a little higher each time."""
    start = plain().started_at
    found = []
    for kernel in range(3):
        for count in (1, 2):
            (record,) = cells(ram(0, 100 + 5 * kernel), cell_id=str(count))
            at = start + timedelta(hours=kernel, minutes=count)
            found.append(dataclasses.replace(record, execution_count=count, started_at=at))
    assert History(found).suspects() == []


def test_cells_at_the_same_time_are_of_one_kernel():
    """On subshells an earlier cell may end after a later one: the runs still count together."""
    found = cells(ram(0, 10), ram(10, 20), ram(20, 30))
    (long,) = cells(ram(0, 0), cell_id="long")
    long = dataclasses.replace(long, execution_count=0, started_at=long.started_at - timedelta(seconds=9))
    assert History([*found[:2], long, found[2]]).suspects() == [tuple(found)]


def test_cells_without_a_name_that_begin_with_a_magic_are_no_suspects():
    """Three different cells under ``%%time`` in a terminal are not one cell that grows."""
    runs = [ram(100 * n, 100 * n + 100) for n in range(4)]
    assert History(cells(*runs)).suspects()
    assert History(cells(*runs, source="%%time", cell_id=None)).suspects() == []


def test_outputs_grow_as_one():
    """`Out[1]` in one run and `Out[2]` in the next are one name, and all of a run's add up; the largest first."""
    runs = [
        cell(
            owners=(
                Owner(f"Out[{i}]", 30, CPU, "output"),
                Owner(f"Out[-{i}]", 30, "cuda:0", "output"),
                Owner("x", 50, CPU, "variable"),
                Owner("last traceback", 99, CPU, "traceback"),
                Owner("2 smaller names", 99, CPU, "other"),
            )
        )
        for i in (1, 2)
    ]
    assert growing_names(runs) == ("Out", "x")
