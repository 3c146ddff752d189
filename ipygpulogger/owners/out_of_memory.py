"""An out-of-memory error: memory as it left it, before it is settled, and what is reported of it.

Only numbers and names are kept, so that no memory of the user's is kept alive.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from ..engine.machine import machine
from ..records import CPU, DeviceUsage, OutOfMemory, device_id
from ..records.explained import requested
from ..records.units import MB, rounded_mb, shortened, size_text
from ..sources import DeviceCounter, Framework, Unavailable
from .attribution import WalkResult
from .dimensions import find_batch
from .memory_blocks import array_readers
from .referents import FRAMEWORKS, asked_of_ram, first_word, message_of, out_of_memory_in, ram_error_in
from .roots import LAST, owners_in

_SIZE = r"(?P<number>\d[\d,]*(?:\.\d+)?)\s*(?P<unit>bytes|[KMGT]i?B)\b"
_SIZES = {  # by field of `OomMessage`, how torch, JAX and CuPy say it
    "requested_bytes": rf"(?i:tr(?:ied|ying) to allocate|out of memory allocating)\s+{_SIZE}",
    "free_bytes": rf"of which {_SIZE} is free",
    "live_bytes": rf"(?:Of the allocated memory|allocated so far:) {_SIZE}",
    "cached_bytes": rf"{_SIZE} is reserved by PyTorch but unallocated",
}
_INDEX = re.compile(r"\bGPU[ _:](\d+)|\b(?:cuda|xpu|hip|mps):(\d+)")
_SETTING = re.compile(r"(PYTORCH_\w*ALLOC_CONF)=expandable_segments")
_HIDDEN = "traceback", "output"  # the kinds of owners that are hidden references
_SAME_BYTES = 6 * MB  # a figure that differs by more than a message's rounding has changed since


class OomMessage(NamedTuple):
    """What an error's message says; None where it does not."""

    requested_bytes: int | None = None  # what was requested
    free_bytes: int | None = None  # free on the device
    live_bytes: int | None = None  # held by the framework's arrays
    cached_bytes: int | None = None  # held by its allocator, unused
    device_index: int | None = None  # the framework's index of the device
    setting: str | None = None  # the environment variable that switches on expandable segments


def read_message(message: str) -> OomMessage:
    """Read the figures in a message of torch, JAX or CuPy."""
    said = {field: re.search(pattern, message) for field, pattern in _SIZES.items()}
    index, setting = _INDEX.search(message), _SETTING.search(message)
    return OomMessage(
        **{field: _size_in(found) for field, found in said.items() if found},
        device_index=int(index[1] or index[2]) if index else None,
        setting=setting[1] if setting else None,
    )


def _size_in(found: re.Match[str]) -> int:
    unit = found["unit"]
    unit_bytes = 1 if unit == "bytes" else int(1024 ** " KMGT".index(unit[0]))
    return round(float(found["number"].replace(",", "")) * unit_bytes)


class OomSnapshot(NamedTuple):
    """One device, or general RAM, right after an allocation there failed, in bytes; None where unknown."""

    device: str  # "cuda:0", "cpu"
    report: OutOfMemory  # of when the allocation failed: with all owners, and without neighbours and advice
    complete: bool  # whether the time budget was enough to find all owners
    message: OomMessage  # what the message of the error says
    available_bytes: int | None  # what of the free bytes the framework could have reserved
    # As counted after the error: held by live arrays, and by the allocator; unused in pieces; free.
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    unused_in_pieces: int | None = None
    device_free_bytes: int | None = None
    limit_bytes: int | None = None  # the most that the framework may reserve
    batch: tuple[str, int] | None = None  # the batch size of the failed code: a variable and its value
    limit: str = ""  # of general RAM the tightest, as words


def _snapshot(
    device: str, found: WalkResult, message: OomMessage, figures: Any, *more: Any, **named: Any
) -> OomSnapshot:
    """Return a snapshot; `figures`: free, live, cached and fragmented bytes of the report."""
    owners = tuple(one for one in found.owners if one.device == device and one.size_bytes >= MB)
    held = (sum(one.size_bytes for one in owners if one.kind == kind) for kind in _HIDDEN)
    figures = *figures, None, *held, owners, ""
    report = OutOfMemory(device, message.requested_bytes, *figures)
    return OomSnapshot(device, report, found.complete, message, *more, **named)


def _at_the_error(counted: int | None, said: int | None) -> int | None:
    """Return a figure at the error: as counted, unless memory has changed since; then the message's."""
    if counted is None or said is None:
        return said if counted is None else counted
    return counted if abs(counted - said) <= _SAME_BYTES else said


