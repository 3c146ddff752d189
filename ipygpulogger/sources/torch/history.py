"""torch's own history of its CUDA allocator: recorded while one of our recordings needs it, and read.

There is one history per process. A recording that the user has begun is read and otherwise left alone. If
the user begins or ends one while ours is on, ours ends there, and the user finds what there would be without
us: a recording that begins empty, or none.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...runtime.collector import undisturbed
from ...runtime.errors import first_line, is_from_a_handler
from ...runtime.wrappers import Wrappers
from ..contract import Unavailable
from .snapshot import Position, failed, in_use, is_on, kept_snapshot, position, start, stop, take, why_not
from .state import TORCH_ERRORS, accelerator, module

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from .snapshot import AllocatorState, Event, KeptSnapshot, Snapshot

_RECORDS = "_cuda_record_memory_history", "_cuda_record_memory_history_legacy"
_RESETS = "_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats"


@dataclass(frozen=True, slots=True)
class DeviceHistory:
    """What the allocator of one device did."""

    index: int  # torch's index of the device
    events: list[Event]  # in their order; older ones may be missing
    begin: AllocatorState | None  # how it stood when the recording began; None if the device was not used yet
    end: AllocatorState  # how it stood after the events
    settings: dict[str, Any]  # the allocator's, as torch's snapshot has them
    # Whether all of it is from a recording of ours. Another may have recorded no stacks, or for a block
    # that was freed the stack of the free
    ours: bool = True


class TorchHistory:
    """One recording of ours; several may be under way at once.

    Attributes:
        failed: torch's snapshot at the last `read`, if an allocation failed in this recording; None while it
            is the user who records, whose history does not end with ours.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._changes = 0  # of `_Shared`, when it began
        self._began: dict[int, AllocatorState] = {}
        self._failed: dict[int, int] = {}  # allocations until then, by device
        self._on = self._over = False
        self.failed: KeptSnapshot | None = None

    def begin(self) -> None:
        """Let torch record, if it does not yet, and look at the blocks that exist.

        If torch has not initialised CUDA yet, it begins to record when it does. Raises `Unavailable`.
        """
        torch = module()
        if torch is not None and accelerator() is None and _may_begin_late(torch):
            torch.cuda._lazy_call(self._begin_late)
            return
        self._begin(_recordable())
        try:
            with undisturbed():
                self._began = take(_recordable(), _shared.forgotten, events=False).states
                self._failed = _failures(_recordable())
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
            histories, snapshot = _shared.read(torch, self._began)
            if snapshot is not None and self._has_failed():
                try:
                    self.failed = kept_snapshot(torch, snapshot.whole)
                except Exception as reason:  # what was alive is known all the same
                    if is_from_a_handler(reason):
                        raise
            return histories

    def _has_failed(self) -> bool:
        """Return whether an allocation failed since the beginning."""
        torch = module()
        failures = {} if torch is None else _failures(torch)
        return any(count != self._failed.get(index, 0) for index, count in failures.items())

    def end(self) -> None:
        """End the recording; torch forgets the events once no recording of ours needs them. Idempotent."""
        if not self._over:
            self._over = True
            _not_late(self._begin_late)
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
        try:
            if torch is not None and not self._over and not why_not(torch):
                self._begin(torch)
        except Exception as reason:
            if is_from_a_handler(reason):
                raise


