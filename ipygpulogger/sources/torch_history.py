"""torch's own history of its CUDA allocator: recorded while one of our recordings needs it, and read.

There is one history per process. A recording that the user has begun is read and otherwise left alone. If
the user begins or ends one while ours is on, what was recorded until then is first copied for us, and the
user finds what there would be without us: a recording that begins empty, or none.
"""

from __future__ import annotations

import itertools
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..runtime.collector import undisturbed
from ..runtime.errors import first_line
from ..runtime.signals import is_from_a_handler
from ..runtime.wrappers import Wrappers
from .counter import Unavailable
from .snapshot_file import kept_snapshot
from .torch_snapshot import Position, failed, in_use, is_on, position, start, stop, take, why_not
from .torch_state import TORCH_ERRORS, accelerator, module

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from .snapshot_file import KeptSnapshot
    from .torch_snapshot import Event, Snapshot, Stand

_RECORDS = "_cuda_record_memory_history", "_cuda_record_memory_history_legacy"
_RESETS = "_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats"


@dataclass(frozen=True, slots=True)
class DeviceHistory:
    """What the allocator of one device did.

    Attributes:
        index: torch's index of the device.
        events: In their order; older ones may be missing.
        begin: How it stood when the recording began; None if the device was not used yet.
        end: How it stood after the events.
        settings: The allocator's, as torch's snapshot has them.
        ours: Whether all of it is from a recording of ours. Another may have recorded no stacks, or for a
            block that was freed the stack of the free.
    """

    index: int
    events: list[Event]
    begin: Stand | None
    end: Stand
    settings: dict[str, Any]
    ours: bool = True


