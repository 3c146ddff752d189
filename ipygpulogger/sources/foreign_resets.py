"""Whether something else resets this process's high-water mark.

The kernel does not record resets. But each is a write to ``/proc/<pid>/clear_refs``, and inotify reports the
writes of every thread and process that uses the same mount of ``/proc``. It does not see writes through
another mount, as from a container's host, or through ``/proc/<pid>/task``. It also reports other uses of the
file, which clear referenced and soft-dirty bits.
"""

from __future__ import annotations

import os

from .system_calls import gil_held

_PATH = "/proc/self/clear_refs"
_IN_MODIFY = 2  # inotify(7)


class ResetWatch:
    """A watch on that file: `take` returns whether anything wrote to it since the last call."""

    def __init__(self) -> None:
        self._fds: tuple[int, ...] = ()
        self._pid = 0

    def start(self) -> None:
        """Begin to watch; if the kernel offers no watch, `take` never reports anything."""
        if self._fds and self._pid == os.getpid():
            return
        self.close()  # in a forked child it would read its parent's reports
        fds: list[int] = []
        try:
            import ctypes  # 2 ms of loading, which a terminal's shell has not done yet

            libc = ctypes.CDLL(None)
            fds.append(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
            # While it is held open, others find this same file under its name.
            fds.append(os.open(_PATH, os.O_PATH | os.O_CLOEXEC))
            if fds[0] >= 0 and libc.inotify_add_watch(fds[0], _PATH.encode(), _IN_MODIFY) >= 0:
                self._fds, self._pid, fds = tuple(fds), os.getpid(), []
        except (AttributeError, ImportError, OSError, TypeError):  # no inotify, or no descriptor left
            pass
        finally:
            _close(fds)

    def take(self) -> bool:
        """Return whether anything wrote to the file since the last call."""
        if not self._fds or self._pid != os.getpid():
            return False
        try:
            return bool(gil_held().read(self._fds[0]))  # many writes may be one report
        except OSError:  # closed by code that closes every descriptor
            return False

    def close(self) -> None:
        """Close the descriptors."""
        fds, self._fds = self._fds, ()
        _close(fds)

    def __del__(self) -> None:
        self.close()


def _close(fds: list[int] | tuple[int, ...]) -> None:
    for fd in fds:
        try:
            os.close(fd)
        except OSError:  # -1, or closed by code that closes every descriptor
            pass
