"""Checks of RAM, of children and of the clock: pages that are touched and given back, so the truth is known.

What else the truth takes is read from the kernel here, and not through the sources of the package.
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
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..blocks.measure import measure
from ..engine.machine import machine
from ..engine.scope import Scope
from ..records import Measurement
from ..records.units import MB, size_text
from ..runtime.errors import why
from ..sources.system.ram_limit import least
from .check import Check, Figure, Unchecked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Found = Iterator[Figure | Unchecked]
    Started = tuple[list[int], Callable[[], object]]  # the pids of a child and its helpers; what ends it

_UNIT_BYTES, _LEAST_UNIT_BYTES = 32 * MB, 8 * MB
_SHARE = 40  # of what is free a unit is one part at most, and at most four are in use at once
_MAPPED_BYTES = 33 * MB  # malloc serves no more from memory that it keeps (DEFAULT_MMAP_THRESHOLD_MAX)
_LEAST_NOISE_BYTES = max(64 * 2**10, 4 * mmap.PAGESIZE)  # a first read of a file's page brings neighbours
_MOST_NOISE_BYTES = MB // 2
_WAIT_S, _TURN_S = 0.1, 10  # what is timed; the most that a thread waits for the others
_SLEW = 5e-4  # how far NTP may let the clock that measures differ from the raw one
_ANONYMOUS = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
_PROGRAM = """import mmap, sys
block = mmap.mmap(-1, {size}, flags={flags})
block[::{page}] = bytes(len(range(0, {size}, {page})))
print(flush=True)
sys.stdin.read()"""


def _huge_pages_off(*value: int) -> int:
    """Return PR_GET_THP_DISABLE (42), or pass a value to PR_SET_THP_DISABLE (41)."""
    if sys.platform != "linux":
        return 0
    words = map(ctypes.c_ulong, (*(value or (0,)), 0, 0, 0))
    return int(ctypes.CDLL(None).prctl(41 if value else 42, *words))


_mask: Any = getattr(signal, "pthread_sigmask", lambda *_: set())  # not on Windows
_BLOCK, _SET = getattr(signal, "SIG_BLOCK", 0), getattr(signal, "SIG_SETMASK", 0)
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "gc.isenabled()": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "gc.get_threshold()": (gc.get_threshold, lambda found: gc.set_threshold(*found)),
    "PR_SET_THP_DISABLE": (_huge_pages_off, _huge_pages_off),
    "SIGINT": (partial(signal.getsignal, signal.SIGINT), partial(signal.signal, signal.SIGINT)),
    "blocked signals": (partial(_mask, _BLOCK, ()), partial(_mask, _SET)),
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


class _Bench(NamedTuple):
    """How much comes and goes, and how much else of this process may move meanwhile."""

    unit_bytes: int
    noise_bytes: int

    def around(self, lo_bytes: float, hi_bytes: float) -> tuple[float, float]:
        return lo_bytes - self.noise_bytes, hi_bytes + self.noise_bytes

    def block(self, units: int = 1) -> mmap.mmap:
        """Return memory of its own, of which every page is touched."""
        block = mmap.mmap(-1, units * self.unit_bytes, flags=_ANONYMOUS)
        block[:: mmap.PAGESIZE] = bytes(len(range(0, len(block), mmap.PAGESIZE)))
        return block

    def moment(self, units: int = 1) -> None:
        self.block(units).close()

    def figures(self, case: str, measured: Measurement | None, consumed: int, needed: int) -> Found:
        """Yield both figures of a measurement, beside the truth in units."""
        if measured is None:
            raise RuntimeError(f"{case}: it was not measured")
        for make, units in (Figure.consumed, consumed), (Figure.needed, needed):
            truth = self.around(units * self.unit_bytes, units * self.unit_bytes)
            yield make("RAM", case, truth, measured.gen)


def _kernel_bytes(name: str, *pids: int | str, file: str = "smaps_rollup") -> int:
    """Return one of the kernel's figures of processes, by their page tables unless another file is named."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/{file}").read_text().splitlines()]
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(name))


