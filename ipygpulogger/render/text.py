"""The report as plain text: the table that the original printed, and its one-line form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records import CellRecord
from ..units import MB, rounded_mb

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..records import ChildrenUsage, Diagnosis, Measurement, Peak, RamUsage, Usage


def report(measurement: Measurement, *, compact: bool = False) -> str:
    """The report of one scope, without a newline at the end.

    Args:
        measurement: A `Measurement` or a `CellRecord`.
        compact: On one line.
    """
    return _compact(measurement) if compact else _table(measurement)


def rows(measurement: Measurement) -> Iterator[tuple[str, tuple[str, str, str], str]]:
    """The report's rows: a name, three figures in MB (consumed, peaked, used), and remarks."""
    gen = measurement.gen
    yield "Gen", _figures(gen, gen.after_bytes), _joined(_peak_remark(gen.peak), *_ram_remarks(measurement))
    for gpu in measurement.gpus:
        name = "GPU" if len(measurement.gpus) == 1 else f"GPU{gpu.index}"
        context = f"+ context {rounded_mb(gpu.context_bytes)} MB" if gpu.context_bytes >= MB else ""
        yield name, _figures(gpu, gpu.used_bytes), _joined(_peak_remark(gpu.peak), context)


def outcome(measurement: Measurement) -> str:
    """How a cell ended, if not well: "failed: ValueError" or "interrupted"."""
    if not isinstance(measurement, CellRecord) or measurement.status == "ok":
        return ""
    return "interrupted" if measurement.status == "interrupted" else f"failed: {measurement.error}"


def diagnoses(found: Sequence[Diagnosis]) -> str:
    """What each source says of itself, one line each, and what to do about a lack."""
    lines = []
    for diagnosis in found:
        lines.append(f"{diagnosis.source:12} {diagnosis.state:8} {diagnosis.says}")
        if diagnosis.remedy:
            lines.append(f"{'':21} -> {diagnosis.remedy}")
    return "\n".join(lines)


def _table(measurement: Measurement) -> str:
    lines = [f"RAM: Consumed Peaked  Used Total in {measurement.time_s:0.3f}s ({measurement.label})"]
    for name, (consumed, peaked, used), remarks in rows(measurement):
        lines.append(f"{name + ':':8}{consumed:>5}  {peaked:>5}    {used:>5} MB{_after(remarks)}")
    if ended := outcome(measurement):
        lines[1] += f"  {ended}"
    return "\n".join([*lines, *measurement.notes])


def _compact(measurement: Measurement) -> str:
    parts = [
        f"{name}: {'/'.join(figures)} MB{_after(remarks)}" for name, figures, remarks in rows(measurement)
    ]
    parts += [f"{measurement.time_s:0.3f}s", f"{measurement.label} (Consumed/Peaked/Used Total)"]
    return " | ".join([*parts, *filter(None, [outcome(measurement)]), *measurement.notes])


def _figures(usage: Usage, used_bytes: int | None) -> tuple[str, str, str]:
    used = "n/a" if used_bytes is None else str(rounded_mb(used_bytes))
    return str(rounded_mb(usage.consumed_bytes)), str(rounded_mb(usage.peaked_bytes)), used


def _peak_remark(peak: Peak) -> str:
    if peak.quality == "sampled" or peak.hi_bytes is None:
        return "(peak at least)"
    lo_mb, hi_mb = rounded_mb(peak.lo_bytes), rounded_mb(peak.hi_bytes)
    return f"(peak {lo_mb}-{hi_mb})" if peak.quality == "bounded" and lo_mb != hi_mb else ""


def _ram_remarks(measurement: Measurement) -> tuple[str, ...]:
    remarks = []
    if kept := _kept_bytes(measurement.gen):
        remarks.append(f"({rounded_mb(kept)} MB kept by malloc)")
    if measurement.children:
        remarks.append(_children_remark(measurement.children))
    return tuple(remarks)


def _children_remark(children: ChildrenUsage) -> str:
    noun = "child" if children.count == 1 else "children"
    now = (
        f"+ {children.count} {noun} {rounded_mb(children.after_bytes)} MB"
        if children.count
        else "children ended"
    )
    lo_mb = rounded_mb(children.peak.lo_bytes)
    if children.peak.hi_bytes is None:
        return f"({now}, peak at least {lo_mb} MB)"
    hi_mb = rounded_mb(children.peak.hi_bytes)
    peak = str(lo_mb) if lo_mb == hi_mb else f"{lo_mb}-{hi_mb}"
    return f"({now}, peak {peak} MB)"


def _kept_bytes(gen: RamUsage) -> int:
    """The part of what a scope consumed that is freed memory malloc did not give back."""
    kept_bytes = min(gen.newly_kept_bytes, gen.consumed_bytes - gen.newly_in_use_bytes)
    return kept_bytes if kept_bytes >= MB else 0


def _joined(*remarks: str) -> str:
    return " ".join(remark for remark in remarks if remark)


def _after(remarks: str) -> str:
    return f"  {remarks}" if remarks else ""