def oom_snapshot(
    error: BaseException | None, shell: Any, frameworks: Sequence[Framework]
) -> OomSnapshot | None:
    """Return the memory that an out-of-memory error left; None if the error is of another kind."""
    cause = out_of_memory_in(error)
    if cause is None:
        return _ram_snapshot(error, shell)
    message = read_message(message_of(cause))
    counter = _counter(cause, message, frameworks)
    said = "gpu" if message.device_index is None else device_id("gpu", message.device_index)
    device = counter.device.id if counter else said
    found = owners_in(shell, [framework.holding for framework in frameworks], error)
    sizes: list[int] = []
    with suppress(Unavailable):
        sizes = [one.current_bytes for one in counter.observe().readings[:2]] if counter else []
    allocated, reserved = (sizes[0], sizes[-1]) if sizes else (None, None)  # of one alone, nothing is cached
    memory = counter.device_memory() if counter else None
    device_free = memory.free_bytes if memory else None
    pieces = fragmented = counter.fragmented_bytes() if counter else None
    limit = counter.limit_bytes() if counter else None
    free = available = _at_the_error(device_free, message.free_bytes)
    live, cached = _at_the_error(allocated, message.live_bytes), message.cached_bytes
    if allocated is not None and reserved is not None:
        cached = _at_the_error(reserved - allocated, cached)
    if pieces is not None and cached is not None:
        fragmented = min(pieces, cached)
    if free is not None and limit is not None:
        available = min(free, max(0, limit - (live or 0) - (cached or 0)))
    counted = allocated, reserved, pieces, device_free, limit
    figures = free, live, cached, fragmented
    return _snapshot(device, found, message, figures, available, *counted, find_batch(error, shell))


def _ram_snapshot(error: BaseException | None, shell: Any) -> OomSnapshot | None:
    """Return the same of general RAM: what its tightest limit leaves, beyond which allocating fails."""
    cause = ram_error_in(error)
    if cause is None:
        return None
    limit, message = machine().limits.refusing(), read_message(message_of(cause))
    if message.requested_bytes is None:
        message = OomMessage(asked_of_ram(cause))
    left = None if limit is None else limit.left_bytes
    said = "" if limit is None else f"the limit is {size_text(limit.limit_bytes)} ({limit.name})"
    found = owners_in(shell, array_readers(), error)
    figures = left, None, None, None
    return _snapshot(CPU, found, message, figures, left, device_free_bytes=left, limit=said)


def _counter(
    cause: BaseException, message: OomMessage, frameworks: Sequence[Framework]
) -> DeviceCounter | None:
    """Return the counter of the device that ran out, if possible of the framework that raised the error."""
    names = {FRAMEWORKS.get(first_word(base)) for base in type(cause).__mro__}
    for framework in sorted(frameworks, key=lambda framework: framework.name not in names):
        index = framework.current_index() if message.device_index is None else message.device_index
        for counter in framework.counters():
            if counter.device.index == index:
                return counter
    return None


# -- what is reported of it, with the one next step

_OWNERS_NAMED, _HIDDEN_NAMED = 5, 2
_ROUNDED = 4 * MB  # torch does not split off the last 1 MB of a large block: no variable holds that part
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def out_of_memory(snapshot: OomSnapshot, usages: Sequence[DeviceUsage]) -> OutOfMemory:
    """Return what to report of an error, now that the cell's use of its devices is known."""
    usage = next((one for one in usages if one.id == snapshot.device), None)
    neighbours = usage.neighbours_bytes if usage else None
    advice = next(_Advice(snapshot, usage, neighbours or 0).steps())
    owners = snapshot.report.owners[:_OWNERS_NAMED]
    return replace(snapshot.report, neighbours_bytes=neighbours, owners=owners, advice=advice)


