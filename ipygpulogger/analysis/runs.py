"""Which records are runs of the same cell, also with other sizes of their data."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from . import leaks

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ..records.cell_record import CellRecord

_NUMBER = re.compile(r"\d+")


def varied(runs: Sequence[CellRecord]) -> dict[str, dict[int, int]]:
    """Return the names that had several sizes: of each its size in each run, by the run's place."""
    found: dict[str, dict[int, int]] = {name: {} for run in reversed(runs) for name, _ in run.dimensions}
    for at, run in enumerate(runs):
        for name, size in run.dimensions:
            if size > 0:
                found[name][at] = size
    return {name: sizes for name, sizes in found.items() if len(set(sizes.values())) > 1}


def runs_of(records: Sequence[CellRecord], count: int | None) -> list[CellRecord]:
    """Return all runs of the cell that is asked for; none if none is, and no cell could have a line.

    Raises:
        ValueError: There is no such cell.
    """
    cells, copies = _grouped(records, cell_of), _grouped(records, _copy_of)
    if count is not None:
        asked = [runs for runs in (*cells, *copies) if any(run.execution_count == count for run in runs)]
        if asked:
            return next(filter(_has_varied, asked), asked[0])
        raise ValueError(_unknown(records, count))
    sized = (runs for runs in cells if any(run.dimensions for run in runs))
    return next(filter(_has_varied, (*cells, *copies)), None) or next(sized, None) or []


def cell_of(record: CellRecord) -> Hashable:
    """Return what makes another run of the same cell recognizable: also one with other numbers in its text.

    That is the fingerprint of its code. Where it is unknown, as in the files of earlier versions, it is the
    first line; without an id by the front end also what the cell names.

    Returns:
        None if nothing does.
    """
    if record.code and not record.gpulog_only:
        return record.cell_id, record.code
    cell = leaks.identity(replace(record, source=_NUMBER.sub("0", record.source)))
    if cell is None or record.cell_id is not None:
        return cell
    return cell, tuple(name for name, _ in record.dimensions)


def _copy_of(record: CellRecord) -> Hashable:
    """Return what cells with the same code, such as copies of one, have in common; None for other cells."""
    return cell_of(replace(record, cell_id=None)) if record.dimensions else None


def _grouped(records: Sequence[CellRecord], key: Callable[[CellRecord], Hashable]) -> list[list[CellRecord]]:
    """Return the records with the same key, those whose last one is the latest first."""
    found: dict[Hashable, list[CellRecord]] = {}
    for record in records:
        name = key(record)
        if name is not None:
            group = found[name] = found.pop(name, [])
            group.append(record)
    return list(reversed(found.values()))


def _has_varied(runs: Sequence[CellRecord]) -> bool:
    return bool(varied([run for run in runs if run.status == "ok"]))


def _unknown(records: Sequence[CellRecord], count: int) -> str:
    """Return why no runs are known of a cell."""
    ran = [record for record in records if record.execution_count == count]
    if not ran:
        return f"In [{count}] is not in the history"
    if all(record.gpulog_only for record in ran):
        return f"In [{count}] holds only commands of %gpulog"
    return f"In [{count}] begins with a magic, so that its other runs cannot be recognized"
