"""`%gpulog fit`: how the memory of a cell grows with the size of its data."""

from __future__ import annotations

from collections.abc import Iterator

from ..analysis.fit import RAM, CellFit, MemoryFit
from ..records.units import MB, clipped, printable, printable_lines, rounded_mb, shortened
from .table import Column, Table

_RUNS = 20  # of a table
_LABELS = 4  # runs that a title names
_NAME = 32  # characters of what varied
_FAR = 10  # times the largest size that ran: what lies beyond is only roughly known


def report(found: CellFit) -> str:
    """Return as text what each run needed, up to which size there is enough, and the line."""
    labels, name = [run.label for run in found.runs], clipped(printable(found.name), _NAME)
    earlier = f" and {len(labels) - _LABELS} earlier" if len(labels) > _LABELS else ""
    title = [f"{', '.join(labels[-_LABELS:])}{earlier}: {shortened(run.source)}" for run in found.runs[-1:]]
    runs, verdicts = _table(found, name), [_verdict(memory, name) for memory in found.memories]
    return printable_lines([*title, *(runs.text() if runs.rows else []), *verdicts, *_sentences(found, name)])


def _verdict(memory: MemoryFit, name: str) -> str:
    """Return up to which size there is enough."""
    if memory.left_bytes is None:
        return f"{memory.device}: how much is left now is unknown."
    if memory.ends_at is None:
        left = f"{memory.device}: {_mb(memory.left_bytes)} are left for the cell"
        return f"{left}, but the runs do not show up to which {name} that is enough."
    largest = memory.points[-1].size
    size = f"{memory.ends_at:,}"
    if memory.ends_at > _FAR * largest:  # rounded down to two digits
        digits = 10 ** (len(str(memory.ends_at)) - 2)
        size = f"about {memory.ends_at // digits * digits:,}"
    enough = f"enough up to {name} = {size}" if memory.ends_at else f"not enough for {name} = 1"
    return f"{memory.device}: {enough}, with {_mb(memory.left_bytes)} left for it."


def _sentences(found: CellFit, name: str) -> Iterator[str]:
    if found.missing:
        yield f"{found.missing[:1].upper()}{found.missing[1:]}."
    for memory in found.memories:
        yield f"{memory.device}: {_growth(memory, name)}."
        if memory.ends_at is not None and memory.ends_at > _FAR * memory.points[-1].size:
            yield f"The largest that ran is {memory.points[-1].size:,}: try one in between."
        if memory.device != RAM and memory.ends_at is not None:
            yield "Leave a few percent: what the allocator loses to fragmentation is not in this figure."
        if memory.at_least:
            yield "Some runs needed at least what is shown, so more may be needed."
    if any(len(memory.points) == 2 for memory in found.memories):
        yield "Two sizes always lie on a line: a run with a third one shows whether it holds."
    for size, run in found.failed:
        yield f"{run.label} {run.outcome()} at {name} = {size:,}, so it has no point."


def _growth(memory: MemoryFit, name: str) -> str:
    """Return the line in words, or that there is none."""
    if not memory.is_line:
        if memory.off_bytes > -memory.base_bytes:
            return f"not a line: the runs lie up to {_mb(memory.off_bytes)} off"
        return f"not a line: by it, nothing would need {_mb(memory.base_bytes)}"
    growth = f"{_small(memory.slope_bytes)} for each of {name}"
    if memory.base_bytes >= MB:
        growth = f"{_mb(memory.base_bytes)}, and {growth}"
    elif memory.base_bytes <= -MB:
        growth = f"{growth}, minus {_mb(-memory.base_bytes)} in all"
    if len(memory.points) < 3:
        return growth
    return f"{growth}; every run is within {_mb(max(memory.off_bytes, MB))} of that line"


def _mb(size_bytes: float) -> str:
    return f"{rounded_mb(size_bytes)} MB"


def _small(size_bytes: float) -> str:
    """Return a size that may be far below a megabyte, with three digits."""
    for unit, unit_bytes in (("MB", MB), ("kB", 1024)):
        if size_bytes >= unit_bytes:
            size = size_bytes / unit_bytes
            return f"{size:.0f} {unit}" if size >= 100 else f"{size:.3g} {unit}"
    return f"{size_bytes:.3g} bytes"


def _table(found: CellFit, name: str) -> Table:
    """Return the runs by their size: what each needed of each memory; the largest of very many."""
    heads = (Column(f"{memory.device} MB", least=10) for memory in found.memories)
    table = Table([Column(name), *heads, Column("", "words")])
    needs = [{point.label: point.need_bytes for point in memory.points} for memory in found.memories]
    sizes = {point.label: point.size for memory in found.memories for point in memory.points}
    for label, size in sorted(sizes.items(), key=lambda item: item[1])[-_RUNS:]:
        known = (by_label.get(label) for by_label in needs)
        cells = ("" if need is None else str(rounded_mb(need)) for need in known)
        table.add(f"{size:,}", *cells, shortened(label))
    return table