class _Advice:
    """The one next step: the first of several that would have made the cell run."""

    def __init__(self, snapshot: OomSnapshot, usage: DeviceUsage | None, neighbours: int) -> None:
        self._snapshot, self._report, self._neighbours = snapshot, snapshot.report, neighbours
        self._requested, self._free = self._report.asked_bytes or 0, snapshot.available_bytes
        self._hidden = self._report.traceback_bytes + self._report.outputs_bytes
        self._need, self._available, self._left, self._earlier = self._if_run_again(usage)

    def _if_run_again(self, usage: DeviceUsage | None) -> tuple[int, int, int, int]:
        """Return what the cell needs up to the failed allocation, what is available to it, and what it left.

        It left what hidden references and variables that it set hold, which is available. The last figure is
        what hidden references held before the cell.
        """
        snapshot = self._snapshot
        allocated, reserved = snapshot.allocated_bytes or 0, snapshot.reserved_bytes or 0
        free = snapshot.device_free_bytes or 0
        live = before = self._report.live_bytes or 0
        if usage is not None and usage.allocated_bytes is not None:
            allocated, reserved = usage.allocated_bytes, usage.reserved_bytes or usage.allocated_bytes
            free = free if usage.free_bytes is None else usage.free_bytes
            outside = usage.after_bytes - usage.allocated_bytes
            before = min(live, max(0, usage.before_bytes - outside))
        if snapshot.limit_bytes is not None:
            free = min(free, max(0, snapshot.limit_bytes - reserved))
        in_one_piece = max(0, reserved - allocated - (snapshot.unused_in_pieces or 0))
        left = allocated - min(before, max(0, allocated - self._hidden))
        left = self._hidden if snapshot.device == CPU else left  # of which no allocator counts the rest
        need = live - before + self._requested
        # From a GiB on a message's figure has two decimals.
        need += _SAME_BYTES if self._requested >= 1024 * MB and snapshot.device != CPU else 0
        return need, free + in_one_piece + left, left, max(0, before + self._hidden - allocated)

    def steps(self) -> Iterator[str]:
        """Yield what would have made the cell run, in one or two sentences, the easiest first."""
        snapshot, setting = self._snapshot, self._snapshot.message.setting
        if not self._requested:
            limit = f", and {snapshot.limit}" if snapshot.limit else ""
            yield self._less(f"Use less at once: it is not known how much was asked for{limit}.")
        missing = max(1, self._requested - (self._free or 0))
        # torch has released the rest of its cache by then.
        in_pieces = max(self._report.fragmented_bytes or 0, snapshot.message.cached_bytes or 0)
        is_set = any("expandable_segments:true" in os.environ.get(name, "").lower() for name in _SETTINGS)
        if setting and in_pieces >= missing > self._earlier and not is_set:
            yield (
                f"Restart the kernel and run `%env {setting}=expandable_segments:True` before torch is"
                f" imported: {_mb(in_pieces)} lie unused in pieces between tensors."
            )
        if self._free is not None and self._available >= self._need:
            yield self._less(
                "Run the cell again: there is room for this allocation now.",
                "Then run the cell again: it fits.",
            )
        if snapshot.limit_bytes is not None and (self._report.free_bytes or 0) >= self._requested:
            limit = f"the limit that this process set itself, {_mb(snapshot.limit_bytes)}"
            yield f"Raise {limit}: the device has room."
        if self._free is not None:
            if self._neighbours >= MB and self._free < self._requested <= self._free + self._neighbours:
                yield (
                    "End other processes or use another device: without their"
                    f" {_mb(self._neighbours)} it would have fit."
                )
            if snapshot.batch is not None and snapshot.batch[1] > 1:
                name, size = snapshot.batch
                if (fits := size * self._available // self._need) >= 1:
                    yield self._less(
                        f"Use a smaller batch: at most `{name} = {fits}` instead of {size} fits here, less if"
                        " the cell needs more after this line."
                    )
                yield self._less(f"Use less at once: {self._missing()}, and not even a batch of 1 fits.")
        yield self._less(f"Use less at once: {self._missing()}.")

    def _missing(self) -> str:
        if self._free is None or self._snapshot.limit:
            return self._snapshot.limit or f"{requested(self._requested)} were asked for"
        if self._free >= self._requested:
            return f"{requested(self._requested)} could not be had although {_mb(self._free)} were free"
        return f"about {_mb(self._need - self._available)} too much were asked for"

    def _less(self, sentence: str, after: str = "") -> str:
        """Return a step, preceded by how to release what the failed cell still holds."""
        steps = []
        if self._hidden >= MB:
            steps.append(f"`%gpulog free` gives {_mb(self._hidden)} back{self._whose()}.")
        if self._left - self._hidden >= max(_ROUNDED, self._hidden // 100):
            steps.append(f"`del` what the cell put into variables: {_mb(self._left - self._hidden)}.")
        return " ".join([*steps, after or sentence]) if steps else sentence

    def _whose(self) -> str:
        """Return, in parentheses, which hidden references hold the most."""
        held = [owner.name for owner in self._report.owners if owner.kind in _HIDDEN]
        names = [shortened(name.replace(f"{LAST}: ", "the failed call's ")) for name in held[:_HIDDEN_NAMED]]
        more = [f"{len(held) - len(names)} more"] if len(held) > len(names) else []
        return f" ({', '.join(names + more)})" if names else ""


def _mb(size_bytes: int) -> str:
    return f"{rounded_mb(size_bytes)} MB"
