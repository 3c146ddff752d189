"""What a cell's record says beyond its figures.

Each step takes the record and the cell, and returns the record with more in it. It is tried alone: if it
fails, that is said once, and the record goes on without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..analysis.notable import divided, excesses
from ..engine.machine import importing, machine
from ..records import CPU, Note, NoteKind
from ..records.units import MB, parse_size, rounded_mb, size_text
from ..runtime.shell import current_shell, first_line, lines_of
from ..sources.system.ram_limit import MemoryLimit, least
from .cell import body_of

if TYPE_CHECKING:
    from ..records import CellRecord, Measurement
    from .measured_cell import MeasuredCell
    from .report import Reporter

    Enricher = Callable[[CellRecord, MeasuredCell], CellRecord]

_LITTLE_BYTES = 2 * MB  # of a cell that needed no more, the size of its data is not looked up
_SMALL_BYTES = 5 * MB  # a cell that needs less is not compared with the limits


def _noted(record: CellRecord, *notes: str) -> CellRecord:
    return replace(record, notes=(*record.notes, *notes)) if notes else record


# -- what depends on the figures, and is found again after a collection --------------------------------------


def _between_cells(record: CellRecord, cell: MeasuredCell) -> CellRecord:
    gap: Any = cell.gap
    moved, notes = gap.told(cell.scope, record.gen.before_bytes)
    return replace(record, between=moved, notes=(*notes, *record.notes)) if moved or notes else record


def _out_of_memory(record: CellRecord, cell: MeasuredCell) -> CellRecord:
    with importing():
        from ..owners.out_of_memory import out_of_memory
    oom: Any = cell.oom
    record = replace(record, out_of_memory=out_of_memory(oom, record.gpus))
    return record if oom.complete else _noted(record, "There was no time to find all who hold memory.")


def _lines(record: CellRecord, cell: MeasuredCell) -> CellRecord:
    lines: Any = cell.lines
    return _noted(replace(record, lines=lines.result()), *lines.notes)


def _collected(record: CellRecord, cell: MeasuredCell) -> CellRecord:
    """Collect the garbage that the cell dropped, if that is worth it and was not done."""
    garbage, before = cell.garbage, cell.before
    if garbage is not None and before is not None and cell.freed is None:
        cell.freed = garbage.settle_dropped(cell.cell.raw, record, before.snapshot)
        if cell.freed is not None and cell.clear_cache:
            machine().settling.settle(gc_collect=False, clear_cache=True)
    return record


# -- what is found once --------------------------------------------------------------------------------------


def _garbage(record: CellRecord, cell: MeasuredCell) -> CellRecord:
    garbage, before = cell.garbage, cell.before
    if garbage is None or before is None:
        return record
    if cell.freed is None:
        return _noted(record, *garbage.dropped_notes(before.snapshot))
    return _noted(record, *garbage.freed_notes(cell.cell.raw, record, before.snapshot, cell.freed))


def _freed(record: CellRecord, cell: MeasuredCell) -> CellRecord:
    """Add what the cell freed, and who holds what it dropped, if it gave memory back or dropped a name."""
    before: Any = cell.before
    names, usages = current_shell().user_ns, record.memories()
    dropped = {name for name in before.snapshot.named if names.get(name) is None}
    if not dropped and all(usage.consumed_bytes > -MB for usage in usages.values()):
        return record
    with importing():
        from ..owners.freed import freed_notes
    after = cell.growth.since(before.snapshot)
    return _noted(record, *freed_notes(before.snapshot, after, dropped, usages, names))


def _at_peak(record: CellRecord, cell: MeasuredCell) -> CellRecord:
    """Add what was alive at the peak, and as an allocation failed, if allocations were recorded."""
    recording: Any = cell.recording
    record, oom = recording.result(record), record.out_of_memory
    if main_line := _line_at_peak(record, cell.cell.raw):
        record = replace(record, main_line=main_line)
    recording.keep_failure(cell.cell.label)
    if oom is not None:
        oom = replace(oom, alive=recording.at_failure.get(oom.device, ()))
    return replace(record, out_of_memory=oom)


def _line_at_peak(record: CellRecord, text: str) -> str:
    """Return the line of the cell that allocated most of what was alive at the peak; empty if none did."""
    own, lines = rf"In \[{record.execution_count}\]:(\d+)", lines_of(text)
    places = {row: re.match(own, row.place) for row in record.at_peak if row.kind != "before"}
    found = [(row.device != CPU, row.size_bytes, int(place[1])) for row, place in places.items() if place]
    _, size_bytes, number = max(found, default=(False, 0, 0))  # of a device, if there is one
    return first_line(lines[number - 1]) if size_bytes >= MB and 0 < number <= len(lines) else ""


def _dimensions(record: CellRecord, cell: MeasuredCell) -> CellRecord:
    """Add how large the cell's data was, if it needed more than a little memory."""
    if all(one.peak.lo_bytes <= one.before_bytes + _LITTLE_BYTES for one in (record.gen, *record.gpus)):
        return record
    with importing():
        from ..owners.dimensions import dimensions_of, fingerprint
    raw = cell.cell.raw
    found = dimensions_of(raw, current_shell().user_ns, machine().frameworks.imported())
    return replace(record, dimensions=found, code=fingerprint(body_of(raw), dict(found)) if found else "")


