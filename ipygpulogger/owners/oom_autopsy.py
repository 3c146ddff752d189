"""A cell that ran out of device memory: what was asked, what there was, who held it, what to do next.

An `Autopsy` is made while the failed cell's memory is as the error left it, and keeps numbers alone: it
pins nothing of the user's. Its `verdict` needs what the cell had added, which is known later.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..records import OutOfMemory, Owner, device_id
from ..records.units import MB, rounded_mb
from ..sources import Unavailable
from .frames import chain, frames_of, is_shells, is_users_file, locals_of, message_of
from .oom_message import FRAMEWORKS, Said, first_word, out_of_memory_in, read
from .referents import own_attribute
from .roots import owners_in
from .walk import holding_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from ..records import DeviceUsage
    from ..sources import DeviceCounter, Framework

_OWNERS_NAMED = 5
_ROUNDED = 4 * MB  # torch leaves up to 1 MB of a large block to the tensor in it: no variable holds that
_BATCH = re.compile(r"(?:\w+_)?batch_?size|bsz?", re.IGNORECASE)  # `batch` counts them in many a loop
_SMALL = 1000  # names: a larger dict is nobody's settings


class Batch(NamedTuple):
    """A number that the failed code's memory seems to grow with, and what it is called."""

    name: str
    size: int


def examine(error: BaseException | None, shell: Any, frameworks: Sequence[Framework]) -> Autopsy | None:
    """Look at the memory as an out-of-memory error left it; None if it was no such error.

    Args:
        error: What ended the cell.
        shell: IPython's.
        frameworks: Those of this process.
    """
    cause = out_of_memory_in(error)
    if cause is None:
        return None
    said = read(message_of(cause))
    counter = _counter(cause, said, frameworks)
    device = counter.device.id if counter else device_id("gpu", said.device_index or 0)
    found = owners_in(shell, [framework.holding for framework in frameworks], error)
    allocated_bytes, reserved_bytes = _allocator(counter)
    memory = counter.device_memory() if counter else None
    return Autopsy(
        device,
        said,
        allocated_bytes,
        reserved_bytes,
        counter.fragmented_bytes() if counter else None,
        memory.free_bytes if memory else None,
        said.allowed_bytes or (counter.limit_bytes() if counter else None),
        tuple(owner for owner in found.owners if owner.device == device),
        found.complete,
        _batch_of(error, shell, frameworks),
    )


@dataclass(frozen=True)
class Autopsy:
    """One device right after an allocation on it failed, in bytes; None where unknown.

    Attributes:
        device: "cuda:0".
        said: What the error says.
        allocated: Held by live arrays.
        reserved: Held by the framework's allocator.
        fragmented: Of these, unused in pieces between live arrays.
        free: Free on the device.
        limit: The most the framework lets itself reserve.
        owners: Who holds the device's arrays, the largest first.
        complete: Whether there was time to find them all.
        batch: What the failed code's memory seems to grow with.
    """

    device: str
    said: Said
    allocated: int | None
    reserved: int | None
    fragmented: int | None
    free: int | None
    limit: int | None
    owners: tuple[Owner, ...]
    complete: bool
    batch: Batch | None

    def verdict(self, usages: Sequence[DeviceUsage]) -> OutOfMemory:
        """What to tell, now that the cell's use of its devices is known."""
        usage = next((one for one in usages if one.id == self.device), None)
        said_neighbours = sum(size_bytes for _, size_bytes in self.said.neighbours) or None
        neighbours = usage.neighbours_bytes if usage else None
        return OutOfMemory(
            self.device,
            self.said.asked_bytes,
            _exact(self.free, self.said.free_bytes),
            self.live_bytes,
            self.cached_bytes,
            self.fragmented_bytes,
            said_neighbours if neighbours is None else neighbours,
            self._held_bytes("traceback"),
            self._held_bytes("output"),
            self.owners[:_OWNERS_NAMED],
            _Advice(self, usage, said_neighbours if neighbours is None else neighbours).text(),
        )

    @property
    def live_bytes(self) -> int | None:
        """Held by live arrays when the allocation failed."""
        return _exact(self.allocated, self.said.live_bytes)

    @property
    def cached_bytes(self) -> int | None:
        """Held by the framework's allocator, unused, when the allocation failed."""
        if self.allocated is None or self.reserved is None:
            return self.said.cached_bytes
        return _exact(self.reserved - self.allocated, self.said.cached_bytes)

    @property
    def fragmented_bytes(self) -> int | None:
        """Of the cached bytes, those in pieces between live arrays."""
        if self.fragmented is None or self.cached_bytes is None:
            return self.fragmented
        return min(self.fragmented, self.cached_bytes)

    @property
    def hidden_bytes(self) -> int:
        """Held by the traceback and by `Out` alone."""
        return self._held_bytes("traceback") + self._held_bytes("output")

    def _held_bytes(self, kind: str) -> int:
        return sum(owner.size_bytes for owner in self.owners if owner.kind == kind)


