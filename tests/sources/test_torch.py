"""torch's real caching allocator, on the simulated GPU: truth is known to the byte."""

import os
import subprocess
import sys
import textwrap
import threading

import pytest
import simgpu
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory import MB
from truth import gpu_of
from truth import measured as run

from ipygpulogger import measure
from ipygpulogger.engine.machine import Machine, machine
from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import Measurement
from ipygpulogger.sources import Unavailable
from ipygpulogger.sources.torch import state
from ipygpulogger.sources.torch.allocators import Torch

pytestmark = pytest.mark.torch

# Its memory functions are younger than torch 2.6; what is there must agree with torch.cuda's.
ACCELERATOR = torch.accelerator if hasattr(torch.accelerator, "max_memory_allocated") else torch.cuda


def tensor(size_bytes, device="cuda:0"):
    return torch.empty(size_bytes, dtype=torch.uint8, device=device)


@pytest.fixture
def fresh(cuda):
    """A machine of its own on the simulated devices, and torch's own functions afterwards."""
    fresh = Machine()
    yield fresh
    torch.cuda.reset_peak_memory_stats(0)
    torch.cuda.reset_peak_memory_stats(1)
    fresh.attach(fresh)
    fresh.detach(fresh)
    fresh.close()
    assert "wrapper" not in torch._C._cuda_memoryStats.__qualname__


programs = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), st.integers(1, 64)),
        st.tuples(st.just("free"), st.integers(0, 9)),
        st.tuples(st.just("open"), st.just(0)),
        st.tuples(st.just("close"), st.integers(0, 9)),
        st.tuples(st.just("empty_cache"), st.just(0)),
        st.tuples(st.just("user_reset"), st.booleans()),
        st.tuples(st.just("user_reads"), st.just(0)),
    ),
    max_size=25,
)


def play(program, on):  # noqa: C901 - one branch a step
    """Run a program; what the user read on the way, and each scope's usage beside the model's.

    Without a machine no scope is opened: this is what the user would have read without us.
    """
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    alive, open_ones, read, done = [], [], [], []
    story = [torch.cuda.memory_allocated()]

    def close(i):
        scope, began = open_ones.pop(i % len(open_ones))
        if on:
            scope.close()
            usage = gpu_of(scope.result(Measurement, ""))
            truth = story[began], story[-1], max(story[began:])
            done.append((usage, truth))

    for what, value in program:
        if what == "alloc":
            alive.append(tensor(value * MB))
            story.append(torch.cuda.memory_allocated())
        elif what == "free" and alive:
            alive.pop(value % len(alive))
            story.append(torch.cuda.memory_allocated())
        elif what == "open":
            open_ones.append((Scope(on).open() if on else None, len(story) - 1))
        elif what == "close" and open_ones:
            close(value)
        elif what == "empty_cache":
            torch.cuda.empty_cache()
        elif what == "user_reset":
            (ACCELERATOR if value else torch.cuda).reset_peak_memory_stats()
        else:
            read.append({k: v for k, v in torch.cuda.memory_stats().items() if "peak" in k or "current" in k})
            read.append(ACCELERATOR.max_memory_allocated())
            read.append(torch.cuda.max_memory_reserved())
    while open_ones:
        close(0)
    read.append({k: v for k, v in torch.cuda.memory_stats().items() if "peak" in k})
    return read, done


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(programs)
def test_random_programs_to_the_byte(fresh, program):
    """Allocate, free, nest, overlap, reset at random: each scope has the model's figures, and the user reads their own.

    Every peak and current figure that the user reads is what it would be without us.
    """
    without, _ = play(program, None)
    with_us, done = play(program, fresh)
    assert with_us == without
    for usage, (before, after, peak) in done:
        outside = usage.before_bytes - before
        assert usage.after_bytes - outside == after
        assert usage.peak.lo_bytes - outside == usage.peak.hi_bytes - outside == peak
        assert usage.peak.quality == "exact"


