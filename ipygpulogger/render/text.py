"""The report of a scope as plain text: the table that the original package printed, and a one-line form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..analysis.notable import QUIET_RAM_BYTES, moved_bytes, nearly_full
from ..records import CellRecord, DeviceUsage
from ..records.units import MB, mb_range, mb_text, printable, printable_lines, rounded_mb, time_text
from .growth import between, device_name, grew, highest

if TYPE_CHECKING:
    from ..records import ChildrenUsage, ChildUsage, Measurement, Metric, OutOfMemory, Usage


_LONG_S = 2.0  # the time series of a shorter scope is not drawn


def report(measurement: Measurement, *, compact: bool = False, heads: bool = True) -> str:
    """Return the report of one scope; compact it is one line, with or without the heads of its figures."""
    figures = _compact(measurement, heads) if compact else _table(measurement)
    below = list(map(printable, sentences(measurement)))
    if measurement.at_peak:
        from . import at_peak  # few cells have it

        below[:0] = at_peak.kinds_lines(measurement.at_peak, measurement.peak_times_s, compact=compact)
    card = card_of(measurement)
    if card is None:
        return (" | " if compact else "\n").join([figures, *below])
    from . import out_of_memory  # few cells need it

    return "\n".join([figures, out_of_memory.report(card), *below])  # the user needs it now


def card_of(measurement: Measurement) -> OutOfMemory | None:
    """Return what is known of the allocation that failed, if one did."""
    return measurement.out_of_memory if isinstance(measurement, CellRecord) else None


def so_far(measurement: Measurement) -> str:
    """Return the report of a scope that still runs, on one line."""
    head = f"{measurement.label}: {time_text(measurement.time_s, whole=True)} so far"
    return printable(" | ".join([head, *_row_by_row(measurement), *measurement.notes]))


def rows(measurement: Measurement) -> Iterator[tuple[str, tuple[str, str, str], str]]:
    """Yield the rows of a report: a name, three figures in MB (consumed, peaked, used), and remarks."""
    remarks = peaked_remark(measurement.gen), *_ram_remarks(measurement)
    yield "Gen", figures(measurement.gen), _joined(*remarks)
    for gpu in measurement.gpus:
        yield device_name(gpu, measurement.gpus), figures(gpu), _joined(*_device_remarks(gpu))


def time_series(measurement: Measurement) -> list[str]:
    """Return the time series of each row as blocks; empty of a short scope, and where nothing varies."""
    if measurement.time_s < _LONG_S:
        return [""] * (1 + len(measurement.gpus))
    from .markup import sparkline

    series = measurement.gen.timeline, *(gpu.timeline for gpu in measurement.gpus)
    return list(map(sparkline, series))


def uncertainty(gpu: DeviceUsage) -> str:
    """Return how uncertain a device's figures are; empty when they are exact."""
    return peaked_remark(gpu) if gpu.attributed else "(per-process usage unavailable)"


def sentences(measurement: Measurement) -> tuple[str, ...]:
    """Return the sentences below the figures: between cells, owners that grew, heaviest line, notes."""
    found = [between(measurement), grew(measurement)]
    if isinstance(measurement, CellRecord) and measurement.lines:
        from .lines import heaviest  # few cells have lines

        found.append(heaviest(measurement.lines))
    return (*filter(None, found), *measurement.notes)


def _table(measurement: Measurement) -> str:
    lines = [f"RAM: Consumed Peaked  Used Total in {measurement.time_s:0.3f}s ({measurement.title()})"]
    for (name, (consumed, peaked, used), remarks), shape in zip(
        rows(measurement), time_series(measurement), strict=True
    ):
        more = after(_joined(remarks, shape))
        lines.append(f"{name + ':':8}{consumed:>5}  {peaked:>5}    {used:>5} MB{more}")
    lines[1] += after(measurement.outcome())
    return printable_lines(lines)


def _compact(measurement: Measurement, heads: bool) -> str:
    head = " (Consumed/Peaked/Used Total)" if heads else ""
    parts = f"{measurement.time_s:0.3f}s", f"{measurement.title()}{head}", measurement.outcome()
    return printable(" | ".join([*_row_by_row(measurement), *filter(None, parts)]))


def _row_by_row(measurement: Measurement) -> Iterator[str]:
    for name, figures, remarks in rows(measurement):
        yield f"{name}: {'/'.join(figures)} MB{after(remarks)}"


def figures(usage: Usage) -> tuple[str, str, str]:
    """Return what was consumed, peaked and is used of one memory, in MB."""
    if not isinstance(usage, DeviceUsage):
        return mb_text(usage.consumed_bytes), mb_text(usage.peaked_bytes), mb_text(usage.after_bytes)
    own = (usage.consumed_bytes, usage.peaked_bytes) if usage.attributed else (None, None)
    return mb_text(own[0]), mb_text(own[1]), mb_text(usage.used_bytes)


