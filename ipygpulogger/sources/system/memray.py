"""Each allocation of general RAM, with the line that asked for it, as memray's tracker has them.

memray allows one tracker per process. All recordings share it: it starts with the first and stops with the
last. A recording that began later, or ends earlier, is a part of its events. Two allocations of a known size,
made by a function of this file, mark where the part begins and ends.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from ..contract import Unavailable
from . import memray_tracker as shared
from .memray_tracker import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memray import AllocationRecord as Event

    from .memray_tracker import Run

# The sizes of the marks, which hardly any code asks for. Debugging allocators add up to 32 bytes.
_WINDOW, _OURS, _THEIRS, _SLACK = 50_021, 52_361, 54_403, 33
_FIRST, _LAST = _WINDOW, _THEIRS + _SLACK


class Calls(NamedTuple):
    """Functions that an event may be of, in the numbers of memray's release: 1.19 changed them."""

    free: int
    mmap: int
    munmap: int


class Window:
    """The events between two moments; it begins when it is made, or says why not (`Unavailable`)."""

    def __init__(self) -> None:
        self._last: int | None = None  # the number of the mark at its end, if the tracker ran until then
        self._run: Run | None = None
        with shared.lock:
            try:
                self._run = shared.share()
                self._run.windows.add(id(self))
                self._run.readers.add(id(self))
                self._first = self._written(self._run)
            except BaseException:
                self.drop()
                shared.stop_unused()
                raise

    def end(self) -> None:
        """End it; the tracker stops unless another window is open. Ending it again changes nothing."""
        with shared.lock:
            run = self._run
            if run is None:
                return
            if self._last is None and run.is_on:
                self._last = self._written(run)
            run.windows.discard(id(self))
            if not run.windows:
                run.stop()

    def drop(self) -> None:
        """End it and give up its events. Doing it again changes nothing."""
        with shared.lock:
            run = self._run
            if run is None:
                return
            self.end()
            run.readers.discard(id(self))
            if not run.readers:
                run.remove_file()

    def __del__(self) -> None:
        run = self._run  # the caller was interrupted, or forgot it
        if run is None or sys.is_finalizing():  # then the tracker has stopped, and the file is closed
            return
        if not shared.lock.acquire(blocking=False):  # its holder may wait for the thread that collects this
            run.windows.discard(id(self))
            run.readers.discard(id(self))
            return
        try:
            self.drop()
        except Exception:  # a finalizer has no caller to raise to
            pass
        finally:
            shared.lock.release()

    def events(self) -> Iterator[Event]:
        """Yield its events in their order, without those of our own reading; raises `Unavailable`."""
        run = self._run
        if run is None or self._last is None:
            raise Unavailable((run and run.lost) or f"{UNKNOWN}.")
        _mark(_OURS)  # while another window is open, reading leads to events itself
        try:
            yield from self._between(run)
        finally:
            _mark(_THEIRS)

    @staticmethod
    def _written(run: Run) -> int:
        """Mark the present moment; return the number of the mark."""
        _mark(_WINDOW)
        run.marks += 1
        return run.marks - 1

    def _between(self, run: Run) -> Iterator[Event]:
        ours: set[int] = set()  # the threads that read events
        number = 0
        reading = False
        calls = calls_of_memray()
        frees = calls.free, calls.munmap
        for event in run.read():
            size = event.size
            if _FIRST <= size < _LAST and event.allocator not in frees and _is_mark(event):
                if size >= _THEIRS:
                    ours.discard(event.tid)
                elif size >= _OURS:
                    ours.add(event.tid)
                else:
                    if number == self._last:
                        return
                    reading = reading or number == self._first
                    number += 1
            elif reading and (not ours or event.tid not in ours or event.allocator in frees):
                yield event
        raise Unavailable(f"{UNKNOWN}: memray did not record all of it.")


def calls_of_memray() -> Calls:
    """Return the numbers that the installed release gives to functions."""
    from memray import AllocatorType as Kind

    return Calls(int(Kind.FREE), int(Kind.MMAP), int(Kind.MUNMAP))


def _is_mark(event: Event) -> bool:
    """Return whether an event of such a size is a mark; without a stack, if the size is exactly a mark's."""
    stack = event.stack_trace(1)  # none while a profiler has taken memray's place
    if not stack:
        return event.size - 1 in (_WINDOW, _OURS, _THEIRS)
    return stack[0][:2] == ("_mark", __file__)


def _mark(size: int) -> None:
    bytearray(size)
