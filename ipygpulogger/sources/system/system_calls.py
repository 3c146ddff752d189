"""System calls that keep the GIL, for those that return within microseconds.

`os.read` and its like release the GIL for the call, and a thread that waits for the GIL takes it. A busy
thread then keeps it for the switch interval, 5 ms, though the call itself takes 2 us. So what cannot wait for
anything is called here through `ctypes.PyDLL`, which keeps the GIL. What may wait or take long belongs to
`os`: pipes, sockets, the user's files, and files of ``/proc`` for which the kernel walks page tables.

On Linux, with any C library. Elsewhere, and where `ctypes` does not work, `os` makes the calls.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
from typing import Any

_MOST_BYTES = 65536  # of one read
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
_WRITE = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0)


class Calls:
    """The calls by `os`, which releases the GIL. Each raises `OSError` if it fails."""

    def read_file(self, path: str, *, whole: bool = False) -> bytes:
        """Return what the first read of a file returns, at most 64 KiB, or the `whole` of it."""
        fd = self._open(path, _READ)
        try:
            text = more = self.read(fd)
            while whole and more:
                more = self.read(fd)
                text = (text or b"") + (more or b"")
        finally:
            self._close(fd)
        if text is None:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        return text

    def read_slow_file(self, path: str) -> bytes:
        """Return the same of a file that takes milliseconds to read; meanwhile other threads have the GIL."""
        fd = self._open(path, _READ)
        try:
            return os.read(fd, _MOST_BYTES)
        finally:
            self._close(fd)

    def write_file(self, path: str, text: bytes) -> None:
        """Write to a file that exists; raises `OSError`."""
        fd = self._open(path, _WRITE)
        try:
            self._write(fd, text, path)
        finally:
            self._close(fd)

    def read(self, fd: int) -> bytes | None:
        """Return what can be read at once; None if nothing can, from a descriptor that does not block."""
        try:
            return os.read(fd, _MOST_BYTES)
        except BlockingIOError:
            return None

    def _open(self, path: str, flags: int) -> int:
        return os.open(path, flags)

    def _write(self, fd: int, text: bytes, path: str) -> None:  # noqa: ARG002 - for the error's message
        os.write(fd, text)

    def _close(self, fd: int) -> None:
        os.close(fd)

    def list_folder(self, path: str) -> list[str]:
        """Return the names in a folder; raises `OSError`."""
        return os.listdir(path)  # noqa: PTH208 - names, not paths

    def has_children(self) -> bool:
        """Return whether this process has any child, running or ended; none is reaped."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        except AttributeError:  # not everywhere
            pass
        return True


class _HeldCalls(Calls):
    """The calls by the C library, through `ctypes` and with the GIL held."""

    def __init__(self) -> None:
        import ctypes  # 2 ms of loading, which a terminal's shell has not done yet

        library: Any = ctypes.PyDLL(None, use_errno=True)
        number, address, size = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
        self._errno = ctypes.get_errno
        self._buffer = ctypes.c_char * _MOST_BYTES
        self._buffers: list[Any] = []  # unused ones; `append` and `pop` are atomic
        self._c_open, self._c_read, self._c_write = library.open, library.read, library.write
        close, self._waitid = library.close, library.waitid
        self._c_open.argtypes = ctypes.c_char_p, number
        self._c_read.argtypes = number, address, size
        self._c_write.argtypes = number, ctypes.c_char_p, size
        close.argtypes, self._close = (number,), close  # type: ignore[method-assign]
        self._waitid.argtypes = number, number, address, number
        self._c_read.restype = self._c_write.restype = ctypes.c_ssize_t
        self._getdents = getattr(library, "getdents64", None)  # glibc has it since 2.30
        if self._getdents is not None:
            self._getdents.argtypes, self._getdents.restype = self._c_read.argtypes, ctypes.c_ssize_t

    def read(self, fd: int) -> bytes | None:
        return self._filled(self._c_read, fd)

    def _write(self, fd: int, text: bytes, path: str) -> None:
        while self._c_write(fd, text, len(text)) < 0:
            self._unless_interrupted(path)

    def list_folder(self, path: str) -> list[str]:
        if self._getdents is None:
            return super().list_folder(path)
        fd, names = self._open(path, _READ | os.O_DIRECTORY), []
        try:
            while entries := self._filled(self._getdents, fd, path):
                start = 0
                # struct linux_dirent64, getdents(2): its size is at 16, its name at 19
                while start < len(entries):
                    size = int.from_bytes(entries[start + 16 : start + 18], sys.byteorder)
                    names.append(os.fsdecode(entries[start + 19 : entries.index(0, start + 19)]))
                    start += size
        finally:
            self._close(fd)
        return [name for name in names if name not in (".", "..")]

    def has_children(self) -> bool:
        found = self._waitid(os.P_ALL, 0, None, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return found == 0 or self._errno() != errno.ECHILD

    def _filled(self, call: Any, fd: int, *path: str) -> bytes | None:
        """Return what a call writes into a buffer; None if it would have to wait for that."""
        try:
            buffer = self._buffers.pop()
        except IndexError:
            buffer = self._buffer()
        while (count := call(fd, buffer, _MOST_BYTES)) < 0:
            if self._errno() == errno.EAGAIN:
                self._buffers.append(buffer)
                return None
            self._unless_interrupted(*path)
        text = bytes(buffer[:count])
        self._buffers.append(buffer)
        return text

    def _open(self, path: str, flags: int) -> int:
        while (fd := self._c_open(path.encode(), flags)) < 0:
            self._unless_interrupted(path)
        return int(fd)

    def _unless_interrupted(self, *path: str) -> None:
        """Raise why the last call failed, unless a signal interrupted it: Python runs the handler later."""
        number = self._errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), *path)


@functools.cache
def gil_held() -> Calls:
    """Return system calls that hold the GIL; those of `os` off Linux and where ctypes does not work."""
    try:
        return _HeldCalls() if sys.platform == "linux" else Calls()
    except (AttributeError, ImportError, OSError):  # an interpreter without ctypes, or linked statically
        return Calls()