def _device_remarks(gpu: DeviceUsage) -> Iterator[str]:
    yield uncertainty(gpu)
    if gpu.context_bytes >= MB:
        yield f"+ context {rounded_mb(gpu.context_bytes)} MB"
    if nearly_full(gpu):
        yield f"(headroom {rounded_mb(gpu.headroom_bytes or 0)} MB)"
    if abs(gpu.unattributed_bytes) >= MB:
        yield f"({rounded_mb(gpu.unattributed_bytes):+} MB outside the allocator, owner unknown)"
    if gpu.unknown_rise_bytes >= MB:
        yield f"({rounded_mb(gpu.unknown_rise_bytes)} MB more for a moment, owner unknown)"
    now_bytes, before_bytes = gpu.neighbours_bytes, gpu.neighbours_before_bytes
    if now_bytes is not None and before_bytes is not None and abs(now_bytes - before_bytes) >= MB:
        yield f"(other processes {rounded_mb(now_bytes)} MB)"
    if gpu.metrics:
        yield f"({', '.join(map(_metric, gpu.metrics))})"


def _metric(metric: Metric) -> str:
    if metric.value is None:
        return f"{metric.name} n/a: {metric.reason}"
    figure = f"{metric.value:.4g}" if abs(metric.value) < 1e4 else f"{metric.value:.0f}"
    return f"{metric.name} {figure} {metric.unit}"


def peaked_remark(usage: Usage) -> str:
    """Return how uncertain the peaked figure is: "(peaked at least)", "(peaked 512-560)"; empty if exact."""
    peak, most_bytes = usage.peak, usage.peaked_at_most_bytes
    grain = f"±{rounded_mb(peak.precision_bytes)} MB" if peak.coarse else ""
    if peak.quality == "sampled" or most_bytes is None:
        return f"(peaked at least, {grain})" if grain else "(peaked at least)"
    within = mb_range(usage.peaked_bytes, most_bytes) if peak.quality == "bounded" else ""
    says = _joined(within if "-" in within else "", grain)
    return f"(peaked {says})" if says else ""


def _ram_remarks(measurement: Measurement) -> Iterator[str]:
    if measurement.gen.precision_bytes >= MB:
        yield f"(consumed ±{rounded_mb(measurement.gen.precision_bytes)} MB)"
    if (kept_bytes := measurement.gen.kept_of_consumed_bytes) >= MB:
        yield f"({rounded_mb(kept_bytes)} MB kept by malloc)"
    if measurement.children:
        yield _children_remark(measurement.children)
    pinned = measurement.pinned
    if pinned and max(abs(pinned.consumed_bytes), pinned.peaked_bytes) >= MB:
        most = f", {highest(pinned.peak)}" if pinned.peaked_bytes >= MB else ""
        yield f"(pinned {rounded_mb(pinned.after_bytes)} MB{most})"


def _children_remark(children: ChildrenUsage) -> str:
    peak, largest = children.peak, (one for one in children.largest if moved_bytes(one) >= QUIET_RAM_BYTES)
    names = ", ".join(map(_one_child, largest))
    said = [children_now(children, f"{rounded_mb(children.after_bytes)} MB")]
    no_more = not children.ended and peak.lo_bytes <= min(children.before_bytes, children.after_bytes)
    certain = no_more and (children.at_least or peak.hi_bytes == peak.lo_bytes)
    if not certain and (peak.hi_bytes is not None or rounded_mb(peak.lo_bytes) or not children.ended):
        said.append(highest(peak))
    return f"({', '.join(said)}{': ' if names else ''}{names})"


def children_now(children: ChildrenUsage, size: str) -> str:
    """Return how many children there are and what they have: "+ 2 children 300 MB, 1 ended"."""
    count, ended = children.count, children.ended
    noun = "child" if (count or ended) == 1 else "children"
    if not count:
        return f"{ended} {noun} ended" if ended else "children ended"
    least = "at least " if children.at_least else ""
    now = f"+ {count} {noun} {least}{size}"
    return f"{now}, {ended} ended" if ended else now


def _one_child(child: ChildUsage) -> str:
    """Return what one child has: "python 12 215 MB", "sh 13 9 MB (highest 30 MB)"."""
    name, most = f"{child.name} {child.pid}", highest(child.peak)
    if child.ended:
        return f"{name} {most.removeprefix('highest ')}"
    more = f" ({most})" if child.peaked_bytes >= MB else ""
    return f"{name} {rounded_mb(child.after_bytes)} MB{more}"


def _joined(*remarks: str) -> str:
    return " ".join(remark for remark in remarks if remark)


def after(remarks: str) -> str:
    """Return remarks as they stand behind a row."""
    return f"  {remarks}" if remarks else ""
