"""What a cell's record says beyond its figures.

Each step takes the record and the cell, and returns the record with more in it. It is tried alone: if it
fails, that is said once, and the record goes on without it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..analysis.budget import excesses
from ..engine.machine import importing, machine
from ..records import Note, NoteKind
from ..records.units import MB, parse_size, rounded_mb, size_text
from ..runtime.shell import current_shell
from ..sources.system.ram_limit import least
from .cell import body_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..records import CellRecord, Measurement
    from ..sources.system.ram_limit import MemoryLimit
    from .measured_cell import MeasuredCell
    from .report import Reporter

    Enricher = Callable[[CellRecord, MeasuredCell], CellRecord]

_LITTLE_BYTES = 2 * MB  # of a cell that needed no more, the size of its data is not looked up
_SMALL_BYTES = 5 * MB  # a cell that needs less is not compared with the limits


def enriched(cell: MeasuredCell, reporter: Reporter) -> CellRecord:
    """Return the record of a cell that has ended, with all that there is to say."""
    record = _each(_FIGURES, cell.record(), cell, reporter)
    if cell.freed is None and reporter.attempt(_GARBAGE, _collected, record, cell):
        again = _each(_FIGURES, cell.record(), cell, reporter)
        record = replace(again, notes=tuple(dict.fromkeys((*record.notes, *again.notes))))
    return _each(_REMARKS, record, cell, reporter)


def _each(
    steps: Iterable[tuple[str, Enricher]], record: CellRecord, cell: MeasuredCell, reporter: Reporter
) -> CellRecord:
    for what, enrich in steps:
        try:
            record = enrich(record, cell)
        except Exception as error:
            reporter.cannot_explain(what, error)
    return record


def _noted(record: CellRecord, *notes: str) -> CellRecord:
    return replace(record, notes=(*record.notes, *notes)) if notes else record


# -- what depends on the figures, and is found again after a collection --------------------------------------


def _between_cells(record: CellRecord, cell: MeasuredCell) -> CellRecord:
    if cell.gap is None:
        return record
    moved, notes = cell.gap.moved(cell.scope, record.gen.before_bytes), cell.gap.notes(cell.scope)
    return replace(record, between=moved, notes=(*notes, *record.notes)) if moved or notes else record


def _out_of_memory(record: CellRecord, cell: MeasuredCell) -> CellRecord:
    if cell.oom is None:
        return record
    with importing():
        from ..owners.oom_advice import out_of_memory
    advised = cell.advised.setdefault(body_of(cell.cell.raw), {})
    record = replace(record, out_of_memory=out_of_memory(cell.oom, record.gpus, advised))
    return record if cell.oom.complete else _noted(record, "There was no time to find all who hold memory.")


def _lines(record: CellRecord, cell: MeasuredCell) -> CellRecord:
    if cell.lines is None:
        return record
    return _noted(replace(record, lines=cell.lines.result()), *cell.lines.notes)


def _owners(record: CellRecord, cell: MeasuredCell) -> CellRecord:
    return cell.growth.end(cell.before, record)


_GARBAGE = "tell what garbage the cell left"
_FIGURES = (
    ("tell what changed before the cell", _between_cells),
    ("explain an error", _out_of_memory),
    ("tell what each line used", _lines),
    ("tell who holds memory", _owners),
)


# -- what is found once --------------------------------------------------------------------------------------


def _collected(record: CellRecord, cell: MeasuredCell) -> bool:
    """Collect the garbage that the cell dropped, if that is worth it: then the figures are read again."""
    if cell.garbage is None or cell.before is None:
        return False
    cell.freed = cell.garbage.settle_dropped(cell.cell.raw, record, cell.before.snapshot)
    if cell.freed is not None and cell.clear_cache:
        machine().settling.empty_caches()
    return cell.freed is not None


def _garbage(record: CellRecord, cell: MeasuredCell) -> CellRecord:
    if cell.garbage is None or cell.before is None:
        return record
    before = cell.before.snapshot
    if cell.freed is None:
        return _noted(record, *cell.garbage.dropped_notes(before))
    return _noted(record, *cell.garbage.freed_notes(cell.cell.raw, record, before, cell.freed))


def _at_peak(record: CellRecord, cell: MeasuredCell) -> CellRecord:
    """Add what was alive at the peak, and as an allocation failed, if allocations were recorded."""
    if cell.recording is None:
        return record
    record, card = cell.recording.result(record), record.out_of_memory
    cell.recording.keep_failure(cell.cell.label, ended=card is not None)
    if card is None:
        return record
    alive = cell.recording.at_failure.get(card.device, ())
    return replace(record, out_of_memory=replace(card, alive=alive))


def _dimensions(record: CellRecord, cell: MeasuredCell) -> CellRecord:
    """Add how large the cell's data was, if it needed more than a little memory."""
    for usage in (record.gen, *record.gpus):
        if usage.peak.lo_bytes > usage.before_bytes + _LITTLE_BYTES:
            break
    else:
        return record
    with importing():
        from ..owners.dimensions import dimensions_of, fingerprint
    raw = cell.cell.raw
    found = dimensions_of(raw, current_shell().user_ns, machine().frameworks.imported())
    return replace(record, dimensions=found, code=fingerprint(body_of(raw), dict(found)) if found else "")


