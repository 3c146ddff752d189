"""Several runs of one process for the same cell, as the one record of it that a table has a row for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from ..records import Peak
from ..records.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..records import DeviceUsage
    from ..records.process import ProcessRecord

U = TypeVar("U", bound=Usage)


def one_each(records: Iterable[ProcessRecord]) -> list[ProcessRecord]:
    """Return one record for each process, in the order in which they first ran."""
    by_process: dict[object, list[ProcessRecord]] = {}
    for record in records:
        by_process.setdefault(record.process, []).append(record)
    return [together(runs) for runs in by_process.values()]


def together(runs: Iterable[ProcessRecord]) -> ProcessRecord:
    """Return what the runs of one process used together.

    That is from the beginning of the first to the end of the last, with the highest peak of them all and the
    sum of their times. What the process did between them is part of what was consumed, not of the peak.
    A single run is returned as it is.
    """
    found = sorted(runs, key=lambda record: record.started_at)
    first, *others = found
    if not others:
        return first
    worst = max(found, key=lambda record: ("ok", "interrupted", "error").index(record.status))
    by_device: dict[object, list[DeviceUsage]] = {}
    for record in found:
        for gpu in record.gpus:
            by_device.setdefault(gpu.key, []).append(gpu)
    gpus = [replace(_joined(usages), timeline=()) for usages in by_device.values()]
    children = [record.children for record in found if record.children is not None]
    pinned = [record.pinned for record in found if record.pinned is not None]
    return replace(
        first,
        time_s=sum(record.time_s for record in found),
        gen=replace(
            _joined([record.gen for record in found]), heap_before=first.gen.heap_before, timeline=()
        ),
        gpus=tuple(sorted(gpus, key=lambda gpu: (gpu.backend, gpu.index))),
        children=_joined(children) if children else None,
        pinned=_joined(pinned) if pinned else None,
        status=worst.status,
        error=worst.error,
        current_gpu=others[-1].current_gpu,
        notes=(*dict.fromkeys(note for record in found for note in record.notes), f"{len(found)} runs"),
    )


def _joined(usages: Sequence[U]) -> U:
    """Return the last of some usages of the same memory, from the beginning of the first."""
    lo_bytes = max(usage.peak.lo_bytes for usage in usages)
    most_bytes = [usage.peak.hi_bytes for usage in usages if usage.peak.hi_bytes is not None]
    hi_bytes = max(most_bytes) if len(most_bytes) == len(usages) else None
    precision_bytes = max(usage.peak.precision_bytes for usage in usages)
    peak = Peak.within(lo_bytes, hi_bytes, precision_bytes)
    return replace(usages[-1], before_bytes=usages[0].before_bytes, peak=peak)
