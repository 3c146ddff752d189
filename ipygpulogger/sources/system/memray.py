"""Each allocation of general RAM, with the line that asked for it, as memray's tracker has them.

There is one tracker per process: a recording while another one is on is refused. Two allocations of a known
size, made by a function of this file, mark where it begins and ends.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib.util
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...runtime.clock import monotonic_s
from ...runtime.errors import call_uninterrupted, named
from ..contract import Unavailable

if TYPE_CHECKING:
    from memray import AllocationRecord as Event

UNKNOWN = "What was alive at the peak in general RAM is not known"
ABSENT = (
    f"{UNKNOWN}: memray, which would tell it, does not run on Windows."
    if sys.platform == "win32"
    else f"{UNKNOWN}, because memray is not installed: pip install 'ipygpulogger[memray]'."
)
_TOO_MUCH = f"{UNKNOWN}: there were more allocations than can be read in about half of the time."
_TOO_MANY_BYTES = 64 << 20  # of the file: up to 14 million events
# Of these, the bytes that are read in any case, and more for each second; an event has 2 to 5 and takes 3 to
# 6 us. So the end takes a second at most, and about half of the time that was measured.
_SURE_BYTES, _EACH_S_BYTES = 1 << 19, 1 << 18
_INTERVAL_S = 0.5  # between two looks at the size of the file
_MARK, _SLACK = 50_021, 33  # the size of a mark, to which debugging allocators add up to 32 bytes


class Calls(NamedTuple):
    """Functions that an event may be of, in the numbers of memray's release: 1.19 changed them."""

    free: int
    mmap: int
    munmap: int


def calls_of_memray() -> Calls:
    """Return the numbers that the installed release gives to functions."""
    from memray import AllocatorType as Kind

    return Calls(int(Kind.FREE), int(Kind.MMAP), int(Kind.MUNMAP))


def installed() -> bool:
    """Return whether memray can be imported, without importing it."""
    return "memray" in sys.modules or importlib.util.find_spec("memray") is not None


class Window:
    """One recording, which begins when it is made, or says why not (`Unavailable`)."""

    def __init__(self) -> None:
        self._run = run = _Run()
        with _lock:
            _check_unused()
            try:
                run.start()
            except BaseException as error:
                run.end()
                if isinstance(error, (ImportError, OSError, RuntimeError, AssertionError, TypeError)):
                    raise Unavailable(f"{UNKNOWN}: {named(error)}.") from error
                raise

    def end(self) -> None:
        """Stop the tracker. Ending it again changes nothing."""
        with _lock:
            self._run.stop()

    def drop(self) -> None:
        """End it and give up its events. Doing it again changes nothing."""
        with _lock:
            self._run.end()

    def __del__(self) -> None:
        run: _Run | None = getattr(self, "_run", None)  # the caller was interrupted, or forgot it
        if run is None or sys.is_finalizing():  # then the tracker has stopped, and the file is closed
            return
        run.is_forgotten = True
        if not _lock.acquire(blocking=False):  # its holder may wait for the thread that collects this
            return
        try:
            run.end()
        except Exception:  # a finalizer has no caller to raise to
            pass
        finally:
            _lock.release()

    def events(self) -> Iterator[Event]:
        """Yield its events in their order, once it has ended; raises `Unavailable`."""
        return self._run.read()


def _is_mark(event: Event) -> bool:
    """Return whether an event is a mark; without a stack, if the size is exactly a mark's."""
    if not _MARK <= event.size < _MARK + _SLACK:
        return False
    stack = event.stack_trace(1)  # none while a profiler has taken memray's place
    return stack[0][:2] == ("_mark", __file__) if stack else event.size == _MARK + 1


def _mark() -> None:
    bytearray(_MARK)


