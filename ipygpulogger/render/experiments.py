"""What an experiment and its cell logger print, in the words and columns of ipyexperiments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from ..records import CellRecord, DeviceUsage
from ..records.units import MB, printable, printable_lines, truncated_mb
from . import out_of_memory, text

_PREFIX = "･ "  # a halfwidth dot


def started(backend: str) -> str:
    """Return the banner."""
    return f"\n*** Experiment started with the {backend} backend"


def device(gpu: DeviceUsage | None) -> str:
    """Return a line about the device of an experiment, and its memory in MB."""
    if gpu is None:
        return "Device: none that can be used, RAM only"
    return f"Device: ID {gpu.index}, {printable(gpu.name)} ({_plain(gpu.total_bytes)} RAM)"


def state(rows: Mapping[str, tuple[int | None, int | None, int | None]], notes: Iterable[str] = ()) -> str:
    """Return the table of current memory."""
    width = _width(figure for row in rows.values() for figure in row) + 1
    lines = ["\n*** Current state:"]
    lines.append(f"RAM: {'Used':>{width}} {'Free':>{width}} {'Total':>{width}}    {'Util':>{width}}")
    for name, (used, free, total) in rows.items():
        figures = " ".join(f"{_mb(figure):>{width}}" for figure in (used, free, total))
        lines.append(f"{name}: {figures} MB {_percent(used, total)} ")
    return "\n".join([*lines, *map(printable, notes)])


def taken_bytes(gpu: DeviceUsage) -> int | None:
    """Return what is not free on a device, rounded so that used and free in whole MB add up to the total."""
    if gpu.total_bytes is None or gpu.free_bytes is None:
        return gpu.taken_bytes
    return (truncated_mb(gpu.total_bytes) - truncated_mb(gpu.free_bytes)) * MB


def finished(kind: str, elapsed_s: float) -> str:
    """Return the first lines of the end; the hours are not limited to a day."""
    minutes, seconds = divmod(int(elapsed_s), 60)
    hours, minutes = divmod(minutes, 60)
    elapsed = f"{hours:02}:{minutes:02}:{seconds:02}"
    return f"\n{kind}: Finishing\n\n*** Experiment finished in {elapsed} (elapsed wallclock time)"


def variables(deleted: Sequence[str], failed: Sequence[str], kept: Sequence[str]) -> str:
    """Return which variables were deleted or kept; empty if there were none."""
    listed = [("Deleted: ", deleted), ("Failed to delete: ", failed), ("Kept:    ", kept)]
    lines = [printable(words + ", ".join(names)) for words, names in listed if names]
    return "\n".join(["\n*** Newly defined local variables:", *lines]) if lines else ""


def garbage(collected: int, uncollectable: int) -> str:
    """Return what the garbage collector found; empty if nothing."""
    temporary = "Circular ref objects gc collected", f"cleared {collected} objects (only temporary leakage)"
    lasting = "Potential memory leaks", f"uncollected gc.garbage of {uncollectable} objects"
    found = [words for count, words in ((collected, temporary), (uncollectable, lasting)) if count]
    return "\n".join(f"\n*** {what} during the experiment:\n{much}" for what, much in found)


def memory(rows: Mapping[str, tuple[int | None, int | None]]) -> str:
    """Return the table of consumed and reclaimed memory."""
    width = max(8, _width(figure for row in rows.values() for figure in row) + 1)
    lines = ["\n*** Experiment memory:", f"RAM: {'Consumed':>{width}}       {'Reclaimed':>{width}}"]
    for name, (consumed, reclaimed) in rows.items():
        share = "100.00%" if consumed == reclaimed == 0 else _percent(reclaimed, consumed)
        lines.append(f"{name}: {_mb(consumed):>{width}} {_mb(reclaimed):>{width}} MB ({share})")
    return "\n".join(lines)


def cell(record: CellRecord, gpu: DeviceUsage | None, *, compact: bool = False) -> str:
    """Return the cell logger's report; what the original lacks stands behind a row, or on further lines."""
    gen = record.gen
    figures: list[tuple[int | None, ...]] = [(gen.consumed_bytes, gen.peaked_bytes, gen.after_bytes)]
    if gpu is not None:
        own = (gpu.consumed_bytes, gpu.peaked_bytes) if gpu.attributed else (None, None)
        figures.append((*own, taken_bytes(gpu)))
    remarked = text.rows(replace(record, gpus=() if gpu is None else (gpu,)))
    remarks = [text.after(remark) for _, _, remark in remarked]
    rows = list(zip(("CPU", "GPU"), figures, remarks, strict=False))
    ended = record.outcome()
    if compact:
        parts = [f"{name}: {'/'.join(map(_plain, three))} MB{remark}" for name, three, remark in rows]
        parts += [f"Time {_time(record.time_s)}", "(Consumed/Peaked/Used Total)"]
        lines = [" | ".join([*parts, *filter(None, [ended]), *record.notes])]
    else:
        width = max(10, _width(figure for three in figures for figure in three) + 1)
        header = f"{'△Consumed':>{width}} {'△Peaked':>{width}}    {'Used Total':>{width}}"
        lines = [f"{_PREFIX}RAM: {header} | Exec time {_time(record.time_s)}"]
        for name, three, remark in rows:
            columns = " ".join(f"{_mb(figure):>{width}}" for figure in three)
            lines.append(f"{_PREFIX}{name}: {columns} MB |{remark}")
        lines[1] += text.after(ended)
        lines += record.notes
    card = [] if record.out_of_memory is None else [out_of_memory.report(record.out_of_memory)]
    return "\n".join([printable_lines(lines), *card])


def _mb(size_bytes: int | None) -> str:
    return "n/a" if size_bytes is None else f"{truncated_mb(size_bytes):,}"


def _plain(size_bytes: int | None) -> str:
    return _mb(size_bytes).replace(",", "")


def _width(sizes: Iterable[int | None]) -> int:
    """Return the width of the widest figure with its commas; as in the original, a sign counts as a digit."""
    digits = max(len(_plain(size_bytes)) for size_bytes in sizes)
    return digits + (digits - 1) // 3


def _percent(part: int | None, whole: int | None) -> str:
    """Return a share of a positive whole, seven characters wide."""
    if part is None or whole is None or whole <= 0:
        return f"{'n/a':>7}"
    return f"{round(part / whole * 100, 2) + 0.0:6.2f}%"  # "+ 0.0" turns a minus zero into a zero


def _time(seconds: float) -> str:
    return f"{timedelta(seconds=int(seconds))}.{int(seconds % 1 * 1000):03d}"
