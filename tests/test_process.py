"""General RAM against the kernel itself: blocks of known size, with and without a peak counter."""

import gc
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory import MB, Block, blip, held_transient

from ipygpulogger.peaks import PeakOwner
from ipygpulogger.sources import process as module
from ipygpulogger.sources.process import HighWaterMark, Process, RisingPeak
from ipygpulogger.watcher import RssWatcher

GRAIN = 2 * MB  # the promise: within 2 MB
needs_high_water = pytest.mark.skipif(
    not HighWaterMark.probe(), reason="the kernel's peak cannot be reset here"
)


def current():
    return psutil.Process().memory_info().rss


@needs_high_water
def test_transient_in_one_c_call():
    """A transient inside one C call that holds the GIL is seen within 2 MB, 20 of 20, with no thread."""
    owner = PeakOwner(HighWaterMark())
    for trial in range(20):
        size_mb = 24 + 17 * trial
        interval = owner.open()
        held_transient(size_mb)
        threads = threading.enumerate()
        owner.close(interval)
        extra = interval.peak().lo_bytes - interval.before_bytes()
        assert abs(extra - size_mb * MB) <= GRAIN
        assert interval.peak().quality == "exact"
        assert not [thread for thread in threads if "ipygpulogger" in thread.name]


programs = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), st.integers(1, 48)),
        st.tuples(st.just("free"), st.integers(0, 9)),
        st.tuples(st.just("blip"), st.integers(1, 48)),
        st.tuples(st.just("open"), st.booleans()),
        st.tuples(st.just("close"), st.integers(0, 9)),
    ),
    max_size=14,
)


@needs_high_water
@pytest.mark.usefixtures("frozen")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs)
def test_blocks_and_intervals_at_random(program):
    """Allocate, free, nest, overlap at random: every interval has the model's peak within 2 MB."""
    gc.collect()
    owner, blocks, open_ones = PeakOwner(HighWaterMark()), [], []
    story = [0]  # MB

    def close(i):
        interval, began = open_ones.pop(i % len(open_ones))
        owner.close(interval)
        before, truth = story[began], max(story[began:])
        peak = interval.peak()
        assert (peak.lo_bytes - interval.before_bytes()) / MB <= truth - before + 2
        assert (peak.hi_bytes - interval.before_bytes()) / MB >= truth - before - 2
        if peak.quality == "exact":
            assert abs((peak.lo_bytes - interval.before_bytes()) / MB - (truth - before)) <= 2

    try:
        for what, value in program:
            if what == "alloc":
                blocks.append(Block(value))
                story.append(story[-1] + value)
            elif what == "free" and blocks:
                block = blocks.pop(value % len(blocks))
                block.free()
                story.append(story[-1] - block.size_mb)
            elif what == "blip":
                blip(value)
                story += [story[-1] + value, story[-1]]
            elif what == "open":
                open_ones.append((owner.open(reset=value), len(story) - 1))
            elif what == "close" and open_ones:
                close(value)
        while open_ones:
            close(0)
    finally:
        [block.free() for block in blocks]


@needs_high_water
def test_no_miss_that_is_not_flagged(restless):
    """2500 blips of another thread under a hail of resets: within the outer bounds every time."""
    owner, go, done, size_mb = PeakOwner(HighWaterMark()), threading.Semaphore(0), threading.Event(), 4
    trials, lost = 2500, 0

    def blips():
        for _ in range(trials):
            go.acquire()
            blip(size_mb)
            done.set()

    thread = threading.Thread(target=blips)
    thread.start()
    for _ in range(trials):
        outer = owner.open()
        done.clear()
        go.release()
        while not done.is_set():
            owner.close(owner.open())
        owner.close(outer)
        peak, floor = outer.peak(), outer.before_bytes() + size_mb * MB - 1 * MB  # the kernel's grain
        assert peak.hi_bytes >= floor, "a miss that is not flagged"
        if peak.lo_bytes < floor:
            assert peak.quality == "bounded"
            lost += 1
    thread.join()
    print(f"{lost} of {trials} blips were lost to the counter, each of them flagged")


@needs_high_water
def test_a_blip_lost_between_reading_and_resetting_is_a_bound():
    """The certificate, with the blip placed exactly where it would be lost: never exact, always inside."""

    class Raced(HighWaterMark):
        armed = False

        def reset(self):
            if self.armed:
                thread = threading.Thread(target=blip, args=(32,))
                thread.start()
                thread.join()
            super().reset()

    counter = Raced()
    owner = PeakOwner(counter)
    for _ in range(50):
        outer = owner.open()
        counter.armed = True
        inner = owner.open()
        counter.armed = False
        owner.close(inner)
        owner.close(outer)
        assert outer.peak().quality == "bounded"
        assert outer.peak().hi_bytes - outer.before_bytes() >= 30 * MB
        assert inner.peak().hi_bytes - inner.before_bytes() <= GRAIN


