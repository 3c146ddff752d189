"""Checks of RAM, of children and of the clock: pages that are touched and given back, so the truth is known.

What else is needed of the truth is read from the kernel here, and not through the sources of the package.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import multiprocessing
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..blocks.measure import measure
from ..engine.machine import machine
from ..engine.scope import Scope
from ..records import Measurement
from ..records.units import MB, size_text
from ..sources.system.ram_limit import least
from .check import Check, Figure, Unchecked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Found = Iterator[Figure | Unchecked]

RAM = "RAM"
_UNIT_BYTES, _LEAST_UNIT_BYTES = 32 * MB, 8 * MB
_SHARE = 40  # of what is free a unit is one part at most, and at most four are in use at once
_MAPPED_BYTES = 33 * MB  # malloc serves no more from memory that it keeps (DEFAULT_MMAP_THRESHOLD_MAX)
_FAULT_AROUND_BYTES = 64 * 2**10  # the first read of a page of a file brings its neighbours
_MOST_NOISE_BYTES = MB // 2
_WAIT_S, _TURN_S = 0.1, 10  # what is timed; the most that a thread waits for the others
_SLEW = 5e-4  # how far NTP may let the clock that measures differ from the raw one
_SET_THP, _GET_THP = 41, 42  # prctl(2): PR_SET_THP_DISABLE, PR_GET_THP_DISABLE
_ANONYMOUS = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)


# -- what checks change for a while ------------------------------------------------------------------------


def _huge_pages_off(value: int | None = None) -> int:
    if sys.platform != "linux":
        return 0
    prctl = ctypes.CDLL(None).prctl
    return int(prctl(_GET_THP, 0, 0, 0, 0) if value is None else prctl(_SET_THP, value, 0, 0, 0))


def _blocked(signals: Any = None) -> Any:
    if not hasattr(signal, "pthread_sigmask"):
        return ()
    how, given = (signal.SIG_BLOCK, ()) if signals is None else (signal.SIG_SETMASK, signals)
    return signal.pthread_sigmask(how, given)


_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "gc.isenabled()": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "gc.get_threshold()": (gc.get_threshold, lambda found: gc.set_threshold(*found)),
    "PR_SET_THP_DISABLE": (_huge_pages_off, _huge_pages_off),
    "SIGINT": (partial(signal.getsignal, signal.SIGINT), partial(signal.signal, signal.SIGINT)),
    "blocked signals": (_blocked, _blocked),
}


def settings() -> dict[str, Any]:
    """Return what checks change for a while, as it is now."""
    return {name: read() for name, (read, _) in _SETTINGS.items()}


def restore(before: dict[str, Any]) -> list[str]:
    """Set it as it was, and return the names of what differed."""
    changed = [name for name, value in settings().items() if value != before[name]]
    for name in changed:
        _SETTINGS[name][1](before[name])
    return changed


# -- known amounts -----------------------------------------------------------------------------------------


class _Bench(NamedTuple):
    """How much comes and goes, and how much else of this process may move meanwhile."""

    unit_bytes: int
    noise_bytes: int

    def around(self, lo_bytes: float, hi_bytes: float) -> tuple[float, float]:
        return lo_bytes - self.noise_bytes, hi_bytes + self.noise_bytes

    def block(self, units: int = 1) -> mmap.mmap:
        """Return memory of its own, of which every page is touched."""
        return _touched(units * self.unit_bytes)

    def moment(self, units: int = 1) -> None:
        self.block(units).close()

    def figures(self, case: str, measured: Measurement | None, consumed: int, needed: int) -> Found:
        """Yield both figures of a measurement, beside the truth in units."""
        if measured is None:
            raise RuntimeError(f"{case}: it was not measured")
        for make, units in (Figure.consumed, consumed), (Figure.needed, needed):
            yield make(RAM, case, self.around(units * self.unit_bytes, units * self.unit_bytes), measured.gen)


def _touched(size_bytes: int) -> mmap.mmap:
    block = mmap.mmap(-1, size_bytes, flags=_ANONYMOUS)
    block[:: mmap.PAGESIZE] = bytes(len(range(0, size_bytes, mmap.PAGESIZE)))
    return block


def _kernel_bytes(name: str, pid: int | str = "self", file: str = "smaps_rollup") -> int:
    """Return one of the kernel's figures of a process, by its page tables unless another file is named."""
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(name))


