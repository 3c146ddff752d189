"""The blocks of torch's CUDA allocator and the events that it recorded, also as torch's own file."""

from __future__ import annotations

import gzip
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from ...runtime.collector import undisturbed
from ...runtime.errors import first_line
from ..contract import Unavailable, unavailable
from .state import TORCH_ERRORS, accelerator, caches, let_others_go_on, module

# How many events torch keeps: 200 training steps of 200 allocations each. An event takes half a KB, its stack
# included, and 1.5 KB for the moment in which it is read: so 65 MB, then 200 MB. If older events are lost,
# the peak is still found wherever later steps reach it again. torch never gives back the room for the events
# themselves, which it doubles: hence a power of two.
MAX_EVENTS = 2**17
EVENT_BYTES = 4096  # more than an event takes while it is read, whatever its stack
_LONGEST_S = 1  # for threads that are about to copy their stack

Event = dict[str, Any]  # as torch has them: "action", "addr", "size", "time_us", "frames", ...
Segment = dict[str, Any]  # "address", "total_size", "blocks", ...


class Position(NamedTuple):
    """Where a device's allocator stood at one moment, read in one step."""

    allocated: int = 0  # how many blocks it had allocated so far
    blocks: int = 0  # how many of them it had not freed
    size_bytes: int = 0  # their size
    failures: int = 0  # how many allocations failed so far


class AllocatorState(NamedTuple):
    """Which blocks a device's allocator had at one moment."""

    segments: list[Segment]  # of the device
    before: Position  # just before that moment
    after: Position  # just after it; another one only if other threads used the allocator meanwhile

    @property
    def still(self) -> bool:
        """Whether nothing was allocated or freed while the blocks were read."""
        return self.before == self.after


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What torch answers."""

    traces: list[list[Event]]  # the events of each device
    states: dict[int, AllocatorState]  # the allocator of each device that is in use, after them
    settings: dict[str, Any]  # the allocator's
    whole: dict[str, Any]  # all of it, as torch gave it


def why_not(torch: ModuleType) -> str:
    """Say why torch's allocator keeps no history here; empty if it does."""
    try:
        backend = str(torch.cuda.memory.get_allocator_backend())
    except TORCH_ERRORS as error:
        return f"torch does not name its allocator: {first_line(error)}"
    if backend != "native":
        return f"torch's allocator here is {backend}, which keeps no history of its blocks"
    if not caches():
        return "torch's caching allocator is off (PYTORCH_NO_CUDA_MEMORY_CACHING), and nothing is recorded"
    return ""


def is_on(torch: ModuleType) -> bool:
    """Return whether torch records already."""
    return bool(torch._C._cuda_isHistoryEnabled())


def start(torch: ModuleType) -> None:
    """Let torch record; raises `Unavailable`."""
    with unavailable("torch does not record its memory"):
        _record(torch, "alloc")


def stop(torch: ModuleType) -> None:
    """Let torch stop, and forget the events.

    A thread that allocates looks whether stacks are wanted, and then calls the function that copies one. To
    stop, torch takes that function away, and a thread in between calls a null pointer (seen in torch 2.13, in
    one of a few thousand stops). So stacks are declined first, and the other threads have the time to go on.
    """
    with suppress(TypeError, *TORCH_ERRORS):
        _record(torch, None)
        let_others_go_on(_LONGEST_S)
    torch.cuda.memory._record_memory_history(None)


def _record(torch: ModuleType, context: str | None) -> None:
    record = partial(torch.cuda.memory._record_memory_history, "all", context=context, stacks="python")
    try:  # else torch adds a callback to the thread that starts, which another one that stops cannot remove
        record(max_entries=MAX_EVENTS, global_record_annotations=True)
    except TypeError:  # an older torch
        record(max_entries=MAX_EVENTS)