def _resident_bytes() -> int:
    try:
        return _kernel_bytes("Rss:", "self")
    except OSError:  # gVisor, and Linux before 4.14
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def _bench() -> _Bench | Unchecked:
    """Return how much may come and go; the noise is how far known amounts are off by the kernel's figures."""
    small, off = _Bench(MB, 0), list[int]()
    with measure():
        pass  # but what a first one loads
    try:
        for _ in range(8):
            before_bytes = _resident_bytes()
            block = small.block()
            off.append(abs(_resident_bytes() - before_bytes - MB))
            block.close()
            off.append(abs(_resident_bytes() - before_bytes))
    except OSError:
        return Unchecked("RAM", "all", "the truth is read from /proc, which only Linux has")
    noise_bytes = max(off[4:]) + _LEAST_NOISE_BYTES
    if noise_bytes > _MOST_NOISE_BYTES:
        return Unchecked("RAM", "all", f"other threads move this process's memory by {max(off[4:])} bytes")
    limit = least(machine().limits.all())
    left_bytes = limit.left_bytes if limit and limit.left_bytes is not None else _SHARE * _UNIT_BYTES
    unit_bytes = min(_UNIT_BYTES, left_bytes // _SHARE // MB * MB)
    if unit_bytes < _LEAST_UNIT_BYTES:
        return Unchecked("RAM", "all", f"only {size_text(left_bytes)} of RAM are left ({limit})")
    return _Bench(unit_bytes, noise_bytes)


def _run(name: str, case: Callable[[_Bench], Found]) -> Found:
    """Run a case without collections and huge pages, if there is enough memory."""
    before = settings()
    try:
        try:
            gc.collect()
            gc.disable()
            _huge_pages_off(1)
            bench = _bench()
            if isinstance(bench, Unchecked):
                yield bench._replace(where=name)
            else:
                with closing(case(bench)) as found:  # type: ignore[type-var]
                    yield from found
        finally:
            restore(before)
    finally:
        restore(before)  # a Ctrl-C may have cut the first one off


def _alone(bench: _Bench) -> Found:
    kept: Any = []
    large = bench._replace(unit_bytes=max(bench.unit_bytes, _MAPPED_BYTES))
    with measure() as m:
        bench.moment()
        mark_bytes = _kernel_bytes("VmHWM:", "self", file="status")
    if m.last and m.last.gen.peak.quality == "exact":  # else the mark may be of an earlier moment
        truth, peak = bench.around(mark_bytes, mark_bytes), m.last.gen.peak  # either is approximate
        bounds, precision = (peak.lo_bytes, peak.hi_bytes), peak.precision_bytes
        yield Figure("RAM", "for a moment", "highest", truth, *bounds, "exact", precision=precision)
    cases: dict[str, tuple[_Bench, int, int, Callable[[], object]]] = {
        "for a moment": (bench, 0, 1, bench.moment),
        "kept": (bench, 1, 1, lambda: kept.append(bench.block())),
        "kept, more for a moment": (bench, 1, 3, lambda: (kept.append(bench.block()), bench.moment(2))),
        "given back, taken for a moment": (bench, -1, 0, lambda: (kept.pop().close(), bench.moment())),
        "given back": (bench, -1, 0, lambda: kept.pop().close()),
        "reserved, never touched": (bench, 0, 0, lambda: mmap.mmap(-1, bench.unit_bytes, flags=_ANONYMOUS)),
        "bytearray for a moment": (large, 0, 1, lambda: len(bytearray(large.unit_bytes))),
        "bytearray kept": (large, 1, 1, lambda: kept.append(bytearray(large.unit_bytes))),
        "bytearray given back": (large, -1, 0, kept.clear),
    }
    for case, (of, consumed, needed, act) in cases.items():
        before_bytes = _resident_bytes()
        with measure() as m:
            act()
        used_bytes = _resident_bytes()
        if of is large and abs(used_bytes - before_bytes - consumed * of.unit_bytes) > of.noise_bytes:
            yield Unchecked("RAM", case, "this malloc keeps memory, so what a bytearray takes is not known")
            continue
        yield from of.figures(case, m.last, consumed, needed)
        if m.last and case == "kept":
            used, precision = m.last.gen.after_bytes, m.last.gen.precision_bytes
            truth = bench.around(used_bytes, used_bytes)
            yield Figure("RAM", case, "used", truth, used, used, "exact", precision=precision)


def _in_threads(bench: _Bench) -> Found:
    turn, (first, second, third) = threading.Barrier(3), (measure(), measure(), measure())

    def at_once(_: int) -> Measurement | None:
        with measure() as m:
            turn.wait(_TURN_S)
            block = bench.block()
            turn.wait(_TURN_S)
        turn.wait(_TURN_S)
        block.close()
        return m.last

    with ThreadPoolExecutor(3) as pool, ExitStack() as stack:
        stack.callback(turn.abort)
        list(pool.map(at_once, range(3)))  # new threads take their stacks
        with measure() as m:
            pool.submit(bench.moment).result()
        yield from bench.figures("for a moment, in a thread", m.last, 0, 1)
        first.__enter__()
        kept = bench.block()
        pool.submit(second.__enter__).result()
        pool.submit(bench.moment).result()
        first.__exit__()
        pool.submit(third.__enter__).result()
        bench.moment(2)
        pool.submit(second.__exit__).result()
        kept.close()
        pool.submit(third.__exit__).result()
        yield from bench.figures("overlapping, moments in threads", first.last, 1, 2)
        yield from bench.figures("overlapping, in a thread", second.last, 0, 2)
        yield from bench.figures("overlapping, in another thread", third.last, -1, 2)
        for i, measured in enumerate(pool.map(at_once, range(3)), 1):
            yield from bench.figures(f"all at once, thread {i}", measured, 3, 3)


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

    bench.moment(2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    scope = Scope(reset_peaks=False).open()
    bench.moment()
    scope.close()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    yield from bench.figures("reset_peaks=False", scope.result(Measurement, ""), 0, 1)
    yield Figure("RAM", "reset_peaks=False", "ru_maxrss", (before, before), after, after, "exact")


def _timed(_: _Bench) -> Found:
    def read() -> list[float]:  # two clocks, neither of which is the one that measures
        return [time.clock_gettime(clock) for clock in (time.CLOCK_MONOTONIC_RAW, time.CLOCK_BOOTTIME)]

    readings = [read()]
    with measure() as m:
        readings.append(read())
        threading.Event().wait(_WAIT_S)
        readings.append(read())
    pairs = list(zip(*readings, read(), strict=True))
    truth = (
        min(ended - began for _, began, ended, _ in pairs) * (1 - _SLEW),
        max(after - before for before, *_, after in pairs) * (1 + _SLEW),
    )
    yield Figure("time", "a wait, by two clocks", "time", truth, m.time_s, m.time_s, "exact", "s")


def _hold(bench: _Bench, parents_end: Any, parent: Any) -> None:
    parents_end.close()
    with suppress(OSError), closing(bench.block()):  # a Ctrl-C may have closed it already
        parent.send("ready")
        parent.poll(None)  # until its end is closed


def _worker(method: str, bench: _Bench, stack: ExitStack) -> Started:
    """Start a process of `multiprocessing`."""
    context: Any = multiprocessing.get_context(method)
    before, tracker = settings(), getattr(resource_tracker, "_resource_tracker")  # noqa: B009 - private
    is_new = method == "spawn" and tracker._fd is None  # that of its semaphores comes with the first one
    if is_new:
        stack.callback(tracker._stop)
    ours, theirs = context.Pipe()
    worker = context.Process(target=_hold, args=(bench, ours, theirs))
    stack.callback(lambda: (ours.close(), worker.pid and worker.join()))
    try:
        _mask(_BLOCK, [signal.SIGINT])  # a Ctrl-C is not for the child
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a fork beside other threads
            worker.start()
    finally:
        restore(before)
    theirs.close()
    ours.recv()
    return [worker.pid, *([tracker._pid] if is_new else ())], lambda: (ours.close(), worker.join())


def _program(bench: _Bench, stack: ExitStack) -> Started:
    """Start another program."""
    program = _PROGRAM.format(size=bench.unit_bytes, flags=_ANONYMOUS, page=mmap.PAGESIZE)
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
    child: Any = subprocess.Popen([sys.executable, "-I", "-S", "-c", program], **pipes)  # noqa: S603 - ours
    stack.enter_context(child)
    stack.callback(child.kill)
    child.stdout.readline()
    return [child.pid], child.communicate


def _children(where: str, name: str, start: Callable[[_Bench, ExitStack], Started], bench: _Bench) -> Found:
    """Check children that `start` makes: what they have is read under that name of the kernel's."""
    try:
        for case in "kept", "dead at the end":
            with ExitStack() as stack:
                with measure() as m:
                    pids, end = start(bench, stack)
                    before_bytes = after_bytes = _kernel_bytes(name, *pids)
                    if case != "kept":
                        after_bytes = _kernel_bytes(name, *pids)
                        end()
                if case == "kept":  # a page that this process wrote to meanwhile became the child's own
                    after_bytes = _kernel_bytes(name, *pids)
                truth = bench.around(before_bytes, after_bytes)
                children = m.last.children if m.last else None
                if children is None:  # a report without a word on them says that there was nothing
                    yield Figure(where, case, "needed", truth, 0, 0, "exact")
                    continue
                yield Figure.needed(where, case, truth, children)
                if case == "kept":
                    figure = Figure.consumed(where, case, truth, children)
                    yield replace(figure, hi=None, label="at least") if children.at_least else figure
    except OSError as error:  # gVisor, or what this user may not do
        yield Unchecked(where, "all", f"there is no child, or the truth is not readable: {why(error)}")


def _unchanged(before: dict[str, Any]) -> Found:
    with measure():  # and with what a scope leaves otherwise than it was
        pass
    changed = restore(before)
    case = ", ".join(changed) or "garbage collector, signals, pages"
    yield Figure("settings", case, "changed", (0, 0), len(changed), len(changed), "exact", "")


def checks() -> list[Check]:
    """Return the checks of RAM, of children and of the clock."""
    spawn = partial(_children, "child (spawn)", "Rss:", partial(_worker, "spawn"))
    cases: dict[str, Callable[[_Bench], Found]] = {
        "RAM that comes and goes": _alone,
        "RAM in threads": _in_threads,
        "RAM in nested blocks": _nested,
        "RAM without a reset of the peak": _without_reset,
        "the time of a block": _timed,
        "forked children": partial(_children, "child (fork)", "Private_", partial(_worker, "fork")),
        "another program": partial(_children, "child (another program)", "Rss:", _program),
        "spawned children": spawn,
    }
    found = [Check(name, partial(_run, name, case), case is not spawn) for name, case in cases.items()]
    return [*found, Check("the settings of this process", partial(_unchanged, settings()), is_quick=True)]
