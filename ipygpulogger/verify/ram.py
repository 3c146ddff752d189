"""Checks of RAM, of children and of the clock: pages that are touched and given back, so the truth is known.

What else the truth takes is read from the kernel here, and not through the sources of the package.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..blocks.measure import measure
from ..engine.machine import machine
from ..engine.scope import Scope
from ..records import Measurement, RamUsage
from ..records.units import MB, size_text
from ..runtime.errors import why
from ..sources.system.ram_limit import least
from .check import Check, Figure, Found, Memory, Unchecked, figures, in_a_thread

_UNIT_BYTES, _LEAST_UNIT_BYTES = 32 * MB, 8 * MB
_SHARE = 60  # of what is free a unit is one part at most, and at most six are in use at once
_WAIT_S = 0.1


class Ram(Memory):
    """Memory of this process; what the interpreter itself takes and gives back meanwhile is the slack."""

    id: str = "RAM"
    slack_bytes: int = max(MB // 4, 8 * mmap.PAGESIZE)

    def __init__(self, unit_bytes: int) -> None:
        self.unit_bytes = unit_bytes

    def take(self, size_bytes: int) -> mmap.mmap:
        """Return memory of its own, of which every page is touched."""
        block = mmap.mmap(-1, size_bytes or 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages = range(0, size_bytes, mmap.PAGESIZE)
        block[: size_bytes : mmap.PAGESIZE] = bytes(len(pages))
        return block

    def held_bytes(self, size_bytes: int) -> int:
        """Return so many bytes in whole pages."""
        return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE

    def used_bytes(self) -> int:
        """Return what is resident, by the page tables if they are told."""
        try:
            return _kernel_bytes("Rss:", "self")
        except OSError:  # gVisor, and Linux before 4.14
            return int(Path("/proc/self/statm").read_bytes().split()[1]) * mmap.PAGESIZE

    def usage(self, scope: Scope) -> RamUsage:
        """Return the figures of a scope."""
        return scope.result(Measurement, "").gen


def _kernel_bytes(name: str, pid: int | str) -> int:
    """Return one of the kernel's figures of a process, by its page tables."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(name))


def _amounts(ram: Ram) -> Iterator[Found]:
    unit, more = ram.unit_bytes, "kept, more for a moment"
    return ram.amounts([("for a moment", 0, unit), ("kept", unit, 0), (more, unit, 3 * unit)])


def _scopes(ram: Ram) -> Iterator[Found]:
    yield from ram.play("scopes", ram.nested())
    yield from ram.play("in threads", ram.nested(), in_a_thread)


def _without_reset(ram: Ram) -> Iterator[Found]:
    import resource  # not on Windows

    ram.take(2 * ram.unit_bytes)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    steps = ("open", "a scope"), ("moment", ram.unit_bytes), ("close", "a scope")
    yield from ram.play("reset_peaks=False", steps, reset_peaks=False)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    yield Figure("RAM", "reset_peaks=False", "ru_maxrss", (before, before), after, after, "exact")


def _timed(_: Ram) -> Iterator[Found]:
    read = partial(time.clock_gettime, time.CLOCK_BOOTTIME)  # another one than that which measures
    before = read()
    with measure() as m:
        began = read()
        time.sleep(_WAIT_S)
        ended = read()
    truth = ended - began, read() - before
    yield Figure("time", "a wait, by another clock", "time", truth, m.time_s, m.time_s, "exact", "s")


@contextmanager
def _forked(ram: Ram) -> Iterator[int]:
    """Fork a child that holds memory until the end of the context."""
    ours, theirs = socket.socketpair()  # a Ctrl-C waits until its end, and is not for the child
    masked, pid = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]), 0
    try:
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                block = ram.take(ram.unit_bytes)
                theirs.send(b".")
                theirs.recv(1)  # until the other end is closed
                del block
            finally:
                os._exit(0)
        theirs.close()
        ours.recv(1)
        yield pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        ours.close()
        if pid:
            os.waitpid(pid, 0)


@contextmanager
def _spawned(ram: Ram) -> Iterator[int]:
    """Start another interpreter, as `multiprocessing` spawns them; a Ctrl-C is not for it."""
    program = f"block = bytearray({ram.unit_bytes}); print(flush=True); input()"
    pipe = subprocess.PIPE
    command = [sys.executable, "-I", "-S", "-c", program]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as child:  # noqa: S603
        try:
            child.stdout.readline()  # type: ignore[union-attr]
            yield child.pid
        finally:
            child.kill()


def _children(
    where: str, name: str, start: Callable[[Ram], AbstractContextManager[int]], ram: Ram
) -> Iterator[Found]:
    """Check children that `start` makes: what they have is read under that name of the kernel's."""
    try:
        for case in "kept", "dead at the end":
            with ExitStack() as stack:
                with measure() as m:
                    pid = stack.enter_context(start(ram))
                    before_bytes = after_bytes = _kernel_bytes(name, pid)
                    if case != "kept":
                        stack.close()
                if case == "kept":  # a page that this process wrote to meanwhile became the child's own
                    after_bytes = _kernel_bytes(name, pid)
            truth = before_bytes - ram.slack_bytes, after_bytes + ram.slack_bytes
            children = m.last.children if m.last else None
            if children is not None:
                consumed, needed = figures(where, case, children, truth, truth)
                yield needed
                if case == "kept" and isinstance(consumed, Figure):
                    yield replace(consumed, hi=None, label="at least") if children.at_least else consumed
            elif case != "kept" and start is _spawned:  # nobody looked while it lived
                yield Figure(where, case, "needed", truth, 0, None, "at least")
            else:  # a report without a word on them says that there was nothing
                yield Figure(where, case, "needed", truth, 0, 0, "exact")
    except OSError as error:  # gVisor, or what this user may not do
        yield Unchecked(where, "all", f"there is no child, or the truth is not readable: {why(error)}")


def _settings(_: Ram) -> Iterator[Found]:
    gc.enable()
    with measure():
        pass
    on = gc.isenabled()
    yield Figure("settings", "after a block", "gc.isenabled()", (1, 1), on, on, "exact", "")


_CASES: dict[str, Callable[[Ram], Iterator[Found]]] = {
    "RAM that comes and goes": _amounts,
    "RAM in nested scopes and threads": _scopes,
    "RAM without a reset of the peak": _without_reset,
    "the time of a block": _timed,
    "forked children": partial(_children, "child (fork)", "Private_", _forked),
    "spawned children": partial(_children, "child (spawn)", "Rss:", _spawned),
    "the settings of this process": _settings,
}


def checks() -> list[Check]:
    """Return the checks of RAM, of children and of the clock."""
    limit = least(machine().limits.all())
    left_bytes = limit.left_bytes if limit and limit.left_bytes is not None else _SHARE * _UNIT_BYTES
    ram, reason = Ram(min(_UNIT_BYTES, left_bytes // _SHARE // MB * MB)), ""
    if not Path("/proc/self/statm").exists():
        reason = "the truth is read from /proc, which only Linux has"
    elif ram.unit_bytes < _LEAST_UNIT_BYTES:
        reason = f"only {size_text(left_bytes)} of RAM are left ({limit})"
    if reason:
        return [Check("RAM", lambda: iter([Unchecked("RAM", "all", reason)]))]
    list(ram.play("", ram.nested(), in_a_thread))  # what a first scope and a first thread load
    return [Check(name, partial(case, ram)) for name, case in _CASES.items()]
