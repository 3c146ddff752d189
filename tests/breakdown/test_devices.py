"""The recording of torch's allocators: what the user does to them meanwhile, and what cannot be recorded."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import simgpu
from memory import Block
from recorded import MB, Recorded, recorded

pytestmark = pytest.mark.torch

import torch  # noqa: E402 - where it is not, this file is not opened

from ipygpulogger.breakdown.recording import PeakRecording  # noqa: E402
from ipygpulogger.breakdown.rows import Breakdown  # noqa: E402
from ipygpulogger.engine.machine import machine  # noqa: E402
from ipygpulogger.records.explained import UNRECORDED  # noqa: E402
from ipygpulogger.sources.torch import snapshot as torch_snapshot  # noqa: E402

FUNCTIONS = [name for name in dir(torch._C) if "record_memory_history" in name or "resetAccumulated" in name]
remember = torch.cuda.memory._record_memory_history


def block(size_mb, device="cuda"):
    return torch.empty(size_mb * MB, dtype=torch.uint8, device=device)


def events():
    """What the user would find: the actions on blocks that torch has recorded."""
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    return [
        (one["action"], one["size"] // MB) for one in trace if one["action"] in ("alloc", "free_requested")
    ]


@pytest.fixture
def cuda(cuda):
    """After each test no recording is on, and torch's functions are its own."""
    own = {name: getattr(torch._C, name) for name in FUNCTIONS}
    yield cuda
    assert not torch._C._cuda_isHistoryEnabled()
    assert own == {name: getattr(torch._C, name) for name in own}


def test_a_recording_of_the_users_goes_on(cuda):
    """It is read, and has afterwards what it would have had without us."""
    held = block(5)
    remember("all", stacks="python", max_entries=1000)
    early = block(7)
    found = recorded(lambda: block(30))
    assert (found.bytes(), found.notes) == (42 * MB, [])
    assert torch._C._cuda_isHistoryEnabled()
    assert events() == [("alloc", 7), ("alloc", 30), ("free_requested", 30)]
    remember(None)
    del held, early


@pytest.mark.parametrize("before", [False, True])
def test_a_recording_that_the_user_begins_or_ends_within_ends_ours(cuda, before):
    """Theirs begins empty and does as they say; a sentence tells why ours has no rows, and the next has some."""
    if before:
        remember("all", stacks="python")

    def cell():
        first = block(40)
        with pytest.raises(TypeError):
            remember("all", no_such_argument=1)
        if before:
            remember(None)
        else:
            remember(True, trace_alloc_max_entries=1000)  # a legacy call
            second = block(3)
            assert events() == [("alloc", 3)]
            del second
        assert torch._C._cuda_isHistoryEnabled() is not before
        assert recorded(lambda: block(20)).bytes() == 60 * MB
        del first

    found = recorded(cell)
    assert found.record.at_peak == ()
    assert "is not known: a recording of torch's memory history by other code" in found.notes[0]
    assert torch._C._cuda_isHistoryEnabled() is not before
    remember(None)
    assert recorded(lambda: block(20)).bytes() == 20 * MB


