"""Whether something else resets this process's high-water mark.

The kernel keeps no trace of a reset. But each is a write to ``/proc/<pid>/clear_refs``, and inotify reports
the writes of every thread and process that uses the same mount of ``/proc``. Not seen are writes through
another mount, as from a container's host, or through ``/proc/<pid>/task``. Any other use of that file (it
also clears referenced and soft-dirty bits) is reported as well.
"""

from __future__ import annotations

import ctypes
import os

_PATH = "/proc/self/clear_refs"
_IN_MODIFY = 2  # inotify(7)


class ResetWatch:
    """Counts nothing: `take` tells whether any write came since it was last asked."""

    def __init__(self) -> None:
        self._fds: tuple[int, ...] = ()
        self._pid = 0

    def start(self) -> None:
        """Watch from now on. Where the kernel gives no watch, `take` never reports anything."""
        if self._fds and self._pid == os.getpid():
            return
        self.close()  # a child that a fork made would take its parent's reports
        fds: list[int] = []
        try:
            libc = ctypes.CDLL(None)
            fds.append(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
            # Held open, the file stays the one that others find under its name.
            fds.append(os.open(_PATH, os.O_PATH | os.O_CLOEXEC))
            if fds[0] >= 0 and libc.inotify_add_watch(fds[0], _PATH.encode(), _IN_MODIFY) >= 0:
                self._fds, self._pid, fds = tuple(fds), os.getpid(), []
        except (AttributeError, OSError, TypeError):  # no inotify, or no descriptor left
            pass
        finally:
            _close(fds)

    def take(self) -> bool:
        """Whether anything wrote to the file since the last call."""
        if not self._fds or self._pid != os.getpid():
            return False
        try:
            return bool(os.read(self._fds[0], 4096))  # many writes are one report
        except OSError:  # none (BlockingIOError)
            return False

    def close(self) -> None:
        """Give the descriptors back."""
        fds, self._fds = self._fds, ()
        _close(fds)

    def __del__(self) -> None:
        self.close()


def _close(fds: list[int] | tuple[int, ...]) -> None:
    for fd in fds:
        try:
            os.close(fd)
        except OSError:  # -1, or closed by somebody who closes all
            pass