def _little_left(record: CellRecord, cell: MeasuredCell) -> CellRecord:
    if cell.oom is not None and cell.oom.device == CPU:
        return record  # the report of it says what is left
    return _noted(record, *little_left(record, None if cell.live is None else cell.live.tightest))


# -- the list ------------------------------------------------------------------------------------------------

# Each step: what it does, after "could not", the attribute of the cell without which it is left out, itself.
_GARBAGE = "tell what garbage the cell left"
_FIGURES: tuple[tuple[str, str, Enricher], ...] = (
    ("tell what changed before the cell", "gap", _between_cells),
    ("explain an error", "oom", _out_of_memory),
    ("tell what each line used", "lines", _lines),
    ("tell who holds memory", "growth", lambda record, cell: cell.growth.end(cell.before, record)),
    (_GARBAGE, "garbage", _collected),
)
_ONCE: tuple[tuple[str, str, Enricher], ...] = (
    (_GARBAGE, "garbage", _garbage),
    ("tell what the cell freed", "before", _freed),
    ("tell what was alive at the peak", "recording", _at_peak),
    ("tell how large its data was", "scope", _dimensions),
    ("tell who holds memory", "history", lambda record, cell: cell.history.marked(record)),
    ("judge its budget", "budget", lambda record, cell: _noted(record, *over_budget(record, cell.budget))),
    ("tell how much RAM is left", "scope", _little_left),
)


def enriched(cell: MeasuredCell, reporter: Reporter) -> CellRecord:
    """Return the record of a cell that has ended, with all that there is to say."""
    freed = cell.freed
    record = _each(_FIGURES, cell.record(), cell, reporter)
    if cell.freed is not freed:  # by a collection just now: the figures are read again
        again = _each(_FIGURES, cell.record(), cell, reporter)
        record = replace(again, notes=tuple(dict.fromkeys((*record.notes, *again.notes))))
    return _each(_ONCE, record, cell, reporter)


def _each(
    steps: tuple[tuple[str, str, Enricher], ...], record: CellRecord, cell: MeasuredCell, reporter: Reporter
) -> CellRecord:
    for what, needed, enrich in steps:
        if getattr(cell, needed) is not None:
            try:
                record = enrich(record, cell)
            except Exception as error:
                reporter.cannot_explain(what, error)
    return record


# -- what warns ----------------------------------------------------------------------------------------------


def over_budget(measurement: Measurement, budget: str | None) -> tuple[Note, ...]:
    """Return a note for each device on which a cell, which may still run, went over its budget or still is.

    A budget such as "10GB" is for each GPU, or for RAM where no GPU was used. None allows anything.
    """
    if not budget:
        return ()
    ram_bytes, gpu_bytes = divided(measurement, parse_size(budget))
    notes, memories = [], measurement.memories()
    for over in excesses(measurement, ram_bytes=ram_bytes, gpu_bytes=gpu_bytes):
        on_device = over.name in memories
        still_bytes = memories[over.name if on_device else CPU].after_bytes - over.budget_bytes
        if over.is_own:
            highest = f"{'at least ' if over.at_least else ''}{rounded_mb(over.peak_bytes)}"
            words = f"Over budget on {over.name}: highest {highest} of {rounded_mb(over.budget_bytes)} MB"
            notes.append(Note(NoteKind.OVER_BUDGET, words))
        elif rounded_mb(still_bytes) > 0:
            words = f"still over budget by {size_text(still_bytes)}{f' on {over.name}' if on_device else ''}"
            notes.append(Note(NoteKind.STILL_OVER, words))
    return tuple(notes)


def little_left(measurement: Measurement, seen: MemoryLimit | None) -> tuple[Note, ...]:
    """Return a note if little RAM is left under a limit, or was at the peak; or less than a cell needs.

    The least was `seen` while the cell ran. Child processes live under the same limit, so theirs counts, too.
    """
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
    return Note(NoteKind.LITTLE_LEFT, f"{limit.memory} left{when}: {limit}{more}")