@needs_high_water
def test_no_descriptor_stays_open():
    """Thousands of boundaries leave not one descriptor more."""
    owner = PeakOwner(HighWaterMark())
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(2000):
        owner.close(owner.open())
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@needs_high_water
def test_a_forked_child_leaves_the_parents_peak_alone():
    """A child that measures itself resets its own peak, never its parent's."""
    owner = PeakOwner(HighWaterMark())
    interval = owner.open()
    blip(64)
    pid = os.fork()
    if pid == 0:
        for _ in range(3):
            owner.close(owner.open())
        os._exit(0)
    os.waitpid(pid, 0)
    owner.close(interval)
    assert interval.peak().lo_bytes - interval.before_bytes() >= 62 * MB


def test_the_grain_follows_the_number_of_cpus(monkeypatch):
    """lib/percpu_counter.c: three counts, in batches of max(32, 2n) pages on each of n CPUs."""
    monkeypatch.setattr(module, "_PAGE_BYTES", 4096)
    for cpus, expected_mb in ((2, 0.75), (16, 6), (64, 96), (256, 1536)):
        monkeypatch.setattr(module.os, "cpu_count", lambda cpus=cpus: cpus)
        assert module._high_water_precision_bytes() == expected_mb * MB


def refuse(*_):
    raise PermissionError(13, "Permission denied")


def test_a_reset_that_is_not_offered(monkeypatch):
    """Where the kernel offers no reset the peak only rises, and that is said."""
    monkeypatch.setattr(module.os, "access", lambda *_: False)
    process = Process()
    assert process.counter.peak_class == "monotone"
    assert process.diagnose().state == "bounded"
    process.counter._watcher.close()


@needs_high_water
def test_a_refused_reset_is_noticed_by_trying(monkeypatch):
    """Offered but refused at the first trial: the peak only rises from then on, and that is said."""
    monkeypatch.setattr(module, "_reset_high_water", refuse)
    process = Process()
    owner = PeakOwner(process.counter)
    blip(40)
    interval = owner.open()
    blip(10)
    owner.close(interval)
    assert process.counter.peak_class == "monotone"
    assert process.diagnose().state == "bounded"
    assert interval.peak().quality == "bounded"
    assert interval.peak().hi_bytes - interval.before_bytes() >= 38 * MB


def test_without_any_counter_it_samples(monkeypatch):
    """Where the kernel shows no high-water mark (gVisor) what is seen is "at least", and that is said."""
    monkeypatch.setattr(module, "_reset_high_water", refuse)
    monkeypatch.setattr(module, "_resident_bytes", lambda: b"".index(b"VmHWM:"))
    process = Process()
    assert process.counter.peak_class == "sampled"
    assert process.diagnose().state == "sampled"


def rising(watcher=None):
    return RisingPeak(current, lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, watcher)


RISING = """
    import sys; sys.path[:0] = {paths!r}
    from test_process import rising, MB, Block, blip
    from ipygpulogger.peaks import PeakOwner
    owner = PeakOwner(rising())
    blip(200)
    low = owner.open(); blip(50); owner.close(low)
    high = owner.open(); blip(400); owner.close(high)
    for one in (low, high):
        peak = one.peak()
        print(peak.quality, round((peak.lo_bytes - one.before_bytes()) / MB), round((peak.hi_bytes - one.before_bytes()) / MB))
"""


def test_a_rising_peak_is_exact_only_on_a_record():
    """Below the old record: bounded by it; above: exact. In a process of its own, whose record is known."""
    program = textwrap.dedent(RISING.format(paths=[str(Path(__file__).parent)]))
    # A child begins with the record of who started it (exec keeps it): a shell's is small, ours is not.
    words = ["sh", "-c", '"$0" -c "$1"; true', sys.executable, program]
    lines = subprocess.check_output(words, text=True).splitlines()
    quality, lo, hi = lines[0].split()
    assert quality == "bounded"
    assert int(lo) <= 52
    assert 148 <= int(hi) <= 252
    quality, lo, hi = lines[1].split()
    assert quality == "exact"
    assert abs(int(lo) - 400) <= 2


@pytest.fixture
def watcher():
    watcher = RssWatcher()
    yield watcher
    watcher.close()


def held(owner, size_mb):
    """What an interval says of a block held until the sampling process must have seen it."""
    interval = owner.open()
    block = Block(size_mb)
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        owner.fold(interval)
        if interval.peak().lo_bytes - interval.before_bytes() >= (size_mb - 2) * MB:
            break
        time.sleep(0.001)
    block.free()
    owner.close(interval)
    return interval.peak().lo_bytes - interval.before_bytes()