class TorchHistory:
    """One recording of ours; several may be under way at once.

    Attributes:
        failed: torch's snapshot at the last `read`, if an allocation failed in this recording; None while it
            is the user who records, whose history does not end with ours.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._began: dict[int, Stand] = {}
        self._failed: dict[int, int] = {}  # allocations until then, by device
        self._on = self._over = False
        self.failed: KeptSnapshot | None = None

    def begin(self) -> None:
        """Let torch record, if it does not yet, and look at the blocks that exist.

        If torch has not initialised CUDA yet, it begins to record when it does.

        Raises:
            Unavailable: torch cannot record here; one sentence says why.
        """
        torch = module()
        if torch is not None and accelerator() is None and _may_begin_late(torch):
            torch.cuda._lazy_call(self._begin_late)
            return
        self._begin(_recordable())
        try:
            with undisturbed():
                self._began = take(_recordable(), _shared.forgotten, events=False).stands
                self._failed = _failures(_recordable())
        except BaseException:
            self.end()
            raise

    def read(self) -> list[DeviceHistory]:
        """Return what happened so far on each device that is in use.

        Raises:
            Unavailable: torch's history cannot be read.
        """
        if self._pid != os.getpid():
            raise Unavailable("torch's memory history is not recorded")
        torch = _recordable()
        if not self._on:
            raise Unavailable("torch's memory history is not recorded")
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


class _Kept(NamedTuple):
    """Events of one device, and the position after them."""

    events: list[Event]
    end: Position


class _Shared:
    """The history of this process, and who needs it.

    Attributes:
        lock: Held while it is begun, read or ended, by any thread.
        forgotten: By device, where it stood when the user last reset torch's counts.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._wrappers = Wrappers(lambda: getattr(module(), "_C", None))
        self._users = 0
        self._theirs = False  # the recording that is on is not ours
        self._ours = True  # no other was on since the first one who needs it began
        self._calling = False  # it is us who call torch, under the lock
        self._kept: dict[int, _Kept] = {}  # which torch has forgotten since, by device
        self.forgotten: dict[int, Position] = {}

    def begin(self, torch: ModuleType) -> None:
        """Record for one more."""
        with self.lock:
            if not self._users:
                self._kept.clear()
                self.forgotten.clear()
                self._theirs = is_on(torch)
                self._ours = not self._theirs
                self._wrappers.put_on(
                    {
                        **dict.fromkeys(_RECORDS, self._record_wrapper),
                        **dict.fromkeys(_RESETS, self._reset_wrapper),
                    }
                )
                try:
                    if not self._theirs:
                        self._call(start, torch)
                except BaseException:
                    self._wrappers.take_off()
                    raise
            self._users += 1

    def end(self) -> None:
        """Record for one less."""
        with self.lock:
            self._users -= 1
            if self._users:
                return
            self._kept.clear()
            torch = module()
            try:
                if torch is not None and not self._theirs:
                    self._call(stop, torch)
            finally:
                self._wrappers.take_off()

    def read(self, torch: ModuleType, began: dict[int, Stand]) -> tuple[list[DeviceHistory], Snapshot | None]:
        """Return the history of each device, and what torch answered; None while the user records."""
        with self.lock:
            snapshot = take(torch, self.forgotten, events=True)
            kept, ours, theirs = self._joined(snapshot), self._ours, self._theirs
        histories = [
            DeviceHistory(index, kept[index].events, began.get(index), stand, snapshot.settings, ours)
            for index, stand in sorted(snapshot.stands.items())
            if index in kept
        ]
        return histories, None if theirs else snapshot

    def after_fork_in_child(self) -> None:
        """Forget who needs it: the child can neither use the parent's context nor end its recording."""
        self.lock = threading.RLock()  # another thread may have held it at the moment of the fork
        self._wrappers.after_fork_in_child()
        self._users, self._calling = 0, False

    def _joined(self, snapshot: Snapshot) -> dict[int, _Kept]:
        """Return what was kept and the latest events, by device, where nothing is missing in between."""
        found = {}
        for index, stand in snapshot.stands.items():
            if index < len(snapshot.traces):
                events, earlier = snapshot.traces[index], self._kept.get(index)
                later = None if earlier is None else _since(events, stand.before, earlier)
                if earlier is not None and later is not None:
                    events = earlier.events + later
                found[index] = _Kept(events, stand.before)
        return found

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
                if self._calling or not self._users:
                    return original(*args, **kwargs)
                self._hand_over()
                try:
                    return original(*args, **kwargs)
                finally:
                    self._take_over()

        return record_memory_history

    def _hand_over(self) -> None:
        """Before the user begins or ends a recording: copy what there is, and end our own."""
        torch = module()
        try:
            assert torch is not None
            with undisturbed():
                self._kept = self._joined(take(torch, self.forgotten, events=True))
            if not self._theirs:
                self._call(stop, torch)
        except Exception as reason:
            if is_from_a_handler(reason):
                raise

    def _take_over(self) -> None:
        """After that: record again ourselves, unless the user does."""
        torch = module()
        try:
            assert torch is not None
            self._theirs = is_on(torch)
            self._ours = self._ours and not self._theirs
            if not self._theirs:
                self._call(start, torch)
        except Exception as reason:
            if is_from_a_handler(reason):
                raise

    def _reset_wrapper(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def reset_accumulated_stats(index: int) -> Any:
            with self.lock:
                if self._users:
                    with suppress(KeyError, *TORCH_ERRORS):  # the user's own call tells what is wrong
                        self.forgotten[index] = position(module(), index, self.forgotten)
                return original(index)

        return reset_accumulated_stats


def _since(events: list[Event], end: Position, earlier: _Kept) -> list[Event] | None:
    """Return those events that came after others; None if not all of them are there.

    Args:
        events: In their order. If the user began to record twice, the first of them are the others once more.
        end: The position after them.
        earlier: The others.
    """
    allocated, blocks, first = end.allocated, end.blocks, None
    for i in range(len(events), -1, -1):
        if (allocated, blocks) == (earlier.end.allocated, earlier.end.blocks):
            first = i  # of several the first: what lies between them changed no block in use
        elif first is not None:
            break
        action = events[i - 1]["action"] if i else ""
        if action == "alloc":
            allocated, blocks = allocated - 1, blocks - 1
        elif action == "free_requested":
            blocks += 1
    if first is None:
        return None
    ends_us = earlier.events[-1]["time_us"] if earlier.events else 0
    return list(itertools.dropwhile(lambda event: event["time_us"] < ends_us, events[first:]))


_shared = _Shared()


def forgotten_allocations(index: int) -> int:
    """Return how many allocations on a device torch no longer counts, since the user reset its counts.

    The history goes on counting them. So this is added to a count of torch before the two are compared.
    """
    return _shared.forgotten.get(index, Position()).allocated


def position_now(index: int) -> Position:
    """Return where the allocator of a device stands now.

    Raises:
        Unavailable: torch does not tell.
    """
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
