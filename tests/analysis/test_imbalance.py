"""The figures of many processes: how they are spread, and who stands out."""

import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory import MB
from processes import of

from ipygpulogger.analysis.group import Group
from ipygpulogger.records import Note


def figures(records):
    return {(one.name, one.what): one for one in Group("x", records).figures}


def outliers(records):
    return [(one.record.process.named(), one.name) for one in Group("x", records).outliers]


@given(st.lists(st.tuples(st.integers(0, 1 << 15), st.floats(0, 1e5)), min_size=1, max_size=40))
def test_each_figure_is_that_of_statistics(given_figures):
    """Smallest, median and largest of what RAM needed and of the time."""
    records = [of(rank, needs, took_s=time_s) for rank, (needs, time_s) in enumerate(given_figures)]
    found = figures(records)
    for key, values in (
        (("RAM", "needed"), [needs * MB for needs, _ in given_figures]),
        (("time", "time"), [time_s for _, time_s in given_figures]),
    ):
        one = found[key]
        assert (one.smallest, one.median, one.largest) == (
            min(values),
            statistics.median(values),
            max(values),
        )
        assert one.most.rank == values.index(max(values))


def test_one_device_each_is_the_gpu():
    """Ranks that each use a device of their own are compared with each other, whichever index it has."""
    records = [of(rank, on_gpu={rank: 100 * (rank + 1)}) for rank in range(3)]
    found = figures(records)
    assert (found["GPU", "needed"].smallest, found["GPU", "needed"].largest) == (100 * MB, 300 * MB)
    assert found["GPU", "used"].median == 900 * MB


def test_several_devices_each_are_told_apart():
    """By their ids; those that a process did not use are none of its figures."""
    records = [of(0, on_gpu={0: 100, 1: 50}), of(1, on_gpu={1: 300})]
    found = figures(records)
    assert found["cuda:0", "needed"].smallest == 100 * MB
    assert (found["cuda:1", "needed"].smallest, found["cuda:1", "needed"].largest) == (50 * MB, 300 * MB)


@pytest.mark.parametrize(
    ("needs", "stands_out"),
    [
        ([100, 100, 120], []),  # 1.2 times is not over 1.2 times
        ([100, 100, 121], [("rank 2", "RAM")]),
        ([10, 10, 14], []),  # 4 MB of the 500 that are in use
        ([0, 0, 6], [("rank 2", "RAM")]),
        ([300, 121, 100, 100, 100], [("rank 0", "RAM"), ("rank 1", "RAM")]),
        ([100], []),
        ([], []),
    ],
)
def test_who_needs_far_more_than_the_median_stands_out(needs, stands_out):
    """Over 1.2 times, and notably: over 1 MB and over 1 % of what is in use; the farthest first."""
    assert outliers([of(rank, size) for rank, size in enumerate(needs)]) == stands_out


@pytest.mark.parametrize(
    ("times_s", "stands_out"),
    [
        ([2.0, 2.0, 2.4], []),
        ([2.0, 2.0, 2.5], [("rank 2", "time")]),
        ([0.1, 0.1, 0.19], []),
        ([0.0, 0.0, 0.1], []),
    ],
)
def test_who_takes_far_longer_is_a_straggler(times_s, stands_out):
    """Over 1.2 times the median, and over 0.1 s more."""
    assert outliers([of(rank, took_s=time_s) for rank, time_s in enumerate(times_s)]) == stands_out


def test_a_task_that_shared_its_process_has_no_memory_of_its_own():
    """Neither does it stand out by it, nor do others beside it; by its time it does."""
    shared = ("not exact", Note.read("shared with 2 other tasks of its process"))
    alike = [of({"rank": rank, "task": "load"}, 100, on_gpu=100) for rank in range(3)]
    large = of({"rank": 3, "task": "load"}, 300, on_gpu=300, took_s=9.0)
    assert outliers([*alike, large]) == [("rank 3", "RAM"), ("rank 3", "GPU"), ("rank 3", "time")]
    assert outliers([*alike, replace(large, notes=shared)]) == [("rank 3", "time")]
    assert outliers([*(replace(one, notes=shared) for one in alike), large]) == [("rank 3", "time")]
    assert outliers([replace(large, notes=shared)]) == []


def test_how_far_it_stands_out_is_in_medians():
    """Three times the median is 3; of a median of nothing it is no number."""
    found = [
        one.ratio for one in Group("x", [of(rank, 100 + 200 * (rank == 2)) for rank in range(3)]).outliers
    ]
    assert found == [3]
    (one,) = Group("x", [of(rank, 9 * (rank == 2)) for rank in range(3)]).outliers
    assert (one.figure, one.median, one.ratio) == (9 * MB, 0, float("inf"))


def test_a_device_is_compared_too():
    """What is in use is not: it is the others' memory as well."""
    records = [of(rank, on_gpu=100 * (1 + (rank == 1)), uses=100 + 900 * (rank == 0)) for rank in range(4)]
    assert outliers(records) == [("rank 1", "GPU")]


def test_tasks_are_compared_with_their_like():
    """A task that loads is no straggler among those that train; a slow one among those that load is."""
    tasks = [("load", 9.0), ("train", 1.0), ("load", 3.0), ("train", 1.0), ("load", 3.0), ("train", 1.0)]
    records = [of({"task": task, "pid": i}, took_s=time_s) for i, (task, time_s) in enumerate(tasks)]
    assert outliers(records) == [("pid 0", "time")]


def test_the_order_is_not_that_in_which_they_came():
    """Ranks by number, then workers by name."""
    names = ["worker b", "worker a"]
    records = [of({"worker": name}) for name in names]
    records += [of({"rank": rank, "pid": 99 - rank}) for rank in (10, 9, 1, 0)]
    found = [record.process.named() for record in Group("x", records)]
    assert found == ["rank 0", "rank 1", "rank 9", "rank 10", "worker a", "worker b"]