class _Run:
    """The tracker of one recording, and its file, which on Linux never has a name."""

    def __init__(self) -> None:
        self.is_forgotten = False  # the recording is garbage, but could not be ended then
        self.lost = ""  # a sentence, once something else than the end of the recording has stopped it
        self._tracker: Any = None
        self._put_back: Callable[[], object] = bool  # nothing
        self._stopped = threading.Event()
        self._file: Any = None
        self._path, self._pid = "", os.getpid()
        self._began_s, self._took_s = monotonic_s(), 0.0

    def start(self) -> None:
        """Start the tracker; once."""
        import random

        global _run  # noqa: PLW0603 - the tracker is one per process
        _run = self
        state = random.getstate()  # from which rich draws when it is imported, as memray does
        try:
            import memray
        finally:
            random.setstate(state)
        if sys.platform == "linux":
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - until `end`
            self._path = f"/proc/self/fd/{self._file.fileno()}"
        else:
            number, self._path = tempfile.mkstemp(prefix="ipygpulogger.")
            self._file = os.fdopen(number, "rb")
        tracker = memray.Tracker(
            destination=memray.FileDestination(self._path, overwrite=True, compress_on_exit=False),
            memory_interval_ms=3_600_000,  # what its own thread reads is not needed
        )
        atexit.register(self.stop)  # memray must not outlive the interpreter
        threading.Thread(target=self._watch, name="ipygpulogger-memray", daemon=True).start()

        says_from: Callable[[int], object] = getattr(memray, "set_log_level", bool)  # which old ones lack

        def start() -> None:
            says_from(logging.ERROR)  # below the cell: that the interpreter has symbols of its own for malloc
            try:
                tracker.__enter__()
            finally:
                says_from(logging.WARNING)
            self._tracker = tracker
            self._let_others_in(memray.Tracker)
            _mark()

        call_uninterrupted(start)

    def stop(self, lost: str = "") -> None:
        """Stop the tracker; stopping it again changes nothing."""
        global _run  # noqa: PLW0603 - the tracker is one per process
        self._stopped.set()
        atexit.unregister(self.stop)
        if self._tracker is not None:
            self.lost = self.lost or lost
            self._took_s = monotonic_s() - self._began_s
            self._stop()
        if _run is self:
            _run = None

    def _stop(self) -> None:
        """Stop it. memray takes off all profile functions; those that the user's code has set go on."""
        profile, threads_profile = (None if _is_memrays(one) else one for one in _profiles())
        enable = getattr(profile, "enable", None)  # of cProfile, in C, before Python 3.12

        def stop() -> None:
            tracker, self._tracker = self._tracker, None
            self._put_back()
            tracker.__exit__(None, None, None)

        _mark()
        sys.setprofile(None)
        try:
            call_uninterrupted(stop)
        finally:
            enable() if enable else sys.setprofile(profile)
            threading.setprofile(threads_profile)

    def read(self) -> Iterator[Event]:
        """Yield the events between the two marks; raises `Unavailable`."""
        import memray

        if self._file is None or self._tracker is not None or self.lost:
            raise Unavailable(self.lost or f"{UNKNOWN}.")
        most_bytes = _SURE_BYTES + _EACH_S_BYTES * self._took_s
        if os.fstat(self._file.fileno()).st_size > most_bytes:  # memray looks at all of it as it opens it
            raise Unavailable(_TOO_MUCH)
        reading = False
        try:
            with memray.FileReader(self._path) as reader:
                for event in reader.get_allocation_records():
                    if _is_mark(event):
                        if reading:
                            return
                        reading = True
                    elif reading:
                        yield event
        except OSError as error:
            raise Unavailable(f"{UNKNOWN}: {error}.") from error
        raise Unavailable(f"{UNKNOWN}: memray did not record all of it.")

    def end(self) -> None:
        """Stop the tracker, and remove the file, if it is still there."""
        self.stop()
        file, self._file = self._file, None
        with suppress(OSError):
            if file is not None:
                file.close()
            if sys.platform != "linux" and self._path and os.getpid() == self._pid:
                Path(self._path).unlink()

    def _let_others_in(self, kind: type) -> None:
        """Let a tracker that the user starts meanwhile take the place of ours, instead of failing."""
        # The class is made in C: its attributes cannot be set, but for those in its dictionary.
        methods = gc.get_referents(vars(kind))[0]
        forget_found_methods = partial(ctypes.pythonapi.PyType_Modified, ctypes.py_object(kind))
        theirs = methods["__enter__"]

        def __enter__(tracker: Any) -> Any:  # noqa: N807 - it takes the place of that method
            with _lock:
                self.stop(f"{UNKNOWN}: another tracker of memray was started.")
            return theirs(tracker)

        def put_back() -> None:
            methods["__enter__"] = theirs
            forget_found_methods()

        self._put_back = put_back
        methods["__enter__"] = __enter__
        forget_found_methods()

    def _watch(self) -> None:
        """Stop the tracker before its file fills the disk, or if its recording was forgotten meanwhile."""
        while not self._stopped.wait(_INTERVAL_S):
            with _lock:
                if self.is_forgotten:
                    self.end()
                elif self._file is not None and os.fstat(self._file.fileno()).st_size > _TOO_MANY_BYTES:
                    self.stop(_TOO_MUCH)

    def forget(self) -> None:
        """In a forked child: memray no longer records there, and the parent removes the file."""
        self._tracker = None
        self.lost = f"{UNKNOWN}: it was recorded in the process that forked this one."
        self._put_back()
        self.end()
        profile, threads_profile = map(_is_memrays, _profiles())
        if threads_profile:
            threading.setprofile(None)
        if profile:
            sys.setprofile(None)
        for name in ("_name", "_ident"):  # where memray reads the names of threads
            if name in vars(threading.Thread):
                delattr(threading.Thread, name)


_lock = threading.RLock()
_run: _Run | None = None  # the one that is on


def _check_unused() -> None:
    """Raise `Unavailable` where memray is absent, or it or another profiler is in use."""
    if not installed():
        raise Unavailable(ABSENT)
    if _run is not None and _run.is_forgotten:
        _run.end()
    if _run is not None:
        raise Unavailable(f"{UNKNOWN}, because it is recorded for another measurement that is open.")
    if any(map(_is_memrays, _profiles())):  # a tracker of the user's
        raise Unavailable(f"{UNKNOWN}: memray records already, and is left alone.")
    if any(one is not None for one in _profiles()):
        raise Unavailable(f"{UNKNOWN}: memray would take the place of the profiler that runs.")


def _profiles() -> tuple[Any, Any]:
    """Return the profile functions of this thread and of threads that begin."""
    return sys.getprofile(), getattr(threading, "_profile_hook", None)


def _is_memrays(profile: Any) -> bool:
    """Return whether a profile function is one that memray sets."""
    memray = sys.modules.get("memray")
    return memray is not None and (
        profile is memray.start_thread_trace or type(profile).__module__.startswith("memray.")
    )


def _after_fork_in_child() -> None:
    global _lock, _run  # noqa: PLW0603 - another thread may have held the lock
    _lock = threading.RLock()
    run, _run = _run, None
    if run is not None:
        run.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
