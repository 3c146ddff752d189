"""Several runs of one process for one cell are one record: the whole stretch, the highest peak, the worst end."""

from dataclasses import replace
from datetime import timedelta

import made

from ipygpulogger.cluster.arrivals import one_each, together
from ipygpulogger.records import ChildrenUsage, DeviceUsage, Heap, Peak, RamUsage
from ipygpulogger.records.process import Process, ProcessRecord


def a_run(second, before_bytes, after_bytes, peak, *, pid=1, gpus=(), **fields):
    """What one process used in the second run, or so."""
    gen = RamUsage(before_bytes, after_bytes, peak, Heap(before_bytes, 0), Heap(after_bytes, 0))
    record = ProcessRecord.of(made.plain(**fields), Process("node", pid))
    began = record.started_at + timedelta(seconds=second)
    return replace(record, gen=gen, gpus=gpus, started_at=began, time_s=0.25)


def exact(size_bytes):
    return Peak(size_bytes, size_bytes, "exact")


def test_the_whole_stretch():
    """From the first beginning to the last end, whatever order they came in; nothing is counted twice."""
    runs = [a_run(0, 10, 40, exact(90)), a_run(2, 55, 20, exact(60)), a_run(1, 40, 50, exact(50))]
    for order in (runs, runs[::-1]):
        whole = together(order)
        assert (whole.gen.before_bytes, whole.gen.after_bytes, whole.gen.peak) == (10, 20, exact(90))
        assert (whole.gen.heap_before, whole.gen.heap_after) == (Heap(10, 0), Heap(20, 0))
        assert (whole.time_s, whole.started_at, whole.notes) == (0.75, runs[0].started_at, ("3 runs",))


def test_a_peak_is_as_good_as_the_worst():
    """Bounds stay bounds, and where one run has no upper bound there is none."""
    bounded, sampled = Peak(50, 80, "bounded"), Peak(70, None, "sampled")
    assert together([a_run(0, 0, 0, exact(60)), a_run(1, 0, 0, bounded)]).gen.peak == Peak(60, 80, "bounded")
    assert together([a_run(0, 0, 0, exact(90)), a_run(1, 0, 0, bounded)]).gen.peak == exact(90)
    assert together([a_run(0, 0, 0, exact(60)), a_run(1, 0, 0, sampled)]).gen.peak == sampled
    coarse = Peak(64, 96, "exact", 32)
    assert together([a_run(0, 0, 0, coarse), a_run(1, 0, 0, exact(60))]).gen.peak == coarse


def test_how_it_ended():
    """A failure of any run is told, with its error."""
    runs = [a_run(0, 0, 0, exact(0)), a_run(1, 0, 0, exact(0), status="error", error="ValueError")]
    runs.append(a_run(2, 0, 0, exact(0), status="interrupted", error="KeyboardInterrupt"))
    assert (together(runs).status, together(runs).error) == ("error", "ValueError")
    assert together(runs[::2]).status == "interrupted"


def test_each_device_and_the_children():
    """A device that only some of the runs used has the figures of those."""

    def gpu(index, before_bytes, after_bytes, peak_bytes):
        return DeviceUsage(before_bytes, after_bytes, exact(peak_bytes), index=index, name="A100")

    first = replace(a_run(0, 0, 0, exact(0), gpus=(gpu(1, 5, 6, 7),)), children=None, current_gpu=1)
    second = a_run(1, 0, 0, exact(0), gpus=(gpu(0, 1, 2, 3), gpu(1, 6, 4, 9)))
    second = replace(second, children=ChildrenUsage(3, 4, exact(5), 2), current_gpu=1)
    third = replace(a_run(2, 0, 0, exact(0)), current_gpu=0)
    whole = together([first, second, third])
    assert whole.current_gpu == 0
    assert whole.gpus == (gpu(0, 1, 2, 3), gpu(1, 5, 4, 9))
    assert whole.children == ChildrenUsage(3, 4, exact(5), 2)


def test_one_for_each_process():
    """A process with a single run keeps its record as it is."""
    mine, others = a_run(0, 1, 2, exact(3)), [a_run(i, 1, 2, exact(3), pid=7) for i in range(2)]
    assert one_each([others[0], mine, others[1]]) == [together(others), mine]
    assert one_each([]) == []