def test_no_miss_between_threads(fresh, restless):
    """Another thread's blips under a hail of resets: within the outer bounds, every time."""
    trials, go, done = 1500, threading.Semaphore(0), threading.Event()

    def blips():
        for _ in range(trials):
            go.acquire()
            tensor(32 * MB)
            done.set()

    thread = threading.Thread(target=blips, daemon=True)
    thread.start()
    tracker = None
    lost = 0
    for _ in range(trials):
        outer = Scope(fresh)
        outer.open()
        tracker = tracker or fresh.devices.by_device()[0][1][0]
        done.clear()
        go.release()
        while not done.is_set():
            tracker.close(tracker.open())
        outer.close()
        peak = gpu_of(outer.result(Measurement, "")).peak
        before = outer._device_scopes["cuda", 0].intervals[tracker].before_bytes()
        interval = outer._device_scopes["cuda", 0].intervals[tracker].peak()
        assert peak.lo_bytes <= peak.hi_bytes
        assert interval.hi_bytes >= before + 32 * MB, "a miss that is not flagged"
        lost += interval.lo_bytes < before + 32 * MB
        if interval.lo_bytes < before + 32 * MB:
            assert interval.quality == "bounded"
    thread.join()
    print(f"{lost} of {trials} blips were lost to the counter, each of them flagged")


def test_the_current_device_stays_the_users(fresh):
    """Asking about one device makes it nobody's current one, as some of torch's own questions do."""
    tensor(MB, "cuda:1")
    for current in (0, 1):
        with torch.cuda.device(current):
            run(fresh, lambda: tensor(MB))
            assert torch.cuda.current_device() == current
    assert torch.cuda.current_device() == 0


def test_what_torch_does_not_count_is_unknown(fresh, monkeypatch):
    """Statistics that an older torch has not: None, not 0, without an exception or a note."""
    own = torch._C._cuda_memoryStats

    def older(device):
        stats = own(device)
        stats.pop("reserved_bytes_by_private_pools", None)
        return stats

    assert gpu_of(run(fresh)).pools_bytes == (0 if "reserved_bytes_by_private_pools" in own(0) else None)
    monkeypatch.setattr(torch._C, "_cuda_memoryStats", older)
    monkeypatch.delattr(torch._C, "_cuda_hostMemoryStats", raising=False)
    monkeypatch.delattr(torch._C, "_cuda_getMemoryFraction", raising=False)
    on = Machine()
    result = run(on, lambda: tensor(10 * MB))
    on.close()
    assert (gpu_of(result).pools_bytes, gpu_of(result).limit_bytes, result.pinned) == (None, None, None)
    assert gpu_of(result).peaked_bytes == 10 * MB
    assert result.notes == ()
    torch.cuda.reset_peak_memory_stats()


def test_the_growth_between_two_stamps(cuda):
    """Every byte that was allocated, freed or not, and what was reserved for it; unknown once counts went down."""
    tensor(MB)
    torch.cuda.empty_cache()
    counter = Torch().counters()[0]
    earlier, reserved = counter.stamp(), torch.cuda.memory_reserved()
    kept = tensor(30 * MB)
    tensor(20 * MB)
    later = counter.stamp()
    assert counter.growth_bytes(earlier, later) == (50 * MB, torch.cuda.memory_reserved() - reserved)
    assert counter.growth_bytes(later, earlier) == (None, None)
    del kept


def test_without_its_cache_torch_counts_nothing(cuda, monkeypatch):
    """Its counters are unavailable, and the diagnosis says so, with a remedy."""
    tensor(MB)
    source = Torch()
    counter = source.counters()[0]
    assert source.diagnose().state == "exact"
    monkeypatch.setattr(state, "caches", lambda: False)
    with pytest.raises(Unavailable, match="switched off"):
        counter.observe()
    assert (source.diagnose().state, bool(source.diagnose().remedy)) == ("sampled", True)


def in_a_new_process(cuda, program, **env):
    env = {**os.environ, **simgpu.environment(cuda), **env}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


