"""torch's own snapshot file of its CUDA allocator, which https://pytorch.org/memory_viz shows.

That of the present, and that of a recording in which an allocation failed. A recording is forgotten as it
ends. So in that case its snapshot is kept, compressed, until the next time that an allocation fails.
"""

from __future__ import annotations

import pickle
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from ..runtime.collector import undisturbed
from ..runtime.errors import first_line
from .counter import Unavailable
from .torch_snapshot import failed, in_use, is_on, position, why_not, without_compiler
from .torch_state import TORCH_ERRORS, accelerator, module

if TYPE_CHECKING:
    from types import ModuleType

_LEVEL = 1  # of zlib: a full history takes 20 ms and 1 MB


class SnapshotFile(NamedTuple):
    """What to write, and what it has.

    Attributes:
        content: As `torch.cuda.memory._dump_snapshot` writes it.
        blocks: How many blocks are allocated, on all devices.
        events: How many events it has; None if torch recorded none.
    """

    content: bytes
    blocks: int
    events: int | None


class KeptSnapshot(NamedTuple):
    """torch's snapshot at the end of a recording in which an allocation failed.

    Attributes:
        compressed: The content of the file.
        blocks: How many blocks were allocated.
        events: How many events it has.
        stood: How often each device's allocator had allocated, and had failed to.
        where: The cell or block that was recorded: "In [7]".
        ended: Whether the error ended it; if not, its code caught the error.
    """

    compressed: bytes
    blocks: int
    events: int
    stood: dict[int, tuple[int, int]]
    where: str = ""
    ended: bool = False

    def file(self) -> SnapshotFile:
        """Return what to write."""
        return SnapshotFile(zlib.decompress(self.compressed), self.blocks, self.events)

    def is_latest(self) -> bool:
        """Return whether torch has allocated nothing since, nor failed to."""
        torch = module()
        try:
            return torch is not None and _stood(torch) == self.stood
        except (KeyError, *TORCH_ERRORS):
            return False


class _Compressed:
    """A file in memory, of which only the compressed form is kept."""

    def __init__(self) -> None:
        self._compressor = zlib.compressobj(_LEVEL)
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        self._parts.append(self._compressor.compress(data))

    def content(self) -> bytes:
        return b"".join((*self._parts, self._compressor.flush()))


def kept_snapshot(torch: ModuleType, found: dict[str, Any]) -> KeptSnapshot | None:
    """Return a snapshot of torch's to be kept; None if no failed allocation is among its events.

    Args:
        torch: The module.
        found: As torch just gave it.

    Raises:
        KeyError: It is of an unknown form.
    """
    if not any(event["action"] == "oom" for trace in found["device_traces"] for event in trace):
        return None
    file = _Compressed()
    pickle.dump(found, file)
    return KeptSnapshot(file.content(), *_counts(found), _stood(torch))


def snapshot_file() -> SnapshotFile:
    """Return torch's snapshot as it is now. A recording that is under way, anybody's, goes on.

    Raises:
        Unavailable: There is none; one sentence says why, and what to do.
    """
    torch = module()
    if torch is None:
        raise Unavailable("torch is not imported: run it after a cell that uses the GPU through torch")
    if accelerator() != "cuda":
        raise Unavailable("torch has used no CUDA device yet: run it after a cell that does")
    if reason := why_not(torch):
        raise Unavailable(reason)
    try:
        with undisturbed(), without_compiler(torch):
            found = torch.cuda.memory._snapshot()
            content = pickle.dumps(found)
            blocks, events = _counts(found)
    except (KeyError, TypeError, *TORCH_ERRORS) as error:
        raise Unavailable(f"torch's snapshot cannot be taken: {first_line(error)}") from error
    return SnapshotFile(content, blocks, events if is_on(torch) else None)


def _counts(found: dict[str, Any]) -> tuple[int, int]:
    """Return how many blocks are allocated, and how many events there are; the snapshot itself is one."""
    blocks = (block for segment in found["segments"] for block in segment["blocks"])
    events = (event for trace in found["device_traces"] for event in trace)
    return (
        sum(block["state"] == "active_allocated" for block in blocks),
        sum(event["action"] != "snapshot" for event in events),
    )


def _stood(torch: ModuleType) -> dict[int, tuple[int, int]]:
    return {index: (position(torch, index, {}).allocated, failed(torch, index)) for index in in_use(torch)}