def test_the_sampling_process_sees_what_a_c_call_hides(watcher):
    """A transient in one C call that holds the GIL is seen from outside, as "at least"."""
    owner = PeakOwner(RisingPeak(current, None, watcher))
    owner.close(owner.open())  # the process is up
    best = 0
    for _ in range(10):
        interval = owner.open()
        held_transient(512)
        owner.close(interval)
        assert interval.peak().quality == "sampled"
        assert interval.peak().lo_bytes - interval.before_bytes() <= 512 * MB + GRAIN
        best = max(best, interval.peak().lo_bytes - interval.before_bytes())
    assert best >= 256 * MB


def test_the_sampling_process_sleeps_between_scopes(watcher):
    """It uses no processor while nobody measures."""
    owner = PeakOwner(RisingPeak(current, None, watcher))
    held(owner, 16)
    sampler = psutil.Process(watcher.pid)
    deadline_s = time.monotonic() + 10
    while sampler.status() != psutil.STATUS_SLEEPING and time.monotonic() < deadline_s:
        time.sleep(0.01)
    time.sleep(0.05)
    before = sampler.cpu_times()
    switches = sampler.num_ctx_switches()
    time.sleep(0.3)
    assert sampler.num_ctx_switches() == switches
    assert sampler.cpu_times() == before


def test_the_sampling_process_is_restarted_if_killed(watcher):
    """Killed in the middle, it is back for the next scope, and nobody waits for it."""
    owner = PeakOwner(RisingPeak(current, None, watcher))
    assert held(owner, 24) >= 22 * MB
    interval = owner.open()
    os.kill(watcher.pid, signal.SIGKILL)
    watcher._child.wait()
    owner.close(interval)
    assert held(owner, 24) >= 22 * MB


def test_the_sampling_process_ignores_interrupts_and_ends_with_us():
    """SIGINT does not stop it; the end of its parent does."""
    program = textwrap.dedent(
        """
        import os, signal, time
        from ipygpulogger.watcher import RssWatcher
        watcher = RssWatcher(); watcher.watch(on=True)
        while not watcher.highest_bytes(): time.sleep(0.001)
        os.kill(watcher.pid, signal.SIGINT)
        while not watcher.highest_bytes(): time.sleep(0.001)
        print(watcher.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    deadline_s = time.monotonic() + 20
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline_s, "the sampling process outlived its parent"
        time.sleep(0.01)


def test_what_malloc_keeps_is_told_apart():
    """Freed heap that stays resident is counted as kept, not as in use."""
    process = Process()
    if process.heap() is None:
        pytest.skip("this libc does not tell (glibc before 2.33, musl, ...)")
    program = textwrap.dedent(
        """
        import ctypes
        from ipygpulogger.sources.process import Process
        process, libc = Process(), ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        a = process.heap()
        blocks = [libc.malloc(1000) for _ in range(100_000)]
        b = process.heap()
        for block in blocks[:-1]: libc.free(ctypes.c_void_p(block))
        c = process.heap()
        print(b.in_use_bytes - a.in_use_bytes, c.in_use_bytes - a.in_use_bytes, c.kept_bytes - a.kept_bytes)
        """
    )
    used, left, kept = map(int, subprocess.check_output([sys.executable, "-c", program], text=True).split())
    assert 95 * MB <= used <= 102 * MB + 8 * MB  # with the Python list of pointers
    assert left <= 8 * MB
    assert kept >= 90 * MB


def child(pipe):
    blip(48)
    block = Block(32)
    pipe.send(os.getpid())
    pipe.recv()
    block.free()


@pytest.mark.skipif(Process().children(lambda: 0) is None, reason="this kernel does not list children")
def test_children_and_grandchildren_are_found():
    """Every descendant with its resident memory and its own peak; those that ended are gone."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=child, args=(theirs,))
    process.start()
    pid = ours.recv()
    own, peak, _ = Process().children(lambda: 0)[pid]
    assert own >= 32 * MB
    assert peak - own >= 14 * MB  # it peaked at 48
    ours.send("end")
    process.join()
    assert pid not in Process().children(lambda: 0)


@needs_high_water
def test_a_look_without_faults_is_short_and_the_same(monkeypatch):
    """Where no page fault came since the last look, the shorter file tells what the longer one would."""
    counter = HighWaterMark()
    kept = Block(24)
    stamp = module._fault_stamp()
    monkeypatch.setattr(module, "_fault_stamp", lambda: stamp)
    first = counter.look().readings[0]
    kept.free()
    fallen = counter.look().readings[0]
    assert fallen.current_bytes == pytest.approx(module._resident_bytes()[0], abs=MB)
    assert first.current_bytes - fallen.current_bytes == pytest.approx(24 * MB, abs=MB)
    assert fallen.peak_bytes == first.peak_bytes  # no reset came between
    counter.reset()
    assert counter.look().readings[0].peak_bytes == fallen.current_bytes
    monkeypatch.undo()
    blip(32)
    assert counter.look().readings[0].peak_bytes - fallen.current_bytes == pytest.approx(32 * MB, abs=MB)