class _Advice:
    """The one next step: the first of these that would have made the cell run."""

    def __init__(self, autopsy: Autopsy, usage: DeviceUsage | None, neighbours: int | None) -> None:
        self._autopsy, self._said = autopsy, autopsy.said
        self._neighbours = neighbours or 0
        self._asked = autopsy.said.asked_bytes or 0
        self._free = self._free_when_it_failed()
        self._need, self._available, self._left = self._if_run_again(usage)

    def text(self) -> str:
        if not self._asked:
            return self._less("It is not known how much was asked for: use less at once.")
        steps = (self._again(), self._expandable(), self._limit(), self._others(), self._smaller_batch())
        return next((step for step in steps if step), self._less(f"{self._missing()}: use less at once."))

    def _free_when_it_failed(self) -> int | None:
        """What the framework could still have taken from the device."""
        free, autopsy = _exact(self._autopsy.free, self._said.free_bytes), self._autopsy
        if free is None or autopsy.limit is None:
            return free
        reserved = (autopsy.live_bytes or 0) + (autopsy.cached_bytes or 0)
        return min(free, max(0, autopsy.limit - reserved))

    def _if_run_again(self, usage: DeviceUsage | None) -> tuple[int, int, int]:
        """What the cell needs up to the same point, what it would have, and what it left behind.

        It would have what is free now that memory is at rest, the allocator's cache as far as it is in
        one piece, and what the failed cell left: in hidden references, and in variables that it set.
        """
        autopsy = self._autopsy
        allocated, reserved, free = autopsy.allocated or 0, autopsy.reserved or 0, autopsy.free or 0
        if usage is not None and usage.allocated_bytes is not None:
            allocated, reserved = usage.allocated_bytes, usage.reserved_bytes or usage.allocated_bytes
            free = free if usage.free_bytes is None else usage.free_bytes
        live, before = autopsy.live_bytes or 0, _live_before(usage)
        before = live if before is None else min(before, live)
        if autopsy.limit is not None:
            free = min(free, max(0, autopsy.limit - reserved))
        in_one_piece = max(0, reserved - allocated - (autopsy.fragmented or 0))
        left = allocated - min(before, max(0, allocated - autopsy.hidden_bytes))
        need = live - before + self._asked + self._said.rounding_bytes
        return need, free + in_one_piece + left, left

    def _again(self) -> str:
        if self._free is None or self._available < self._need:
            return ""
        return self._less(
            "Run the cell again: there is room for it now.", "Run the cell again: it fits then."
        )

    def _expandable(self) -> str:
        autopsy, setting = self._autopsy, self._said.setting
        fragmented = autopsy.fragmented_bytes
        if not setting or _already_expandable() or not fragmented:
            return ""
        if fragmented + (self._free or 0) < self._asked:
            return ""
        return (
            f"Restart the kernel with {setting}=expandable_segments:True, set before torch is imported:"
            f" {_mb(fragmented)} lie unused in pieces between tensors."
        )

    def _limit(self) -> str:
        free = _exact(self._autopsy.free, self._said.free_bytes)
        if self._autopsy.limit is None or free is None or free < self._asked:
            return ""
        return (
            f"Raise the limit that this process set itself, {_mb(self._autopsy.limit)}"
            " (torch: `set_per_process_memory_fraction`, CuPy: `set_limit`): the device has room."
        )

    def _others(self) -> str:
        if self._free is None or self._neighbours < MB:
            return ""
        if not self._free < self._asked <= self._free + self._neighbours:
            return ""
        pids = ", ".join(str(pid) for pid, _ in self._said.neighbours)
        named = f" ({'process' if len(self._said.neighbours) == 1 else 'processes'} {pids})" if pids else ""
        return (
            f"Without the {_mb(self._neighbours)} of other processes{named} it would have fit:"
            " end them or use another device."
        )

    def _smaller_batch(self) -> str:
        batch = self._autopsy.batch
        if batch is None or batch.size <= 1 or self._free is None:
            return ""
        fits = batch.size * self._available // self._need
        if fits < 1:
            return self._less(f"{self._missing()}: not even a batch of 1 fits.")
        return self._less(
            f"Use a smaller batch: {fits} instead of {batch.size} ({batch.name}) would have fit here, if what"
            " the cell needs grows with it."
        )

    def _missing(self) -> str:
        if self._free is None:
            return f"{_mb(self._asked)} were asked for"
        return f"{_mb(self._asked - self._free)} too much were asked for"

    def _less(self, sentence: str, after: str = "") -> str:
        """A step, and before it, where the failed cell still holds memory, what gives that back."""
        hidden = self._autopsy.hidden_bytes
        steps = [f"`%gpulog free` (gives {_mb(hidden)} back)"] if hidden >= MB else []
        if self._left - hidden >= max(_ROUNDED, hidden // 100):
            steps.append(f"`del` what the cell put into variables ({_mb(self._left - hidden)})")
        return f"First {' and '.join(steps)}. {after or sentence}" if steps else sentence


def _exact(counted: int | None, said: int | None) -> int | None:
    """What was counted, if it is what the error said, which is rounded; else memory has moved since."""
    if counted is None or said is None:
        return said if counted is None else counted
    return counted if abs(counted - said) <= 6 * MB else said


# -- the device ------------------------------------------------------------------------------------


def _counter(cause: BaseException, said: Said, frameworks: Sequence[Framework]) -> DeviceCounter | None:
    names = {FRAMEWORKS.get(first_word(base)) for base in type(cause).__mro__}
    for framework in sorted(frameworks, key=lambda framework: framework.name not in names):
        index = framework.current_index() if said.device_index is None else said.device_index
        for counter in framework.counters():
            if counter.device.index == index:
                return counter
    return None


def _allocator(counter: DeviceCounter | None) -> tuple[int | None, int | None]:
    """Allocated and reserved bytes; where nobody tells what is reserved, nothing is cached."""
    try:
        readings = counter.look().readings if counter else ()
    except Unavailable:
        readings = ()
    if not readings:
        return None, None
    return readings[0].current_bytes, readings[min(1, len(readings) - 1)].current_bytes


def _live_before(usage: DeviceUsage | None) -> int | None:
    """What arrays held when the cell began."""
    if usage is None or usage.allocated_bytes is None:
        return None
    outside = usage.after_bytes - usage.allocated_bytes
    return max(0, usage.before_bytes - outside)


def _already_expandable() -> bool:
    return any("expandable_segments:true" in os.environ.get(name, "").lower() for name in _SETTINGS)


_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


# -- the batch -------------------------------------------------------------------------------------


def _batch_of(error: BaseException | None, shell: Any, frameworks: Sequence[Framework]) -> Batch | None:
    """What names the batch nearest to where it failed; else the leading dimension its arrays share."""
    frames = [frame for one in chain(error) for frame in reversed(frames_of(one)) if not is_shells(frame)]
    users = [
        frame
        for frame in frames
        if frame.f_globals is shell.user_ns or is_users_file(frame.f_code.co_filename)
    ]
    for names in _namespaces(users):
        for name, value in names:
            if type(value) is int and value > 0 and type(name) is str and _BATCH.fullmatch(name):
                return Batch(f"{name} = {value}", value)
    return _leading_dimension(users, shell, frameworks)


def _namespaces(frames: list[FrameType]) -> Iterator[list[tuple[Any, Any]]]:
    """The names seen from each frame: its own, those in its objects and dicts, its globals."""
    for frame in frames:
        names = locals_of(frame)
        yield names
        yield from (_names_in(value) for _, value in names)
    for names in {id(frame.f_globals): list(frame.f_globals.items()) for frame in frames}.values():
        yield names
        yield from (_names_in(value) for name, value in names if name[:1] != "_")


def _names_in(value: Any) -> list[tuple[Any, Any]]:
    """The settings in a dict or in an object's own attributes, such as `args.batch_size`."""
    if type(value) is not dict:
        if issubclass(type(value), (type, ModuleType)):
            return []
        value = own_attribute(value, "__dict__")
    return list(value.items()) if type(value) is dict and len(value) <= _SMALL else []


def _leading_dimension(frames: list[FrameType], shell: Any, frameworks: Sequence[Framework]) -> Batch | None:
    found: Counter[int] = Counter()
    seen = set()
    for frame in frames:
        for _, value in locals_of(frame) if frame.f_locals is not shell.user_ns else ():
            for framework in frameworks:
                holding = holding_of(value, (framework.holding,))
                if holding is not None and holding.key not in seen:
                    seen.add(holding.key)
                    size = framework.leading_dimension(value)
                    if size is not None and size > 1:
                        found[size] += 1
    for size, arrays in found.most_common(1):
        if arrays > 1:
            return Batch("the leading dimension", size)
    return None


def _mb(size_bytes: int) -> str:
    return f"{rounded_mb(size_bytes)} MB"
