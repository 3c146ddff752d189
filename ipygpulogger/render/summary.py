"""The cells of a notebook, ranked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..records import growing_names
from ..records.units import MB, printable_lines, rounded_mb, shortened
from .devices import named_devices
from .text import outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..records import CellRecord, Usage

_ROWS = 20  # cells
_GROUPS = 5  # leak suspects
_NAMES = 5  # that grew in one suspect
_RUNS = 6  # of one suspect
_FIRST = {
    "peak": "by what each needed above what was in use before it",
    "consumed": "who consumed most first",
    "time": "the longest first",
}


def summary(records: Sequence[CellRecord], by: str, suspects: Sequence[Sequence[CellRecord]]) -> str:
    """Return the ranked cells of a notebook, the highest marked, and suspected leaks.

    Args:
        records: In descending order, as `History.rank` returns them.
        by: What they are ranked by: "peak", "consumed" or "time".
        suspects: The runs of each cell that may leak, as `History.suspects` returns them.

    Returns:
        Lines of text, without a newline at the end.
    """
    if not records:
        return "no cell has been reported yet"
    names = {key: name for key, (name, _) in named_devices(records).items()}
    worst = _worst(records, names)
    marked = {id(record) for _, found in worst for record, _ in found}
    cells = "1 cell" if len(records) == 1 else f"{len(records):,} cells"
    lines = [f"{cells}, {_FIRST[by]}; MB"]
    lines.append(f"{'':16}{'Consumed':>9}{'Peaked':>7}{'Needed':>8}{'Peak':>8}{'Time':>10}  Cell")
    for record in records[:_ROWS]:
        lines += _ranked(record, names, "*" if id(record) in marked else "")
    if len(records) > _ROWS:
        lines.append(f"  and {len(records) - _ROWS:,} more")
    for words, found in worst:
        told = (f"{shortened(record.label)}, {figure}" for record, figure in found)
        lines.append(f"* {words}: {'; '.join(told)}")
    coarse = [record.gen.peak.precision_bytes for record in records if record.gen.peak.coarse]
    if coarse:
        lines.append(
            f"RAM: each peak is within ±{rounded_mb(max(coarse))} MB, as coarsely as the kernel counts"
        )
    if suspects:
        lines.append("May leak: every run consumed more, and left more in use than the one before:")
        lines += [f"  {_suspect(runs, names)}" for runs in suspects[:_GROUPS]]
    if len(suspects) > _GROUPS:
        lines.append(f"  and {len(suspects) - _GROUPS} more")
    return printable_lines(lines)


def _memories(record: CellRecord, names: dict[Any, str]) -> Iterator[tuple[str, Usage | None]]:
    """Yield RAM and the cell's devices by name; None for a device without attributed use."""
    yield "RAM", record.gen
    for gpu in record.gpus:
        yield names[gpu.key], gpu if gpu.attributed else None


def _worst(
    records: Sequence[CellRecord], names: dict[Any, str]
) -> list[tuple[str, list[tuple[CellRecord, str]]]]:
    """Return, by the name of each figure, the cells that have the highest: of RAM, and of any device."""
    memories = [(record, *memory) for record in records for memory in _memories(record, names)]
    figures: dict[str, tuple[Callable[[Usage], int], Callable[[Usage, str], str]]] = {
        "needed most": (
            lambda usage: usage.needed_bytes,
            lambda usage, where: f"{_needed(usage)} {where} (peak {_peak(usage)})",
        ),
        "consumed most": (
            lambda usage: usage.consumed_bytes,
            lambda usage, where: f"{rounded_mb(usage.consumed_bytes)} {where}",
        ),
    }
    worst = []
    for words, (figure, said) in figures.items():
        found = []
        for ram in (True, False):
            known = [(cell, name, use) for cell, name, use in memories if use and (name == "RAM") == ram]
            if known:
                top_mb = max(rounded_mb(figure(use)) for _, _, use in known)
                first = (one for one in known if rounded_mb(figure(one[2])) == top_mb)
                cell, name, use = min(first, key=lambda one: one[0].started_at)
                found += [(cell, said(use, _where(name)))] if figure(use) >= MB else []
        worst += [(words, found)] if found else []
    longest = max(records, key=lambda record: record.time_s)
    return [*worst, ("longest", [(longest, f"{longest.time_s:.3f}s")])]


def _ranked(record: CellRecord, names: dict[Any, str], mark: str) -> Iterator[str]:
    """Yield a row for RAM, and one for each device that changed or has the highest peak of the cell."""
    ended = shortened(outcome(record))
    fullest = max((gpu.peak.lo_bytes for gpu in record.gpus), default=0)
    tail = f"{record.time_s:9.3f}s  {shortened(record.source)}{f'  ({ended})' if ended else ''}"
    head = f"{mark:2}{shortened(record.label)}"
    for name, usage in _memories(record, names):
        figures: tuple[str, ...] = ("n/a",) * 4
        if usage is not None:
            idle = max(abs(usage.consumed_bytes), usage.peaked_bytes) < MB
            if idle and name != "RAM" and usage.peak.lo_bytes < fullest:
                continue
            consumed, peaked = rounded_mb(usage.consumed_bytes), rounded_mb(usage.peaked_bytes)
            figures = str(consumed), str(peaked), _needed(usage), _peak(usage)
        yield f"{head:10} {name:5}{figures[0]:>9}{figures[1]:>7}{figures[2]:>8}{figures[3]:>8}{tail}"
        head = tail = ""


def _suspect(runs: Sequence[CellRecord], names: dict[Any, str]) -> str:
    """Return one cell that may leak: its runs, and what each consumed where it grew every time."""
    grown: dict[str, list[int]] = {}
    for record in runs:
        for name, usage in _memories(record, names):
            grown.setdefault(name, []).append(usage.consumed_bytes if usage else 0)
    every = {name: sizes for name, sizes in grown.items() if len(sizes) == len(runs) and min(sizes) >= MB}
    told = every or dict([max(grown.items(), key=lambda item: sum(item[1]))])
    growth = "; ".join(_growth(name, sizes) for name, sizes in told.items())
    who = ", ".join(map(shortened, growing_names(runs)[:_NAMES]))
    return f"{named(runs[-1], ' ')}: {len(runs)} runs, {growth}{who and ': '}{who}"


def _growth(name: str, sizes: Sequence[int]) -> str:
    """Return how much a suspect grew: one figure if all runs were alike, else those of the last few."""
    where = "MB" if name == "RAM" else f"MB on {name}"
    told = [f"{rounded_mb(size):+}" for size in sizes]
    if len(set(told)) == 1:
        return f"{told[0]} {where} each"
    return f"{'..., ' if len(told) > _RUNS else ''}{', '.join(told[-_RUNS:])} {where}"


def _peak(usage: Usage) -> str:
    return f"{_at_least(usage)}{rounded_mb(usage.peak.lo_bytes)}"


def _needed(usage: Usage) -> str:
    return f"{_at_least(usage)}{rounded_mb(usage.needed_bytes)}"


def _at_least(usage: Usage) -> str:
    """Return the sign before a figure whose peak is a lower bound."""
    lo_bytes, hi_bytes = usage.peak.lo_bytes, usage.peak.hi_bytes
    return "" if hi_bytes is not None and rounded_mb(hi_bytes) == rounded_mb(lo_bytes) else "≥"


def _where(name: str) -> str:
    return "MB of RAM" if name == "RAM" else f"MB on {name}"


def named(record: CellRecord, between: str = ": ") -> str:
    """Return a cell's label and first line, by which people recognize it."""
    return f"{shortened(record.label)}{between}{shortened(record.source)}"