def _grew(record: CellRecord, cell: MeasuredCell) -> CellRecord:
    return cell.history.marked(record)


def _over_budget(record: CellRecord, cell: MeasuredCell) -> CellRecord:
    return _noted(record, *over_budget(record, cell.budget)) if cell.budget else record


def _little_left(record: CellRecord, cell: MeasuredCell) -> CellRecord:
    seen = None if cell.live is None else cell.live.tightest
    return _noted(record, *little_left(record, seen, cell.refused))


# -- what warns ----------------------------------------------------------------------------------------------


def over_budget(measurement: Measurement, budget: str | None) -> tuple[Note, ...]:
    """Return a note for each device on which a measurement went over its budget.

    Args:
        measurement: Of a cell, which may still run.
        budget: A size such as "10GB": on each GPU, or of RAM where no GPU was used. None allows anything.
    """
    if not budget:
        return ()
    allowed_bytes = parse_size(budget)
    on_gpu = any(gpu.peak.lo_bytes for gpu in measurement.gpus)
    found = excesses(
        measurement,
        ram_bytes=None if on_gpu else allowed_bytes,
        gpu_bytes=allowed_bytes if on_gpu else None,
    )
    return tuple(
        Note(
            NoteKind.OVER_BUDGET,
            f"Over budget on {over.name}: peak {'at least ' if over.at_least else ''}"
            f"{rounded_mb(over.peak_bytes)} of {rounded_mb(over.budget_bytes)} MB",
        )
        for over in found
    )


def little_left(
    measurement: Measurement, seen: MemoryLimit | None, refused: MemoryLimit | None = None
) -> tuple[Note, ...]:
    """Return a note if little RAM is left under a limit, or was at the peak; or less than a cell needs.

    Child processes live under the same limit, so what they needed counts, too.

    Args:
        measurement: Of a cell that has ended.
        seen: The limit under which the least was left while the cell ran, if that was little.
        refused: The one that made an allocation of the cell fail, which therefore consumed nothing.
    """
    if refused is not None:
        return (left_note(refused, "; the cell failed for lack of it"),)
    usages = [usage for usage in (measurement.gen, measurement.children) if usage is not None]
    need_bytes = sum(usage.needed_bytes for usage in usages)
    if need_bytes < _SMALL_BYTES and seen is None:
        return ()
    transient_bytes = sum(usage.peaked_bytes for usage in usages)
    limit = machine().limits.short(need_bytes, transient_bytes)
    if limit is not None and limit.left_bytes is not None:
        if limit.left_bytes < need_bytes:
            return (left_note(limit, f"; this cell needs {size_text(need_bytes)}"),)
        if limit.is_scarce:
            return (left_note(limit),)
        limit = limit.with_left(limit.left_bytes - transient_bytes)
    lowest = least(filter(None, (limit, seen)))
    return () if lowest is None else (left_note(lowest, when=" at the peak"),)


def left_note(limit: MemoryLimit, more: str = "", *, when: str = "") -> Note:
    """Return what is left under a limit, as a note."""
    return Note(NoteKind.LITTLE_LEFT, f"{limit.title}{when}: {limit}{more}")


_REMARKS = (
    (_GARBAGE, _garbage),
    ("tell what was alive at the peak", _at_peak),
    ("tell how large its data was", _dimensions),
    ("tell who holds memory", _grew),
    ("tell whether it went over its budget", _over_budget),
    ("tell how much RAM is left", _little_left),
)
