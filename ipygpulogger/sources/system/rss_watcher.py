"""Where no peak can be reset: one that only rises, or none, and a process that samples resident memory.

A peak that only rises (macOS, Windows, Linux where the reset is refused) is exact if a scope set a new
record, and a bound otherwise; the samples raise the lower bound. Where nothing counts peaks (gVisor), they
are all there is.

A process rather than a thread: a thread sees nothing while a C call holds the GIL. It ignores SIGINT, ends
when this process does, sleeps between scopes, and is started again if it was killed. The two communicate
through a small shared file, so that neither waits for the other.
"""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.errors import is_from_a_handler, named
from ..contract import UNREADABLE, Counter, Observation, PeakClass, Reading, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

PERIOD_S = 0.001
_WORDS = struct.Struct("=QQQQ")  # active; round asked for; round answered; highest bytes of that round

_PROGRAM = """
import mmap, os, signal, struct, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
path, pid, period_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
fd = int(path) if os.name == "posix" else os.open(path, os.O_RDWR | os.O_BINARY)
shared = mmap.mmap(fd, 32)
words = struct.Struct("=QQQQ")
try:
    page, statm = os.sysconf("SC_PAGESIZE"), open(f"/proc/{pid}/statm", "rb", buffering=0)
    def rss():
        statm.seek(0)
        return int(statm.read(128).split()[1]) * page
    rss()
except (AttributeError, OSError, ValueError):
    import psutil
    process = psutil.Process(pid)
    def rss():
        return process.memory_info().rss
highest, answered = 0, 0
while sys.stdin.buffer.read(1):
    while True:
        active, asked, _, _ = words.unpack_from(shared)
        if not active:
            break
        if asked != answered:
            highest, answered = 0, asked
        try:
            highest = max(highest, rss())
        except Exception:
            sys.exit()
        struct.pack_into("=QQ", shared, 16, answered, highest)
        time.sleep(period_s)
"""


class RisingPeak(Counter):
    """A peak that only rises, or no peak at all (None), with the samples of another process."""

    def __init__(
        self,
        current: Callable[[], int],
        peak: Callable[[], int] | None,
        precision_bytes: int = 0,
        current_precision_bytes: int = 0,
        period_s: float = PERIOD_S,
    ) -> None:
        self.peak_class: PeakClass = "monotone" if peak else "sampled"
        self.precision_bytes, self.current_precision_bytes = precision_bytes, current_precision_bytes
        self._current, self._peak, self._period_s = current, peak, period_s
        self._child: subprocess.Popen[bytes] | None = None
        self._shared: mmap.mmap | None = None
        self._owner_pid = self._round = 0

    @property
    def sampler_pid(self) -> int | None:
        """The id of the sampling process; None while none runs."""
        return self._child.pid if self._child and self._child.poll() is None else None

    def observe(self) -> Observation:
        """Read the resident memory, the peak if there is one, and the highest sample."""
        try:
            current_bytes = self._current()
            peak_bytes = max(self._peak(), current_bytes) if self._peak else None
        except Exception as error:  # psutil may be broken in any way
            if is_from_a_handler(error):
                raise
            raise Unavailable(f"{UNREADABLE}: {named(error)}") from error
        return Observation((Reading(current_bytes, peak_bytes, self._sampled_bytes()),), stamp=())

    def watch(self, *, on: bool) -> None:
        """Wake the sampling process, starting it if need be, or let it sleep."""
        if on and (self.sampler_pid is None or self._owner_pid != os.getpid()):
            self._start()
        if self._shared is None or self._child is None or self._child.stdin is None:
            return
        struct.pack_into("=Q", self._shared, 0, int(on))
        if on:
            self._next_round()
            try:
                self._child.stdin.write(b"g")
            except OSError:  # it has just died; the next call starts another
                self._child = None

    def close(self) -> None:
        """End the sampling process."""
        if self._child is not None and self._child.stdin is not None:
            if self._shared is not None:
                struct.pack_into("=Q", self._shared, 0, 0)
            self._child.stdin.close()
            self._child.wait()
        self._child = self._shared = None

    def _sampled_bytes(self) -> int:
        """Return the highest sample since the last call; 0 if there was none."""
        if self._shared is None:
            return 0
        if self.sampler_pid is None:
            self.watch(on=True)
            return 0
        _, asked, answered, highest_bytes = _WORDS.unpack_from(self._shared)
        self._next_round()
        return int(highest_bytes) if asked == answered else 0

    def _next_round(self) -> None:
        assert self._shared is not None
        self._round += 1
        struct.pack_into("=Q", self._shared, 8, self._round)

    def _start(self) -> None:
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()
        self._shared = self._child = None
        fd, path = tempfile.mkstemp(prefix="ipygpulogger-")
        inherited = os.name == "posix"  # otherwise the sampling process opens the file by its name
        try:
            if inherited:
                Path(path).unlink()
            os.write(fd, bytes(_WORDS.size))
            self._shared = mmap.mmap(fd, _WORDS.size)
            where = str(fd) if inherited else path
            self._child = subprocess.Popen(  # noqa: S603 - our own program, our own interpreter
                [sys.executable, "-c", _PROGRAM, where, str(os.getpid()), str(self._period_s)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=inherited,
                pass_fds=(fd,) if inherited else (),
            )
            self._owner_pid = os.getpid()
        except OSError:  # no more processes, or no space left: peaks stay bounds
            self._shared = self._child = None
        finally:
            os.close(fd)