def test_recordings_overlap(cuda):
    """Each has its own peak, in whatever order they begin and end, in whatever threads."""
    first = Recorded()
    block(10)
    second = Recorded()
    held = block(20)
    first.end()
    del held
    third = Recorded()
    ended = []
    thread = threading.Thread(target=lambda: ended.append(recorded(lambda: block(3))))
    thread.start()
    thread.join()
    block(5)
    second.end()
    third.end()
    assert [one.bytes() // MB for one in (first, second, third, *ended)] == [20, 20, 5, 3]
    assert not [one.notes for one in (first, second, third, *ended) if one.notes]
    assert [len(one.record.peak_times_s) for one in (first, second, third)] == [1, 1, 1]


def test_pools_streams_and_devices(cuda):
    """A private pool, a CUDA graph, a block that waits for another stream, and two devices."""
    pool, side = torch.cuda.MemPool(), torch.cuda.Stream()
    other = block(2, "cuda:1")

    def cell():
        with torch.cuda.use_mem_pool(pool):
            pooled = block(11)
        graph, static = torch.cuda.CUDAGraph(), block(1)
        with torch.cuda.graph(graph):
            static + 1
        first = block(21)
        first.record_stream(side)
        del first
        kept = block(20), block(5), block(3, "cuda:1")
        del pooled, graph
        return kept

    torch.cuda.reset_peak_memory_stats()
    found = recorded(cell)
    assert not found.notes
    assert found.bytes() == torch.cuda.max_memory_allocated()
    assert found.bytes("cuda:1") == torch.cuda.max_memory_allocated(1) == 5 * MB
    assert [device for device, _ in found.record.peak_times_s] == ["cuda:0", "cuda:1"]
    assert all(0 <= time_s <= found.record.time_s for _, time_s in found.record.peak_times_s)
    del other


def test_an_allocation_that_fails(cuda):
    """What was alive at the last one that failed, on the device that had no room; the peak is another moment."""
    held = block(100)

    def cell():
        del_me = block(300)
        del del_me
        kept = block(50)
        for size_mb in (30_000, 40_000):
            with pytest.raises(torch.OutOfMemoryError):
                block(size_mb)
        assert not recorded(lambda: None).at_failure  # it came before
        return kept

    found = recorded(cell)
    assert {device: sum(row.size_bytes for row in rows) for device, rows in found.at_failure.items()} == {
        "cuda:0": 150 * MB
    }
    assert (found.bytes(), found.notes) == (400 * MB, [])
    assert not recorded(lambda: block(1)).at_failure
    del held


def test_nothing_changes_on_a_device(cuda, monkeypatch):
    """Unless the table was asked for, there are no rows and no look at anything. A failure is told as ever."""
    held, other = [block(5), block(2)], block(3, "cuda:1")
    named = [(row.device, row.name, row.size_bytes // MB) for row in recorded(held.clear).record.at_peak]
    assert sorted(named) == [("cuda:0", "freed since", 7), ("cuda:1", "other", 3)]
    held.append(block(5))
    with monkeypatch.context() as patch:
        without_events = partial(torch_snapshot._snapshot, events=False)
        patch.setattr(
            torch_snapshot, "_snapshot", lambda torch, *, events: None if events else without_events(torch)
        )
        found = recorded(lambda: None, always_named=False)
    assert (found.record.at_peak, found.record.peak_times_s, found.notes) == ((), (), [])
    found = recorded(lambda: block(1), always_named=False)
    assert {row.device for row in found.record.at_peak} == {"cuda:0"}

    def fail():
        with pytest.raises(torch.OutOfMemoryError):
            block(40_000)

    found = recorded(fail, always_named=False)
    assert {device: [row.name for row in rows] for device, rows in found.at_failure.items()} == {
        "cuda:0": ["held"]
    }
    del other


def test_events_that_are_lost(cuda, monkeypatch):
    """There are rows only if they add up to the peak; where what was there before them was allocated is unknown."""
    monkeypatch.setattr(torch_snapshot, "MAX_EVENTS", 50)
    held = block(7)

    def cell(sizes):
        for size_mb in sizes:
            one = block(size_mb)
        del one

    found = recorded(lambda: cell([40] * 100))
    assert found.bytes() == 87 * MB
    assert 0 <= found.record.peak_times_s[0][1] <= found.record.time_s
    rows = [(row.kind, row.size_bytes // MB, row.place.partition(":")[0]) for row in found.record.at_peak]
    assert rows == [
        ("temporaries", 40, UNRECORDED), ("temporaries", 40, "test_devices.py"), ("variables", 7, UNRECORDED)
    ]  # fmt: skip
    assert found.notes == []
    found = recorded(lambda: cell([40] + [30] * 99))
    assert (found.record.at_peak, found.record.peak_times_s) == ((), ())
    (note,) = found.notes
    assert note.startswith("What was alive at the peak (77 MB) on cuda:0 is not known: it came before the")
    assert note.endswith("which are the last 50.")
    many = [block(2) for _ in range(60)]
    found = recorded(many.clear)
    assert (found.record.at_peak, found.record.peak_times_s) == ((), ())
    assert "the peak (128 MB) on cuda:0 is not known: it came before" in found.notes[0]
    del held


@pytest.mark.parametrize("how", ["frees lost", "left out", "not split"])
def test_a_history_that_does_not_add_up(cuda, how):
    """No table: one sentence, which has the peak that the allocator itself knows."""
    held = [block(3) for _ in range(8)]
    pool = torch.cuda.MemPool(no_split=how == "not split")
    options = {"frees lost": {"max_entries": 10}, "left out": {"skip_actions": ["free_requested"]}}
    remember("all", stacks="python", **{"max_entries": 30, **options.get(how, {})})

    def cell():
        if how == "frees lost":  # our look at the beginning is lost, and another one has the same number
            held.clear()
            torch.cuda.memory._snapshot()
        with torch.cuda.use_mem_pool(pool):
            del [block(7)][0]
            torch.empty(1000, device="cuda")
        del [block(1)][0]
        block(1)

    found = recorded(cell)
    remember(None)
    (note,) = found.notes
    assert not found.record.at_peak
    peak_mb = torch.cuda.max_memory_allocated() // MB
    assert note.startswith(f"What was alive at the peak ({peak_mb} MB) on cuda:0 is not known: ")


def test_that_a_long_history_takes_memory_is_said(cuda):
    """Each time: it may explain a figure of general RAM."""

    def allocate():
        for _ in range(10_000):
            torch.empty(512, dtype=torch.uint8, device="cuda")

    for _ in range(2):
        (note,) = recorded(allocate).notes
        assert note.startswith("torch's memory history took general RAM")
    assert recorded(lambda: block(1)).notes == []


def test_interrupted_and_dropped(cuda, monkeypatch):
    """Whatever happens, nothing of ours stays behind, and an interrupt is the user's."""
    dropped = PeakRecording()
    dropped.begin()
    assert torch._C._cuda_isHistoryEnabled()
    dropped.drop()
    dropped.drop()
    assert not torch._C._cuda_isHistoryEnabled()
    forgotten = PeakRecording()
    forgotten.begin()
    del forgotten
    assert not torch._C._cuda_isHistoryEnabled()

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    for name in ("_positions", "_snapshot", "start"):
        with monkeypatch.context() as patch:
            patch.setattr(torch_snapshot, name, interrupt)
            patch.setattr("ipygpulogger.sources.torch.history.start", torch_snapshot.start)
            with pytest.raises(KeyboardInterrupt):
                PeakRecording().begin()
        assert not torch._C._cuda_isHistoryEnabled()
    late = PeakRecording()
    late.begin()
    with monkeypatch.context() as patch:
        patch.setattr(torch_snapshot, "_snapshot", interrupt)
        with pytest.raises(KeyboardInterrupt):
            late.end()


def test_torch_2_6(cuda, monkeypatch):
    """It has no snapshot without events."""
    snapshot = torch._C._cuda_memorySnapshot

    def older(*arguments):
        if arguments not in {(), (None,)}:  # torch 2.6 takes none
            raise TypeError("one argument")
        return snapshot(*arguments)

    monkeypatch.setattr(torch._C, "_cuda_memorySnapshot", older)
    assert recorded(lambda: block(9)).bytes() == 9 * MB
    remember("all", stacks="python")
    assert recorded(lambda: block(9)).bytes() == 9 * MB
    assert events() == [("alloc", 9), ("free_requested", 9)]
    remember(None)
    monkeypatch.undo()


@pytest.mark.linux("nothing forks there", "macos")
def test_a_fork(cuda):
    """A child that ends a recording of its parent neither fails nor ends it there."""
    around = Recorded()
    kept = block(3)
    pid = os.fork()
    if not pid:
        try:
            around.recording.end()
            around.recording.drop()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    del kept
    block(4)
    assert around.end().bytes() == 4 * MB


def in_a_new_process(cuda, program, **env):
    env = {**os.environ, **simgpu.environment(cuda), "PYTHONPATH": str(Path(__file__).parents[1]), **env}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_a_device_that_is_first_used_within(cuda):
    """Its whole life is recorded, and torch imports nothing for it; without a device nothing is said or left."""
    in_a_new_process(
        cuda,
        """
        import sys
        from recorded import MB, Recorded, recorded
        assert not recorded(lambda: None).notes
        around = Recorded()
        import torch
        queued = len(torch.cuda._queued_calls)
        torch.empty(3)
        assert not around.end().notes
        assert not recorded(lambda: None).notes
        assert len(torch.cuda._queued_calls) == queued and not torch.cuda.is_initialized()
        def cell():
            first = torch.empty(9 * MB, dtype=torch.uint8, device="cuda")
            torch.empty(30 * MB, dtype=torch.uint8, device="cuda:1")
        found = recorded(cell)
        assert (found.bytes(), found.bytes("cuda:1"), found.notes) == (9 * MB, 30 * MB, []), found.notes
        assert not torch._C._cuda_isHistoryEnabled()
        assert not {"torch._inductor", "torch._dynamo"} & set(sys.modules)
        assert isinstance(torch._inductor.__name__, str)
        """,
    )


OTHERS = {
    "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync": "is cudaMallocAsync, which keeps no history",
    "PYTORCH_NO_CUDA_MEMORY_CACHING=1": "caching allocator",
}


@pytest.mark.parametrize("setting", OTHERS)
def test_other_allocators(cuda, setting):
    """The asynchronous backend keeps no history, and without caching the statistics stay 0: a sentence, no table."""
    name, _, value = setting.partition("=")
    program = f"""
        from recorded import Recorded, recorded
        around = Recorded()
        import torch
        kept = torch.empty(9 << 20, dtype=torch.uint8, device="cuda")
        notes = around.end().notes
        assert "What was alive at the peak is not known: torch was imported within the measurement." in notes, notes
        for _ in range(2):
            found = recorded(lambda: torch.empty(9 << 20, dtype=torch.uint8, device="cuda"))
            (note,) = found.notes
            assert {OTHERS[setting]!r} in note, note
            assert not found.record.at_peak
        """
    in_a_new_process(cuda, program, **{name: value})


BUSY = """
import threading, torch
from ipygpulogger.sources.torch import snapshot as torch_snapshot
torch.zeros(1, device="cuda")
over = False
def work():
    while not over:
        torch.empty(100, device="cuda")
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
for _ in range(300):
    torch_snapshot.start(torch)
    torch_snapshot.stop(torch)
over = True
[thread.join() for thread in threads]
"""


def test_ending_while_threads_allocate(kernel_env):
    """torch calls a null pointer if it stops copying stacks while a thread is about to copy one."""
    ran = subprocess.run([sys.executable, "-c", BUSY], env=kernel_env, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_what_a_recording_takes_of_ram_is_ours(cuda, monkeypatch):
    """What beginning takes and reading gives back is neither the measurement's nor told after it."""
    taken, begin, read = [], Breakdown.begin, Breakdown.read_names
    monkeypatch.setattr(Breakdown, "begin", lambda one: (taken.append(Block(40)), begin(one)))
    monkeypatch.setattr(Breakdown, "read_names", lambda *args: (taken.pop().free(), read(*args)))
    own = machine().own_imports
    before_bytes, recording = own.bytes, PeakRecording(ram=False)
    recording.begin()
    assert (own.bytes - before_bytes) // MB in range(40, 44)
    kept = block(2)
    recording.end()
    assert not taken and (own.bytes - before_bytes) // MB in range(-4, 4)
    del kept


def test_when_the_peak_was(cuda):
    """A peak before a pause and one after it are told apart."""

    def early():
        block(8)
        time.sleep(0.4)

    def late():
        time.sleep(0.4)
        block(8)

    (before, time_s), (after, _) = (
        (one.peak_times_s[0][1], one.time_s) for one in (recorded(run).record for run in (early, late))
    )
    assert time_s - before >= 0.4 and after > 0.1


def test_a_thread_that_allocates_after_the_code_has_ended(cuda):
    """The table is of the time before, and a note says so, with how much there was at the end."""
    around = Recorded()
    kept = block(3)
    result = around.recording.result

    def later(measurement):
        gpus = (replace(one, allocated_bytes=40 * MB) for one in measurement.gpus if one.id == "cuda:0")
        return result(replace(measurement, gpus=tuple(gpus)))

    around.recording.result = later
    around.end()
    assert around.bytes() == kept.nbytes
    assert around.notes == [
        "The table of cuda:0 is of the time until the code ended: a thread went on, to 40 MB or more."
    ]


def test_recordings_that_overlap_in_two_threads_leave_nothing_in_torch(cuda, capfd):
    """What the thread that begins first adds, another one that ends last removes."""
    first, began, ended = PeakRecording(ram=False), threading.Event(), threading.Event()

    def second():
        one = PeakRecording(ram=False)
        one.begin()
        began.set()
        ended.wait()
        one.end()

    first.begin()
    thread = threading.Thread(target=second)
    thread.start()
    began.wait()
    first.end()
    ended.set()
    thread.join()
    assert "callback" not in capfd.readouterr().err