class _Shared:
    """The history of this process, and who needs it.

    Attributes:
        lock: Held while it is begun, read or ended, by any thread.
        changes: How often the user has begun or ended a recording meanwhile.
        forgotten: By device, where it stood when the user last reset torch's counts.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changes = 0
        self.forgotten: dict[int, Position] = {}
        self._wrappers = Wrappers(lambda: getattr(module(), "_C", None))
        self._users = 0
        self._recording = False  # ours is on
        self._calling = False  # it is us who call torch, under the lock

    def begin(self, torch: ModuleType) -> None:
        """Record for one more."""
        with self.lock:
            if not self._users:
                self.forgotten.clear()
                makers = dict.fromkeys(_RECORDS, self._record_wrapper)
                self._wrappers.put_on({**makers, **dict.fromkeys(_RESETS, self._reset_wrapper)})
            try:
                if not self._recording and not is_on(torch):
                    self._recording = True  # first: an interrupted start is ended
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
        torch, recording, self._recording = module(), self._recording, False
        if torch is not None and recording:
            self._call(stop, torch)

    def read(
        self, torch: ModuleType, began: dict[int, AllocatorState]
    ) -> tuple[list[DeviceHistory], Snapshot | None]:
        """Return the history of each device, and what torch answered; None while the user records."""
        with self.lock:
            snapshot, ours = take(torch, self.forgotten, events=True), self._recording
        histories = [
            DeviceHistory(index, snapshot.traces[index], began.get(index), state, snapshot.settings, ours)
            for index, state in sorted(snapshot.states.items())
            if index < len(snapshot.traces)
        ]
        return histories, snapshot if ours else None

    def after_fork_in_child(self) -> None:
        """Forget who needs it: the child can neither use the parent's context nor end its recording."""
        self.lock = threading.RLock()  # another thread may have held it at the moment of the fork
        self._wrappers.after_fork_in_child()
        self._users, self._recording, self._calling = 0, False, False

    def _call(self, function: Callable[[ModuleType], None], torch: ModuleType) -> None:
        """Begin or end our own recording, past our wrappers."""
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
                    try:  # ours first, so that theirs begins empty
                        self._stop()
                    except Exception as reason:
                        if is_from_a_handler(reason):
                            raise
                return original(*args, **kwargs)

        return record_memory_history

    def _reset_wrapper(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def reset_accumulated_stats(index: int) -> Any:
            with self.lock:
                if self._users:
                    with suppress(KeyError, *TORCH_ERRORS):  # the user's own call tells what is wrong
                        self.forgotten[index] = position(module(), index, self.forgotten)
                return original(index)

        return reset_accumulated_stats


_shared = _Shared()


def forgotten_allocations(index: int) -> int:
    """Return how many allocations on a device torch no longer counts, since the user reset its counts.

    The history goes on counting them. So this is added to a count of torch before the two are compared.
    """
    return _shared.forgotten.get(index, Position()).allocated


def position_now(index: int) -> Position:
    """Return where the allocator of a device stands now; raises `Unavailable`."""
    try:
        return position(module(), index, _shared.forgotten)
    except (KeyError, *TORCH_ERRORS) as error:
        raise Unavailable(f"torch gives no memory statistics: {first_line(error)}") from error


def _failures(torch: ModuleType) -> dict[int, int]:
    """Return by device how many allocations have failed so far; empty if torch does not tell."""
    try:
        return {index: failed(torch, index) for index in in_use(torch)}
    except (KeyError, *TORCH_ERRORS):
        return {}


def _recordable() -> ModuleType:
    """Return torch, if its allocator in use here keeps a history."""
    torch = module()
    if torch is None:
        raise Unavailable("torch was imported within the measurement")
    if accelerator() != "cuda":  # torch 2.13 crashes if it is asked before CUDA is initialised
        raise Unavailable("torch keeps a history of CUDA devices only")
    if reason := why_not(torch):
        raise Unavailable(reason)
    return torch


def _may_begin_late(torch: ModuleType) -> bool:
    """Return whether CUDA may be initialised later, and torch can tell us then."""
    try:
        return bool(
            torch.cuda._is_compiled()
            and not torch.cuda._is_in_bad_fork()
            and hasattr(torch.cuda, "_lazy_call")
            and hasattr(torch.cuda, "_queued_calls")
        )
    except TORCH_ERRORS:
        return False


def _not_late(begin: Callable[[], None]) -> None:
    """Withdraw what was to be called once CUDA is initialised, if it was not."""
    torch = module()
    queued: list[Any] = getattr(getattr(torch, "cuda", None), "_queued_calls", [])
    for one in tuple(queued):
        if one[0] == begin:
            queued.remove(one)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.after_fork_in_child)