def _resident_bytes() -> int:
    try:
        return _kernel_bytes("Rss:")
    except OSError:  # gVisor, and Linux before 4.14
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def _noise_bytes() -> int:
    """Return how far this process's memory is off a known amount that comes and goes, without us."""
    off = []
    for _ in range(8):
        before_bytes = _resident_bytes()
        block = _touched(MB)
        off.append(abs(_resident_bytes() - before_bytes - MB))
        block.close()
        off.append(abs(_resident_bytes() - before_bytes))
    return max(off[4:]) + _FAULT_AROUND_BYTES  # the first ones load what they need


def _bench() -> _Bench | Unchecked:
    try:
        with _measured([]):  # what a first scope loads
            noise_bytes = _noise_bytes()
    except OSError:
        return Unchecked(RAM, "all", "the truth is read from /proc, which only Linux has")
    if noise_bytes > _MOST_NOISE_BYTES:
        return Unchecked(RAM, "all", f"other threads move this process's memory by {noise_bytes / MB:.1f} MB")
    limit = least(machine().limits.all())
    left_bytes = limit.left_bytes if limit and limit.left_bytes is not None else _SHARE * _UNIT_BYTES
    unit_bytes = min(_UNIT_BYTES, left_bytes // _SHARE // MB * MB)
    if unit_bytes < _LEAST_UNIT_BYTES:
        return Unchecked(RAM, "all", f"only {size_text(left_bytes)} of RAM are left ({limit})")
    return _Bench(unit_bytes, noise_bytes)


def _run(case: Callable[[_Bench], Found]) -> Found:
    """Run a case without collections and huge pages, if there is enough memory."""
    before = settings()
    try:
        gc.collect()
        gc.disable()
        _huge_pages_off(1)
        bench = _bench()
        if isinstance(bench, Unchecked):
            yield bench
        else:
            with closing(case(bench)) as found:  # type: ignore[type-var]
                yield from found
    finally:
        restore(before)


@contextmanager
def _measured(into: list[Measurement], **options: Any) -> Iterator[None]:
    scope = Scope(**options)
    try:
        scope.open()
        yield
    finally:
        scope.close()
    into.append(scope.result(Measurement, "verify"))


# -- this process ------------------------------------------------------------------------------------------


def _alone(bench: _Bench) -> Found:
    found, kept = list[Measurement](), list[Any]()
    large = bench._replace(unit_bytes=max(bench.unit_bytes, _MAPPED_BYTES))
    with _measured(found):
        bench.moment()
        mark_bytes = _kernel_bytes("VmHWM:", file="status")
    peak = found[0].gen.peak
    if peak.quality == "exact":  # else the mark may be of an earlier moment
        truth = bench.around(mark_bytes, mark_bytes)
        yield Figure(RAM, "for a moment", "highest", truth, peak.lo_bytes, peak.hi_bytes, "exact")
    cases: dict[str, tuple[_Bench, int, int, Callable[[], object]]] = {
        "for a moment": (bench, 0, 1, bench.moment),
        "kept": (bench, 1, 1, lambda: kept.append(bench.block())),
        "kept, more for a moment": (bench, 1, 3, lambda: [kept.append(bench.block()), bench.moment(2)]),
        "given back, taken for a moment": (bench, -1, 0, lambda: [kept.pop().close(), bench.moment()]),
        "given back": (bench, -1, 0, lambda: kept.pop().close()),
        "reserved, never touched": (bench, 0, 0, lambda: mmap.mmap(-1, bench.unit_bytes, flags=_ANONYMOUS)),
        "bytearray for a moment": (large, 0, 1, lambda: len(bytearray(large.unit_bytes))),
        "bytearray kept": (large, 1, 1, lambda: kept.append(bytearray(large.unit_bytes))),
        "bytearray given back": (large, -1, 0, kept.clear),
    }
    for case, (of, consumed, needed, act) in cases.items():
        with _measured(found):
            act()
        used_bytes, gen = _resident_bytes(), found[-1].gen
        yield from of.figures(case, found[-1], consumed, needed)
        truth, used, precision = bench.around(used_bytes, used_bytes), gen.after_bytes, gen.precision_bytes
        yield Figure(RAM, case, "used", truth, used, used, "exact", precision=precision)


def _in_threads(bench: _Bench) -> Found:
    found, turn = list[Measurement](), threading.Barrier(3)
    scopes = [Scope(), Scope(), Scope()]

    def close(i: int) -> Measurement:
        scopes[i].close()
        return scopes[i].result(Measurement, "verify")

    def at_once() -> Measurement:
        mine: list[Measurement] = []
        with _measured(mine):
            turn.wait(_TURN_S)
            block = bench.block()
            turn.wait(_TURN_S)
        turn.wait(_TURN_S)
        block.close()
        return mine[0]

    with ExitStack() as stack:
        threads = first, second, third = [stack.enter_context(ThreadPoolExecutor(1)) for _ in scopes]
        stack.callback(turn.abort)
        for thread in threads:
            thread.submit(bench.moment).result()  # a new thread takes a stack
        with _measured(found):
            first.submit(bench.moment).result()
        yield from bench.figures("for a moment, in a thread", found[0], 0, 1)
        stack.callback(lambda: [scope.close() for scope in scopes])
        first.submit(scopes[0].open).result()
        kept = first.submit(bench.block).result()
        second.submit(scopes[1].open).result()
        second.submit(bench.moment).result()
        yield from bench.figures("overlapping, first thread", first.submit(close, 0).result(), 1, 2)
        third.submit(scopes[2].open).result()
        third.submit(bench.moment, 2).result()
        yield from bench.figures("overlapping, second thread", second.submit(close, 1).result(), 0, 2)
        kept.close()
        yield from bench.figures("overlapping, third thread", third.submit(close, 2).result(), -1, 2)
        for i, done in enumerate([thread.submit(at_once) for thread in threads], 1):
            yield from bench.figures(f"all at once, thread {i}", done.result(), 3, 3)


def _nested(bench: _Bench) -> Found:
    with measure() as outer:
        bench.moment(3)
        with measure() as inner:
            kept = bench.block()
            with measure() as innermost:
                bench.moment()
        kept.close()
    yield from bench.figures("nested, the outer block", outer.last, 0, 3)
    yield from bench.figures("nested, the inner block", inner.last, 1, 2)
    yield from bench.figures("nested, the innermost block", innermost.last, 0, 1)


def _without_reset(bench: _Bench) -> Found:
    import resource  # not on Windows

    case, found = "reset_peaks=False", list[Measurement]()
    bench.moment(2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with _measured(found, reset_peaks=False):
        bench.moment()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    yield from bench.figures(case, found[0], 0, 1)
    yield Figure(RAM, case, "ru_maxrss", (before, before), after, after, "exact")


def _timed(_: _Bench) -> Found:
    def read() -> list[float]:  # two clocks, neither of which is the one that measures
        return [time.clock_gettime(clock) for clock in (time.CLOCK_MONOTONIC_RAW, time.CLOCK_BOOTTIME)]

    found, before_s = list[Measurement](), read()
    with _measured(found):
        began_s = read()
        threading.Event().wait(_WAIT_S)
        ended_s = read()
    after_s, time_s = read(), found[0].time_s
    least_s = min(late - early for early, late in zip(began_s, ended_s, strict=True)) * (1 - _SLEW)
    most_s = max(late - early for early, late in zip(before_s, after_s, strict=True)) * (1 + _SLEW)
    yield Figure("time", "a wait, by two clocks", "time", (least_s, most_s), time_s, time_s, "exact", "s")


# -- children ----------------------------------------------------------------------------------------------


def _hold(size_bytes: int, parents_end: Any, parent: Any) -> None:
    parents_end.close()
    block = _touched(size_bytes)
    parent.send("ready")
    parent.poll(None)  # until its end is closed
    block.close()


def _worker(method: str, size_bytes: int, stack: ExitStack) -> tuple[list[int], Callable[[], object]]:
    """Start a process of `multiprocessing`; return the pids of all that came, and what ends it."""
    tracker: Any = resource_tracker._resource_tracker  # type: ignore[attr-defined]
    is_new = method == "spawn" and tracker._fd is None  # that of its semaphores comes with the first one
    if is_new:
        stack.callback(tracker._stop)
    context, before = multiprocessing.get_context(method), settings()
    ours, theirs = context.Pipe()
    worker = context.Process(target=_hold, args=(size_bytes, ours, theirs))  # type: ignore[attr-defined]
    stack.callback(lambda: [ours.close(), worker.pid and worker.join()])
    try:
        _blocked({*_blocked(), signal.SIGINT})  # a Ctrl-C is not for the child
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a fork beside other threads
            worker.start()
    finally:
        restore(before)
    theirs.close()
    ours.recv()
    return [worker.pid, *([tracker._pid] if is_new else ())], lambda: [ours.close(), worker.join()]


_PROGRAM = """import mmap, sys
block = mmap.mmap(-1, {size}, flags={flags})
block[::{page}] = bytes(len(range(0, {size}, {page})))
print(flush=True)
sys.stdin.read()"""


def _program(size_bytes: int, stack: ExitStack) -> tuple[list[int], Callable[[], object]]:
    program = _PROGRAM.format(size=size_bytes, flags=_ANONYMOUS, page=mmap.PAGESIZE)
    pipe: Any = subprocess.PIPE
    words = [sys.executable, "-I", "-S", "-c", program]
    child = stack.enter_context(subprocess.Popen(words, stdin=pipe, stdout=pipe, start_new_session=True))  # noqa: S603 - ours
    stack.callback(child.kill)
    assert child.stdout
    child.stdout.readline()
    return [child.pid], child.communicate


def _children(
    where: str, name: str, start: Callable[..., tuple[list[int], Callable[[], object]]], bench: _Bench
) -> Found:
    """Check children that `start` makes: what they have is read under that name of the kernel's."""
    if not Path("/proc/self/smaps_rollup").exists():
        yield Unchecked(where, "all", "the truth is read from /proc/PID/smaps_rollup, which is not there")
        return

    def read(pids: list[int]) -> int:
        return sum(_kernel_bytes(name, pid) for pid in pids)

    for case in "kept", "dead at the end":
        with ExitStack() as stack:
            found: list[Measurement] = []
            with _measured(found):
                pids, end = start(bench.unit_bytes, stack)
                before_bytes = after_bytes = read(pids)
                if case != "kept":
                    after_bytes = read(pids)
                    end()
            if case == "kept":  # a page that this process wrote to meanwhile became the child's own
                after_bytes = read(pids)
            truth, children = bench.around(before_bytes, after_bytes), found[0].children
            if children is None:  # a report without a word on them says that there was nothing
                yield Figure(where, case, "needed", truth, 0, 0, "exact")
                continue
            yield Figure.needed(where, case, truth, children)
            if case == "kept" and not children.at_least:
                yield Figure.consumed(where, case, truth, children)


_fork, _spawn = partial(_worker, "fork"), partial(_worker, "spawn")


def _unchanged(before: dict[str, Any]) -> Found:
    changed = restore(before)
    case = ", ".join(changed) or "garbage collector, signals, pages"
    yield Figure("settings", case, "changed", (0, 0), len(changed), len(changed), "exact", "")


def checks() -> list[Check]:
    """Return the checks of RAM, of children and of the clock."""
    before, fork = settings(), partial(_children, "child (fork)", "Private_", _fork)
    program = partial(_children, "child (another program)", "Rss:", _program)
    spawn = partial(_children, "child (spawn)", "Rss:", _spawn)
    cases: dict[str, Callable[[_Bench], Found]] = {
        "RAM that comes and goes": _alone,
        "RAM in threads": _in_threads,
        "RAM in nested blocks": _nested,
        "RAM without a reset of the peak": _without_reset,
        "the time of a block": _timed,
        "RAM of forked children": fork,
        "RAM of another program": program,
        "RAM of spawned children": spawn,
    }
    found = [Check(name, partial(_run, case), case is not spawn) for name, case in cases.items()]
    return [*found, Check("the settings of this process", partial(_unchanged, before), is_quick=True)]
