"""Why a cell ran out of device memory: what was requested, what was there, who held it, what to do next.

An `Autopsy` is made while the failed cell's memory is as the error left it. It keeps only numbers and names,
so that no memory of the user's is kept alive. Its `verdict` also needs what the cell consumed, which is known
later.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..records import OutOfMemory, Owner
from ..records.out_of_memory import requested
from ..records.units import MB, rounded_mb, shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..records import DeviceUsage
    from .oom_again import RunAgain
    from .oom_batch import Batch
    from .oom_message import Said

_OWNERS_NAMED = 5
_HIDDEN_NAMED = 2
_ROUNDED = 4 * MB  # torch does not split off the last 1 MB of a large block: no variable holds that part
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


@dataclass(frozen=True)
class Autopsy:
    """One device right after an allocation on it failed, in bytes; None where unknown.

    Attributes:
        device: "cuda:0".
        said: What the message of the error says.
        allocated: Held by live arrays.
        reserved: Held by the framework's allocator.
        fragmented: The part of these that is unused, in pieces between live arrays.
        free: Free on the device.
        limit: The most that the framework may reserve.
        owners: The names that the device's arrays are attributed to, the largest first.
        complete: Whether the time budget was enough to find all of them.
        batch: The batch size of the failed code.
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

    def verdict(self, usages: Sequence[DeviceUsage], run_again: RunAgain | None = None) -> OutOfMemory:
        """Return what to report, now that the cell's use of its devices is known.

        Args:
            usages: Of the devices.
            run_again: What the cell was told when it failed before; by default nothing.
        """
        usage = next((one for one in usages if one.id == self.device), None)
        before = _live_before(usage)
        in_vain = run_again is not None and run_again.was_in_vain(self.device, before)
        said_neighbours = sum(size_bytes for _, size_bytes in self.said.neighbours) or None
        neighbours = usage.neighbours_bytes if usage else None
        neighbours = said_neighbours if neighbours is None else neighbours
        advice = _Advice(self, usage, neighbours, in_vain=in_vain)
        if run_again is not None and advice.says_again:
            run_again.told(self.device, before)
        return OutOfMemory(
            self.device,
            self.said.asked_bytes,
            self.free_bytes,
            self.live_bytes,
            self.cached_bytes,
            self.fragmented_bytes,
            neighbours,
            self._held_bytes("traceback"),
            self._held_bytes("output"),
            self.owners[:_OWNERS_NAMED],
            advice.text(),
        )

    @property
    def free_bytes(self) -> int | None:
        """Free on the device when the allocation failed."""
        return _at_the_error(self.free, self.said.free_bytes)

    @property
    def live_bytes(self) -> int | None:
        """Held by live arrays when the allocation failed."""
        return _at_the_error(self.allocated, self.said.live_bytes)

    @property
    def cached_bytes(self) -> int | None:
        """Held by the framework's allocator, unused, when the allocation failed."""
        if self.allocated is None or self.reserved is None:
            return self.said.cached_bytes
        return _at_the_error(self.reserved - self.allocated, self.said.cached_bytes)

    @property
    def fragmented_bytes(self) -> int | None:
        """The part of the cached bytes that is in pieces between live arrays."""
        if self.fragmented is None or self.cached_bytes is None:
            return self.fragmented
        return min(self.fragmented, self.cached_bytes)

    @property
    def hidden_bytes(self) -> int:
        """Held only by the last traceback and by `Out`."""
        return self._held_bytes("traceback") + self._held_bytes("output")

    def _held_bytes(self, kind: str) -> int:
        return sum(owner.size_bytes for owner in self.owners if owner.kind == kind)