ASLEEP = {
    "measure() neither imports torch nor wakes CUDA where torch is imported": (
        """
        import sys
        with measure() as m: pass
        print('torch' in sys.modules, len(m.gpus))
        import torch
        with measure() as m: pass
        print(torch.cuda.is_initialized(), len(m.gpus))
        """,
        "False 0 False 0",
    ),
    "the context of a device first used within is a note of its own; consumed and peak are from zero": (
        """
        with measure() as outer:
            import torch
            torch.empty(300 * MB, dtype=torch.uint8, device='cuda')
            with measure() as inner:
                x = torch.empty(100 * MB, dtype=torch.uint8, device='cuda')
        for m in (inner, outer):
            (gpu,) = m.gpus
            print(gpu.consumed_bytes // MB, gpu.peaked_bytes // MB, gpu.peak.quality, gpu.context_bytes // MB)
        with measure() as m: pass
        print(m.gpus[0].before_bytes == gpu.after_bytes)
        """,
        "100 0 exact 0 100 200 exact 500 True",
    ),
    "a peak before the user's first reset is kept, and the user's own is theirs": (
        """
        import torch
        with measure() as m:
            torch.empty(300 * MB, dtype=torch.uint8, device='cuda')
            torch.cuda.reset_peak_memory_stats()
            torch.empty(10 * MB, dtype=torch.uint8, device='cuda')
        print(m.gpus[0].peaked_bytes // MB, torch.cuda.max_memory_allocated() // MB)
        """,
        "300 10",
    ),
}


@pytest.mark.parametrize("law", ASLEEP)
def test_torch_that_is_asleep_or_not_imported_yet(cuda, law):
    """What is measured in a process that wakes torch within a scope, or never."""
    program, told = ASLEEP[law]
    start = "from ipygpulogger import measure\nMB = 2**20\n"
    assert in_a_new_process(cuda, start + textwrap.dedent(program)) == told.split()


@pytest.mark.parametrize("sampled", [False, True])
def test_a_peak_reset_in_the_scope_that_imports_torch(cuda, sampled):
    """Our wrappers come too late for that reset: at least, never exact; with the sampler they come in time."""
    program = f"""
        from ipygpulogger import measure
        from ipygpulogger.engine.machine import machine
        MB = 2**20
        machine().sampler.start = lambda _: False  # it has its say below, or none
        with measure() as m:
            import torch
            if {sampled}:
                machine().sample()
            torch.empty(300 * MB, dtype=torch.uint8, device='cuda')
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            torch.empty(10 * MB, dtype=torch.uint8, device='cuda')
        peak = m.gpus[0].peak
        print(peak.quality, (peak.lo_bytes - m.gpus[0].after_bytes) // MB >= (300 if {sampled} else 10))
    """
    assert in_a_new_process(cuda, program) == ["exact" if sampled else "sampled", "True"]


def test_a_torch_that_does_not_wake_up(cuda):
    """Preloading says nothing of it and goes on; the user's own call has torch's error."""
    program = """
        import torch
        from ipygpulogger.engine.machine import machine
        torch.cuda._lazy_call(lambda: 1 / 0)
        machine().settling.preload()
        print(len(machine().take_notes()), 'torch' in [f.name for f in machine().frameworks])
        try: torch.empty(1, device='cuda')
        except torch.cuda.DeferredCudaCallError: print('said')
    """
    assert in_a_new_process(cuda, program) == ["0", "True", "said"]


def test_a_users_reset_that_outlives_the_last_scope(cuda):
    """A thread waits in our wrapper while the last scope ends: nothing is put on again."""
    own = torch._C._cuda_memoryStats, torch._C._cuda_resetPeakMemoryStats
    on = machine()
    with measure():
        tensor(64 * MB)
        user = threading.Thread(target=torch._C._cuda_resetPeakMemoryStats, args=(0,), daemon=True)
        on._lock.acquire()
        user.start()
        user.join(0.2)
        assert user.is_alive()  # it waits for the lock
    on._lock.release()
    user.join(30)
    assert (torch._C._cuda_memoryStats, torch._C._cuda_resetPeakMemoryStats) == own
    assert torch.cuda.max_memory_allocated() == 0


def test_without_resets_of_ram_torch_stays_exact(fresh):
    """reset_peaks=False is about the kernel's counter: torch's, which stays the user's, is still reset."""
    tensor(1000 * MB)
    usage = gpu_of(run(fresh, lambda: tensor(100 * MB), reset_peaks=False))
    assert usage.peaked_bytes == 100 * MB
    assert usage.peak.quality == "exact"


def test_a_forked_child_can_measure(cuda):
    """CUDA is lost in a forked child; general RAM is still measured there, and nothing hangs."""
    with measure():
        tensor(MB)
    pid = os.fork()
    if pid == 0:
        with measure() as m:
            pass
        os._exit(0 if m.gen.after_bytes and machine() else 1)
    assert os.waitpid(pid, 0)[1] == 0
