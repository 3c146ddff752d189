"""What is reported of an out-of-memory error, with the one next step."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..records import OutOfMemory
from ..records.explained import requested
from ..records.units import MB, rounded_mb, shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..records import DeviceUsage
    from .oom_snapshot import OomSnapshot

_OWNERS_NAMED = 5
_HIDDEN_NAMED = 2
_ROUNDED = 4 * MB  # torch does not split off the last 1 MB of a large block: no variable holds that part
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def out_of_memory(
    snapshot: OomSnapshot, usages: Sequence[DeviceUsage], advised: dict[str, int | None]
) -> OutOfMemory:
    """Return what to report of an error, now that the cell's use of its devices is known.

    `advised` has, by device, what live arrays held as the cell began when it failed before and was advised to
    run again; None where unknown. This advice is added to it.
    """
    usage = next((one for one in usages if one.id == snapshot.device), None)
    before = _live_before(usage)
    neighbours = usage.neighbours_bytes if usage else None
    if neighbours is None:
        neighbours = sum(size_bytes for _, size_bytes in snapshot.message.neighbours) or None
    advice = _Advice(snapshot, usage, neighbours or 0, in_vain=_was_in_vain(advised, snapshot.device, before))
    if advice.says_run_again:
        advised.setdefault(snapshot.device, before)
    return OutOfMemory(
        snapshot.device,
        snapshot.message.requested_bytes,
        snapshot.free_bytes,
        snapshot.live_bytes,
        snapshot.cached_bytes,
        snapshot.fragmented_bytes,
        neighbours,
        snapshot.held_bytes("traceback"),
        snapshot.held_bytes("output"),
        snapshot.owners[:_OWNERS_NAMED],
        advice.text(),
    )


def _was_in_vain(advised: dict[str, int | None], device: str, before: int | None) -> bool:
    """Return whether the cell was run again as advised: it began with no more memory in use than then."""
    if device not in advised:
        return False
    then = advised[device]
    return then is None or before is None or before <= then + _ROUNDED


class _Advice:
    """The one next step: the first of several that would have made the cell run.

    If it was run again as advised, in vain, the figures after the error are not those at the error: in a
    moment of the cell its memory lay in pieces, or another process had more. So then what was free at the
    error counts, and what was cached there lay in pieces, for torch had released the rest.
    """

    def __init__(
        self, snapshot: OomSnapshot, usage: DeviceUsage | None, neighbours: int, *, in_vain: bool
    ) -> None:
        self._snapshot, self._message, self._neighbours = snapshot, snapshot.message, neighbours
        self._requested = snapshot.message.requested_bytes or 0
        self._free = snapshot.available_bytes
        self._need, self._available, self._left = self._if_run_again(usage)
        self._fragmented = snapshot.fragmented_bytes
        if in_vain:
            self._available = min(self._available, self._need - max(1, self._requested - (self._free or 0)))
            self._fragmented = max(self._fragmented or 0, snapshot.cached_bytes or 0)

    @property
    def says_run_again(self) -> bool:
        """Whether the step is to run the cell again, perhaps after something was released."""
        return bool(self._requested) and self._free is not None and self._available >= self._need

    def text(self) -> str:
        """Return the advice, in one or two sentences."""
        if not self._requested:
            return self._less("Use less at once: it is not known how much was asked for.")
        steps = (self._again(), self._expandable(), self._limit(), self._others(), self._smaller_batch())
        return next((step for step in steps if step), self._less(f"Use less at once: {self._missing()}."))

    def _if_run_again(self, usage: DeviceUsage | None) -> tuple[int, int, int]:
        """Return what the cell needs up to the failed allocation, what is available to it, and what it left.

        Available are what is free once memory is settled, the part of the allocator's cache that is not
        fragmented, and what the failed cell left, in hidden references and in variables that it set.
        """
        snapshot = self._snapshot
        allocated, reserved = snapshot.allocated_bytes or 0, snapshot.reserved_bytes or 0
        free = snapshot.device_free_bytes or 0
        if usage is not None and usage.allocated_bytes is not None:
            allocated, reserved = usage.allocated_bytes, usage.reserved_bytes or usage.allocated_bytes
            free = free if usage.free_bytes is None else usage.free_bytes
        live, before = snapshot.live_bytes or 0, _live_before(usage)
        before = live if before is None else min(before, live)
        if snapshot.limit_bytes is not None:
            free = min(free, max(0, snapshot.limit_bytes - reserved))
        in_one_piece = max(0, reserved - allocated - (snapshot.unused_in_pieces or 0))
        left = allocated - min(before, max(0, allocated - snapshot.hidden_bytes))
        need = live - before + self._requested + self._message.rounding_bytes
        return need, free + in_one_piece + left, left

    def _again(self) -> str:
        if not self.says_run_again:
            return ""
        return self._less(
            "Run the cell again: there is room for this allocation now.", "Then run the cell again: it fits."
        )

    def _expandable(self) -> str:
        setting, fragmented = self._message.setting, self._fragmented
        if not setting or _already_expandable() or not fragmented:
            return ""
        if fragmented + (self._free or 0) < self._requested:
            return ""
        return (
            f"Restart the kernel and run `%env {setting}=expandable_segments:True` before torch is imported:"
            f" {_mb(fragmented)} lie unused in pieces between tensors."
        )

    def _limit(self) -> str:
        free, limit = self._snapshot.free_bytes, self._snapshot.limit_bytes
        if limit is None or free is None or free < self._requested:
            return ""
        return (
            f"Raise the limit that this process set itself, {_mb(limit)}"
            ", by `torch.cuda.set_per_process_memory_fraction(1.0)` or CuPy's `set_limit`:"
            " the device has room."
        )

    def _others(self) -> str:
        if self._free is None or self._neighbours < MB:
            return ""
        if not self._free < self._requested <= self._free + self._neighbours:
            return ""
        pids = [str(pid) for pid, _ in self._message.neighbours]
        which = f"process{'es' if len(pids) > 1 else ''} {', '.join(pids)}" if pids else "other processes"
        return (
            f"End {which} or use another device: without the {_mb(self._neighbours)} of other processes it"
            " would have fit."
        )

    def _smaller_batch(self) -> str:
        batch = self._snapshot.batch
        if batch is None or batch.size <= 1 or self._free is None:
            return ""
        fits = batch.size * self._available // self._need
        if fits < 1:
            return self._less(f"Use less at once: {self._missing()}, and not even a batch of 1 fits.")
        return self._less(
            f"Use a smaller batch: at most `{batch.name} = {fits}` instead of {batch.size} fits here, less if"
            " the cell needs more after this line."
        )

    def _missing(self) -> str:
        if self._free is None:
            return f"{requested(self._requested)} were asked for"
        if self._free >= self._requested:
            return f"{requested(self._requested)} could not be had although {_mb(self._free)} were free"
        about = "about " if self._message.rounding_bytes >= MB else ""
        return f"{about}{_mb(self._need - self._available)} too much were asked for"

    def _less(self, sentence: str, after: str = "") -> str:
        """Return a step, preceded by how to release what the failed cell still holds."""
        hidden = self._snapshot.hidden_bytes
        steps = [f"`%gpulog free` gives {_mb(hidden)} back{self._whose()}."] if hidden >= MB else []
        if self._left - hidden >= max(_ROUNDED, hidden // 100):
            steps.append(f"`del` what the cell put into variables: {_mb(self._left - hidden)}.")
        return " ".join([*steps, after or sentence]) if steps else sentence

    def _whose(self) -> str:
        """Return, in parentheses, which hidden references hold the most."""
        held = [owner for owner in self._snapshot.owners if owner.kind in ("traceback", "output")]
        names = [
            shortened(owner.name.replace("last traceback: ", "the failed call's "))
            for owner in held[:_HIDDEN_NAMED]
        ]
        more = [f"{len(held) - len(names)} more"] if len(held) > len(names) else []
        return f" ({', '.join(names + more)})" if names else ""


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
