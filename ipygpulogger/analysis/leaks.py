"""Cells that may leak: each of their last runs consumed memory and left more in use than the run before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from datetime import datetime

from ..records.cell_record import CellRecord, process_of
from ..records.units import MB
from ..records.usage import Usage

RUNS = 3  # in a row: neither a warm-up nor a coincidence
GROWTH_BYTES = MB  # that each of them must exceed


def suspects(records: Iterable[CellRecord]) -> list[tuple[CellRecord, ...]]:
    """Return of each cell that may leak the last runs, as many as grew; `History.suspects` has the rule."""
    runs: dict[Hashable, list[CellRecord]] = {}
    for kernel, record in with_kernel(records):
        if (cell := identity(record)) is not None:
            runs.setdefault((kernel, cell), []).append(record)
    return [found for cell in runs.values() if len(found := growing_runs(cell)) >= RUNS]


def growing_names(runs: Sequence[CellRecord]) -> tuple[str, ...]:
    """Return the names that grew in every run of a cell, by how much, the largest first."""
    # All values in `Out` share the name "Out", because each run has an `Out` entry of its own.
    grown = [Counter[str]() for _ in runs]
    for sizes, record in zip(grown, runs, strict=True):
        for owner in record.owners:
            if owner.kind in ("variable", "output"):
                sizes["Out" if owner.kind == "output" else owner.name] += owner.size_bytes
    every = set.intersection(*map(set, grown)) if grown else set()
    return tuple(sorted(every, key=lambda name: (-sum(sizes[name] for sizes in grown), name)))


def memories(record: CellRecord) -> dict[Hashable, Usage]:
    """Return RAM and each device whose use is attributed to this process, by a key that all cells share."""
    return {"RAM": record.gen, **{gpu.key: gpu for gpu in record.gpus if gpu.attributed}}


def with_kernel(records: Iterable[CellRecord]) -> Iterator[tuple[int, CellRecord]]:
    """Yield the records with the number of their kernel: in a new one the execution count starts over."""
    kernel = 0
    last: tuple[int, datetime] | None = None
    for record in records:
        count = record.execution_count if process_of(record) is None else None
        if count is not None:
            is_new = last is not None and count <= last[0]
            if last is None or not is_new or record.started_at > last[1]:  # else two ran at the same time
                kernel += is_new
                last = count, record.started_at
        yield kernel, record


def identity(record: CellRecord) -> Hashable:
    """Return what makes another run of a cell of the kernel recognizable, if anything does."""
    named = record.cell_id is not None or record.source[:1] not in ("", "%")
    if not named or record.gpulog_only or process_of(record) is not None:
        return None
    code = record.code if record.cell_id is None else ""  # many cells may begin with ``if torch:``
    return record.cell_id, record.source, code


def growing_runs(runs: list[CellRecord], by_bytes: int = GROWTH_BYTES) -> tuple[CellRecord, ...]:
    """Return the last runs of a cell that grew by more than this, on the device where most of them did."""
    return max((_growing_on(runs, device, by_bytes) for device in memories(runs[-1])), key=len)


def _growing_on(runs: list[CellRecord], device: Hashable, by_bytes: int) -> tuple[CellRecord, ...]:
    """Return the last runs of a cell that consumed memory and left more in use than the run before."""
    count = 0
    for i in reversed(range(len(runs))):
        usage = memories(runs[i]).get(device)
        # RAM without the freed memory that malloc keeps.
        kept_bytes = max(0, runs[i].gen.newly_kept_bytes) if usage is runs[i].gen else 0
        if usage is None or usage.consumed_bytes - kept_bytes <= by_bytes:
            break
        count += 1
        before = memories(runs[i - 1]).get(device) if i else None
        if before is None or usage.after_bytes - before.after_bytes <= by_bytes:
            break
    return tuple(runs[len(runs) - count :])
