"""The kernel's peak of resident memory, which Linux can reset, and what tells of resets by other code.

Exact whatever holds the GIL, with no thread. The reset is a write to ``/proc/<pid>/clear_refs``, and also
lowers `getrusage().ru_maxrss`. The kernel does not record resets, but inotify(7) reports the writes of every
thread and process that uses the same mount of ``/proc``. It does not see writes through another mount, as
from a container's host, or through ``/proc/<pid>/task``. It also reports other uses of the file.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache
from typing import Any

from ..contract import Counter, Observation, PeakClass, Reading, Unavailable
from . import linux
from .forked import forks
from .linux import gil_held, high_water_precision_bytes, largest_fault_bytes, resident_precision_bytes

_IN_MODIFY = 2
_EVENT_BYTES = 16  # a report without a name, which begins with the number of the watch


class _Reports:
    """The one descriptor through which the kernel reports to all watches; a user may have 128 of them."""

    def __init__(self) -> None:
        self.fd, self.pid = -1, 0
        self.written: dict[int, bool] = {}  # by number of the watch: whether that file was written to

    def add(self, path: str) -> int:
        """Return the number of a new watch; negative where the kernel offers none."""
        if self.pid != os.getpid():  # in a forked child it would read its parent's reports
            _close(self.fd)
            self.__init__()  # type: ignore[misc]
        self.pid, libc = os.getpid(), _libc()
        if self.fd < 0:
            self.fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        number = int(libc.inotify_add_watch(self.fd, path.encode(), _IN_MODIFY)) if self.fd >= 0 else -1
        if number >= 0:
            self.written[number] = False
        return number

    def take(self, number: int) -> bool:
        """Return whether a file was written to since the last call."""
        try:
            while found := gil_held().read(self.fd):
                for at in range(0, len(found), _EVENT_BYTES):
                    written = int.from_bytes(found[at : at + 4], "little", signed=True)
                    if written in self.written:
                        self.written[written] = True
        except OSError:  # closed by code that closes every descriptor
            return False
        was, self.written[number] = self.written.get(number, False), False
        return was

    def remove(self, number: int) -> None:
        """End a watch; the descriptor is closed with the last one."""
        if self.written.pop(number, None) is not None:
            _libc().inotify_rm_watch(self.fd, number)
        if not self.written:
            _close(self.fd)
            self.fd = -1


_reports = _Reports()


class ResetWatch:
    """A watch on that file: `take` returns whether anything wrote to it since the last call."""

    def __init__(self, pid: int | str = "self") -> None:
        self._path = f"/proc/{pid}/clear_refs"
        self._fd, self._number, self._pid = -1, -1, 0

    def start(self) -> None:
        """Begin to watch; if the kernel offers no watch, `take` never reports anything."""
        if self._number >= 0 and self._pid == os.getpid():
            return
        self.close()
        with suppress(AttributeError, ImportError, OSError, TypeError):  # no inotify, or no descriptor left
            # While it is held open, others find this same file under its name.
            self._fd = os.open(self._path, os.O_PATH | os.O_CLOEXEC)
            self._number, self._pid = _reports.add(self._path), os.getpid()
        if self._number < 0:
            self.close()

    def take(self) -> bool:
        """Return whether anything wrote to the file since the last call."""
        return self._number >= 0 and self._pid == os.getpid() and _reports.take(self._number)

    def close(self) -> None:
        """End the watch."""
        fd, number, self._fd, self._number = self._fd, self._number, -1, -1
        if number >= 0 and self._pid == _reports.pid == os.getpid():
            _reports.remove(number)
        _close(fd)

    def __del__(self) -> None:
        self.close()


@cache  # or each watch would leave a class behind as garbage
def _libc() -> Any:
    import ctypes  # 2 ms of loading, which a terminal's shell has not done yet

    return ctypes.CDLL(None)


def _close(fd: int) -> None:
    with suppress(OSError):  # -1, or closed by code that closes every descriptor
        os.close(fd)


class HighWaterMark(Counter):
    """The kernel's high-water mark of this process."""

    peak_class: PeakClass = "resettable"

    def __init__(self) -> None:
        self.precision_bytes = high_water_precision_bytes()
        self.current_precision_bytes = resident_precision_bytes()
        self._fault_bytes = largest_fault_bytes()
        self._lowest_mark_bytes = sys.maxsize  # that `getrusage` ever reported
        self._resets, self._watching = ResetWatch(), False

    @classmethod
    def probe(cls) -> bool:
        """Return whether the reset is offered: it is absent on gVisor and refused after setuid.

        Nothing is reset to find out, as that would lower `ru_maxrss`. The first reset shows whether it works.
        """
        try:
            linux.resident_and_mark_bytes()
        except (OSError, ValueError):
            return False
        return os.access("/proc/self/clear_refs", os.W_OK)

    def describe(self) -> str:
        """Name the counter, as part of a sentence."""
        return "this process's high-water mark (/proc/self/clear_refs)"

    def look(self) -> Observation:
        """Read the resident memory and its high-water mark, with the page faults as the stamp.

        The mark is read each time: memory that others fill (cross-memory attach, userfaultfd) raises it
        without a page fault of this process. `getrusage` reports it, or what the process had resident before
        its `exec` if that is more. So above the lowest that was ever reported it is the mark. Then the
        resident memory comes from a file that the kernel writes in a third of the time.
        """
        try:
            stamp, mark_bytes = linux.faults_and_mark()
            if mark_bytes > self._lowest_mark_bytes:
                current_bytes = linux.resident_bytes()
            else:
                self._lowest_mark_bytes = mark_bytes
                current_bytes, mark_bytes = linux.resident_and_mark_bytes()
        except (OSError, ValueError) as error:
            raise Unavailable(f"/proc/self/status cannot be read: {error}") from error
        # The stored mark is approximate even where the resident size is exact (82241a83cd15).
        reading = Reading(current_bytes, max(mark_bytes, current_bytes))
        # Called last: a reset that had no effect on this look may be reported, but none is missed.
        return Observation((reading,), stamp, self._watching and self._resets.take())

    def stamp(self) -> tuple[int, ...]:
        """Return the page faults, which take one system call."""
        return linux.faults_and_mark()[0]

    def reset(self) -> None:
        """Lower the high-water mark to what is resident now."""
        forks.reset_follows()
        try:
            linux.reset_mark()
        except OSError as error:
            self.peak_class = "monotone"
            raise Unavailable(f"the kernel does not reset its peak: {error}") from error
        self._resets.take()  # this one was ours

    def watch(self, *, on: bool) -> None:
        """Watch for resets by other code while a scope is open; the descriptors stay until `close`."""
        self._watching = on
        if on:
            self._resets.start()

    def close(self) -> None:
        """Close the descriptors."""
        self._resets.close()

    def growth_bytes(self, earlier: tuple[int, ...], later: tuple[int, ...]) -> tuple[int | None, ...]:
        """Return at most one largest page per fault."""
        return ((sum(later) - sum(earlier)) * self._fault_bytes,)