class _Advice:
    """The one next step: the first of several that would have made the cell run.

    If it was run again as advised, in vain, the figures after the error are not those at the error: in a
    moment of the cell its memory lay in pieces, or another process had more. So then what was free at the
    error counts, and what was cached there lay in pieces, for torch had released the rest.
    """

    def __init__(
        self, autopsy: Autopsy, usage: DeviceUsage | None, neighbours: int | None, *, in_vain: bool = False
    ) -> None:
        self._autopsy, self._said = autopsy, autopsy.said
        self._neighbours = neighbours or 0
        self._asked = autopsy.said.asked_bytes or 0
        self._free = self._free_when_it_failed()
        self._need, self._available, self._left = self._if_run_again(usage)
        self._fragmented = autopsy.fragmented_bytes
        if in_vain:
            self._available = min(self._available, self._need - max(1, self._asked - (self._free or 0)))
            self._fragmented = max(self._fragmented or 0, autopsy.cached_bytes or 0)

    @property
    def says_again(self) -> bool:
        """Whether the step is to run the cell again, perhaps after something was released."""
        return bool(self._asked) and self._free is not None and self._available >= self._need

    def text(self) -> str:
        """Return the advice, in one or two sentences."""
        if not self._asked:
            return self._less("Use less at once: it is not known how much was asked for.")
        steps = (self._again(), self._expandable(), self._limit(), self._others(), self._smaller_batch())
        return next((step for step in steps if step), self._less(f"Use less at once: {self._missing()}."))

    def _free_when_it_failed(self) -> int | None:
        """Return what the framework could still have reserved on the device."""
        free, autopsy = self._autopsy.free_bytes, self._autopsy
        if free is None or autopsy.limit is None:
            return free
        reserved = (autopsy.live_bytes or 0) + (autopsy.cached_bytes or 0)
        return min(free, max(0, autopsy.limit - reserved))

    def _if_run_again(self, usage: DeviceUsage | None) -> tuple[int, int, int]:
        """Return what the cell needs up to the failed allocation, what is available to it, and what it left.

        Available are what is free once memory is settled, the part of the allocator's cache that is not
        fragmented, and what the failed cell left, in hidden references and in variables that it set.
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
        if not self.says_again:
            return ""
        return self._less(
            "Run the cell again: there is room for this allocation now.", "Then run the cell again: it fits."
        )

    def _expandable(self) -> str:
        setting, fragmented = self._said.setting, self._fragmented
        if not setting or _already_expandable() or not fragmented:
            return ""
        if fragmented + (self._free or 0) < self._asked:
            return ""
        return (
            f"Restart the kernel and run `%env {setting}=expandable_segments:True` before torch is imported:"
            f" {_mb(fragmented)} lie unused in pieces between tensors."
        )

    def _limit(self) -> str:
        free = self._autopsy.free_bytes
        if self._autopsy.limit is None or free is None or free < self._asked:
            return ""
        return (
            f"Raise the limit that this process set itself, {_mb(self._autopsy.limit)}"
            ", by `torch.cuda.set_per_process_memory_fraction(1.0)` or CuPy's `set_limit`:"
            " the device has room."
        )

    def _others(self) -> str:
        if self._free is None or self._neighbours < MB:
            return ""
        if not self._free < self._asked <= self._free + self._neighbours:
            return ""
        pids = ", ".join(str(pid) for pid, _ in self._said.neighbours)
        which = (
            f"process{'es' if len(self._said.neighbours) > 1 else ''} {pids}" if pids else "other processes"
        )
        return (
            f"End {which} or use another device: without the {_mb(self._neighbours)} of other processes it"
            " would have fit."
        )

    def _smaller_batch(self) -> str:
        batch = self._autopsy.batch
        if batch is None or batch.size <= 1 or self._free is None:
            return ""
        fits = batch.size * self._available // self._need
        if fits < 1:
            return self._less(f"Use less at once: {self._missing()}, and not even a batch of 1 fits.")
        return self._less(
            f"Use a smaller batch: at most {batch.of_size(fits)} instead of {batch.size} fits here, less if"
            " the cell needs more after this line."
        )

    def _missing(self) -> str:
        if self._free is None:
            return f"{requested(self._asked)} were asked for"
        if self._free >= self._asked:
            return f"{requested(self._asked)} could not be had although {_mb(self._free)} were free"
        about = "about " if self._said.rounding_bytes >= MB else ""
        return f"{about}{_mb(self._need - self._available)} too much were asked for"

    def _less(self, sentence: str, after: str = "") -> str:
        """Return a step, preceded by how to release what the failed cell still holds."""
        hidden = self._autopsy.hidden_bytes
        steps = [f"`%gpulog free` gives {_mb(hidden)} back{self._whose()}."] if hidden >= MB else []
        if self._left - hidden >= max(_ROUNDED, hidden // 100):
            steps.append(f"`del` what the cell put into variables: {_mb(self._left - hidden)}.")
        return " ".join([*steps, after or sentence]) if steps else sentence

    def _whose(self) -> str:
        """Return, in parentheses, which hidden references hold the most."""
        held = [owner for owner in self._autopsy.owners if owner.kind in ("traceback", "output")]
        names = [
            shortened(owner.name.replace("last traceback: ", "the failed call's "))
            for owner in held[:_HIDDEN_NAMED]
        ]
        more = [f"{len(held) - len(names)} more"] if len(held) > len(names) else []
        return f" ({', '.join(names + more)})" if names else ""


def _at_the_error(counted: int | None, said: int | None) -> int | None:
    """Return a figure at the error: as counted, unless the message differs by more than its rounding.

    If it differs, memory has changed since, and the figure of the message is the better one.
    """
    if counted is None or said is None:
        return said if counted is None else counted
    return counted if abs(counted - said) <= 6 * MB else said


def _live_before(usage: DeviceUsage | None) -> int | None:
    """Return what arrays held when the cell began; None where unknown."""
    if usage is None or usage.allocated_bytes is None:
        return None
    outside = usage.after_bytes - usage.allocated_bytes
    return max(0, usage.before_bytes - outside)


def _already_expandable() -> bool:
    """Return whether torch's expandable segments are switched on in the environment."""
    return any("expandable_segments:true" in os.environ.get(name, "").lower() for name in _SETTINGS)


def _mb(size_bytes: int) -> str:
    return f"{rounded_mb(size_bytes)} MB"
