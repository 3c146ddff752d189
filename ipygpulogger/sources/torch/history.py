"""torch's own history of its CUDA allocator, one per process, recorded while a recording of ours needs it.

A recording of the user's is read and left alone. If they begin or end one meanwhile, ours ends there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ...runtime.collector import undisturbed
from ...runtime.errors import is_from_a_handler
from ...runtime.wrappers import Wrappers
from ..contract import Unavailable
from .snapshot import AllocatorState, Event, SnapshotFile, file_of, is_on, start, stop, take, why_not
from .state import TORCH_ERRORS, accelerator, module

_RECORDS = "_cuda_record_memory_history", "_cuda_record_memory_history_legacy"


@dataclass(frozen=True, slots=True)
class DeviceHistory:
    """What the allocator of one device did."""

    index: int  # torch's index of the device
    events: list[Event]  # in their order; older ones may be missing
    begin: AllocatorState | None  # how it stood when the recording began; None if the device was not used yet
    end: AllocatorState  # how it stood after the events
    settings: dict[str, Any]  # the allocator's, as torch's snapshot has them
    ours: bool = True  # whether all is from our recording; others may have no stacks, or those of frees


class TorchHistory:
    """One recording of ours; several may be under way at once."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._changes = 0  # of `_Shared`, when it began
        self._began: dict[int, AllocatorState] = {}
        self._on = self._over = False
        # torch's snapshot at the last `read`, if an allocation failed; None while it is the user who records,
        # whose history does not end with ours.
        self.failed: SnapshotFile | None = None

    def begin(self) -> None:
        """Let torch record, now or when it initialises CUDA, and look at the blocks; raises `Unavailable`."""
        torch = module()
        if torch is not None and accelerator() is None and _may_begin_late(torch):
            torch.cuda._lazy_call(self._begin_late)
            return
        torch = _recordable()
        self._begin(torch)
        try:
            with undisturbed():
                self._began = take(torch, events=False).states
        except BaseException:
            self.end()
            raise

    def read(self) -> list[DeviceHistory]:
        """Return what happened so far on each device that is in use; raises `Unavailable`."""
        torch = _recordable()
        if self._pid != os.getpid() or not self._on:
            raise Unavailable("torch's memory history is not recorded")
        if self._changes != _shared.changes:
            raise Unavailable("a recording of torch's memory history by other code began or ended meanwhile")
        with undisturbed():
            with _shared.lock:
                snapshot, ours = take(torch, events=True), _shared.recording
            began = {index: state.after.failures for index, state in self._began.items()}
            states, traces = sorted(snapshot.states.items()), snapshot.traces
            if ours and any(state.after.failures != began.get(index, 0) for index, state in states):
                with _errors_suppressed():  # what was alive is known all the same
                    self.failed = file_of(snapshot.whole)
            return [
                DeviceHistory(index, traces[index], self._began.get(index), state, snapshot.settings, ours)
                for index, state in states
                if index < len(traces)
            ]

    def end(self) -> None:
        """End the recording; torch forgets the events once no recording of ours needs them. Idempotent."""
        if not self._over:
            self._over = True
            # What waits for torch to initialise CUDA is withdrawn.
            queued: list[Any] = getattr(getattr(module(), "cuda", None), "_queued_calls", [])
            queued[:] = [one for one in queued if one[0] != self._begin_late]
        if self._on:
            self._on = False
            if self._pid == os.getpid():
                _shared.end()

    def _begin(self, torch: ModuleType) -> None:
        self._changes = _shared.changes
        _shared.begin(torch)
        self._on = True

    def _begin_late(self) -> None:
        """Begin while CUDA is initialised, which must not fail because of us."""
        torch = module()
        with _errors_suppressed():
            if torch is not None and not self._over and not why_not(torch):
                self._begin(torch)


class _Shared:
    """The history of this process, and who needs it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # held while it is begun, read or ended, by any thread
        self.changes = 0  # how often the user has begun or ended a recording meanwhile
        self.recording = False  # whether ours is on
        self._wrappers, self._users = Wrappers(lambda: getattr(module(), "_C", None)), 0
        self._calling = False  # it is us who call torch, under the lock

    def begin(self, torch: ModuleType) -> None:
        """Record for one more."""
        with self.lock:
            if not self._users:
                self._wrappers.put_on(dict.fromkeys(_RECORDS, self._record_wrapper))
            try:
                if not self.recording and not is_on(torch):
                    self.recording = True  # first: an interrupted start is ended
                    self._call(start, torch)
            except BaseException:
                (self._stop if self._users else self._end)()
                raise
            self._users += 1

    def end(self) -> None:
        """Record for one less."""
        with self.lock:
            self._users -= 1
            if not self._users:
                self._end()

    def _end(self) -> None:
        try:
            self._stop()
        finally:
            self._wrappers.take_off()

    def _stop(self) -> None:
        torch, recording, self.recording = module(), self.recording, False
        if torch is not None and recording:
            self._call(stop, torch)

    def after_fork_in_child(self) -> None:
        """Forget who needs it: the child can neither use the parent's context nor end its recording."""
        self.lock = threading.RLock()  # another thread may have held it at the moment of the fork
        self._users, self.recording, self._calling = 0, False, False

    def _call(self, function: Callable[[ModuleType], None], torch: ModuleType) -> None:
        self._calling = True
        try:
            function(torch)
        finally:
            self._calling = False

    def _record_wrapper(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def record_memory_history(*args: Any, **kwargs: Any) -> Any:
            with self.lock:
                if self._users and not self._calling:
                    self.changes += 1
                    with _errors_suppressed():  # end ours first: the user's own must begin empty
                        self._stop()
                return original(*args, **kwargs)

        return record_memory_history


_shared = _Shared()


@contextmanager
def _errors_suppressed() -> Iterator[None]:
    """Suppress an error, unless a signal handler raised it."""
    try:
        yield
    except Exception as reason:
        if is_from_a_handler(reason):
            raise


def _recordable() -> ModuleType:
    """Return torch, if its allocator in use here keeps a history."""
    torch: ModuleType | None = module()
    if torch is None:
        raise Unavailable("torch was imported within the measurement")
    if accelerator() != "cuda":  # torch 2.13 crashes if it is asked before CUDA is initialised
        raise Unavailable("torch keeps a history of CUDA devices only")
    if reason := why_not(torch):
        raise Unavailable(reason)
    return torch


def _may_begin_late(torch: ModuleType) -> bool:
    """Return whether CUDA may be initialised later, and torch can tell us then."""
    cuda = torch.cuda
    with suppress(*TORCH_ERRORS):
        return cuda._is_compiled() and not cuda._is_in_bad_fork() and hasattr(cuda, "_queued_calls")
    return False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.after_fork_in_child)