def take(torch: ModuleType, *, events: bool) -> Snapshot:
    """Ask torch."""
    with unavailable("torch's memory history cannot be read"):
        before = _positions(torch)
        # torch copies the events first. Then it looks at the blocks, which is an event itself.
        snapshot = _snapshot(torch, events=events)
        after = _positions(torch)
    segments: dict[int, list[Segment]] = {index: [] for index in after}
    for segment in snapshot["segments"]:
        segments.setdefault(segment["device"], []).append(segment)
    none = Position()
    states = {
        index: AllocatorState(found, before.get(index, none), after.get(index, none))
        for index, found in segments.items()
    }
    settings = snapshot.get("allocator_settings", {})
    return Snapshot(snapshot.get("device_traces", []), states, settings, snapshot)


def position(index: int) -> Position:
    """Return where the allocator of a device stands now; raises `Unavailable`."""
    with unavailable("torch gives no memory statistics"):
        stats = module()._C._cuda_memoryStats(index)
        counts, size_bytes = stats["allocation"]["all"], stats["allocated_bytes"]["all"]["current"]
    return Position(counts["allocated"], counts["current"], size_bytes, stats.get("num_ooms", 0))


def _positions(torch: ModuleType) -> dict[int, Position]:
    devices = range(torch.cuda.device_count())
    return {index: position(index) for index in devices if torch._C._cuda_hasPrimaryContext(index)}


def _snapshot(torch: ModuleType, *, events: bool) -> dict[str, Any]:
    with without_compiler(torch):
        if not events:
            with suppress(TypeError, *TORCH_ERRORS):  # all pools; older versions refuse it
                return torch._C._cuda_memorySnapshot((0, 0, False))  # type: ignore[no-any-return]
        with suppress(TypeError):  # torch 2.6
            return torch._C._cuda_memorySnapshot(None)  # type: ignore[no-any-return]
        return torch._C._cuda_memorySnapshot()  # type: ignore[no-any-return]


@contextmanager
def without_compiler(torch: ModuleType) -> Iterator[None]:
    """Let torch name stack frames without importing `torch._inductor`, which takes a second and 50 MB."""
    names = vars(torch)
    if "_inductor" in names or "torch._inductor" in sys.modules:
        yield
        return
    names["_inductor"] = absent = SimpleNamespace()
    try:
        yield
    finally:
        if names.get("_inductor") is absent:  # another thread may have imported it
            del names["_inductor"]


class SnapshotFile(NamedTuple):
    """torch's snapshot: the present one, or that of a recording in which an allocation failed."""

    compressed: bytes
    blocks: int  # how many blocks are allocated, on all devices
    events: int | None  # how many events it has; None if torch recorded none
    where: str = ""  # the cell or block that was recorded: "In [7]"

    @property
    def content(self) -> bytes:
        """What `torch.cuda.memory._dump_snapshot` would write."""
        return gzip.decompress(self.compressed)


def file_of(found: dict[str, Any], *, has_events: bool = True) -> SnapshotFile:
    """Return what to write of a snapshot that torch gave."""
    blocks = (block for segment in found["segments"] for block in segment["blocks"])
    events = (event for trace in found["device_traces"] for event in trace)
    return SnapshotFile(
        gzip.compress(pickle.dumps(found), compresslevel=1),  # a full history: 20 ms and 1 MB
        sum(block["state"] == "active_allocated" for block in blocks),
        # The snapshot itself is one.
        sum(event["action"] != "snapshot" for event in events) if has_events else None,
    )


def snapshot_file() -> SnapshotFile:
    """Return torch's snapshot as it is now, while any recording goes on; or raise `Unavailable`."""
    torch = module()
    if torch is None:
        raise Unavailable("torch is not imported: run it after a cell that uses the GPU through torch")
    if accelerator() != "cuda":
        raise Unavailable("torch has used no CUDA device yet: run it after a cell that does")
    if reason := why_not(torch):
        raise Unavailable(reason)
    with unavailable("torch's snapshot cannot be taken"), undisturbed(), without_compiler(torch):
        return file_of(torch.cuda.memory._snapshot(), has_events=is_on(torch))
