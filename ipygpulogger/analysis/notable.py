"""What of a record is worth telling: what moved, what matters, what is nearly full or over its budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..records import CellRecord, DeviceUsage, Measurement, Usage
from ..records.note import URGENT, of_kind
from ..records.units import MB, nonzero_text, rounded_mb, size_text

QUIET_RAM_BYTES = 5 * MB  # importing a small module moves as much
_MUCH = 0.1  # of a device, or of the machine's RAM
_SCARCE = 0.05  # of a device's memory


def matters(measurement: Measurement, ram_total_bytes: int | None = None) -> bool:
    """Return whether a report is open from the start."""
    # Failed for lack of memory, over budget, growing in each run, little headroom or RAM left, a figure that
    # is not exact, or more than a tenth of a device or of the machine's RAM moved.
    failed = isinstance(measurement, CellRecord) and measurement.out_of_memory
    if failed or of_kind(measurement.notes, *URGENT) or any(map(nearly_full, measurement.gpus)):
        return True
    usages: list[tuple[Usage, int | None]] = [(measurement.gen, ram_total_bytes)]
    usages += [(gpu, gpu.total_bytes) for gpu in measurement.gpus if gpu.attributed]
    return any(
        moved_bytes(usage) >= QUIET_RAM_BYTES
        and (is_inexact(usage) or (total_bytes and moved_bytes(usage) > total_bytes * _MUCH))
        for usage, total_bytes in usages
    )


def nearly_full(gpu: DeviceUsage) -> bool:
    """Return whether this process can allocate little more on a device that it uses."""
    if gpu.headroom_bytes is None or not gpu.total_bytes or not gpu.after_bytes:
        return False
    return gpu.headroom_bytes < gpu.total_bytes * _SCARCE


def moves(usage: Usage) -> bool:
    """Return whether memory moved by what rounds to a megabyte."""
    return bool(rounded_mb(usage.consumed_bytes) or rounded_mb(usage.peaked_bytes))


def moved_bytes(usage: Usage) -> int:
    """Return how much memory moved: consumed, given back, or needed for a moment."""
    return max(abs(usage.consumed_bytes), usage.needed_bytes)


def is_inexact(usage: Usage) -> bool:
    """Return whether the highest use is known less exactly than to a megabyte."""
    lo_bytes, hi_bytes = usage.peak.lo_bytes, usage.peak.hi_bytes
    differs = hi_bytes is None or rounded_mb(lo_bytes) != rounded_mb(hi_bytes)
    return usage.peak.quality != "exact" and differs


def is_notable(gpu: DeviceUsage) -> bool:
    """Return whether anything on a device is worth a report: of this process, of others, or its metrics."""
    before_bytes, now_bytes = gpu.neighbours_before_bytes, gpu.neighbours_bytes
    neighbours_bytes = 0 if before_bytes is None or now_bytes is None else abs(now_bytes - before_bytes)
    most_bytes = max(gpu.context_bytes, abs(gpu.unattributed_bytes), gpu.unknown_rise_bytes, neighbours_bytes)
    return moves(gpu) or nearly_full(gpu) or bool(gpu.metrics) or most_bytes >= MB


def divided(measurement: Measurement, budget_bytes: int) -> tuple[int | None, int | None]:
    """Return of what a budget is, RAM or each device: of RAM only where the process uses no GPU."""
    on_gpu = any(gpu.peak.lo_bytes for gpu in measurement.gpus)
    return (None, budget_bytes) if on_gpu else (budget_bytes, None)


def overdrawn(
    measurement: Measurement, ram_bytes: int | None, gpu_bytes: int | None
) -> tuple[str, list[str]]:
    """Return by how much a scope for certain needed more than its budgets, and where that is unknown."""
    budgets = [(name, usage, gpu_bytes) for name, usage in measurement.memories().items()]
    budgets[0] = "RAM", measurement.gen, ram_bytes
    found = []
    for name, usage, budget_bytes in budgets:
        if budget_bytes is not None and usage.needed_bytes > budget_bytes:
            least = "" if usage.peak.quality == "exact" else "at least "
            needed, over = size_text(usage.needed_bytes), nonzero_text(usage.needed_bytes - budget_bytes)
            budget = nonzero_text(budget_bytes)
            found.append(f"needed {least}{needed} of {name}, {over} more than its budget of {budget}")
    unknown = [gpu.id for gpu in measurement.gpus if gpu_bytes is not None and not gpu.attributed]
    said, why = f"{measurement.label}: no budget can be judged on", "per-process usage is unavailable"
    return "; ".join(found), [f"{said} {name}: {why}" for name in unknown]


class Excess(NamedTuple):
    """The highest use of one memory, above its budget."""

    name: str  # "RAM", or the device id: "cuda:0"
    peak_bytes: int  # if it is not exact, its lower bound
    budget_bytes: int
    at_least: bool
    began_bytes: int = 0  # what was in use before
    is_own: bool = True  # it began within the budget, or needed more; otherwise it is still over


def excesses(
    measurement: Measurement, *, ram_bytes: int | None = None, gpu_bytes: int | None = None
) -> Iterator[Excess]:
    """Yield where this process went above a budget for certain: in RAM, and on each device."""
    # A scope that began above the budget has an excess of its own if it needed 5 MB more.
    allowed: list[tuple[str, Usage, int | None]] = [("RAM", measurement.gen, ram_bytes)]
    allowed += [(gpu.id, gpu, gpu_bytes) for gpu in measurement.gpus if gpu.attributed]
    for name, usage, budget_bytes in allowed:
        context_bytes = getattr(usage, "context_bytes", 0)  # created within the scope, so not there before it
        began_bytes, at_least = usage.before_bytes - context_bytes, usage.peak.quality != "exact"
        if budget_bytes is not None and usage.peak.lo_bytes > budget_bytes:
            is_own = began_bytes <= budget_bytes or usage.peak.lo_bytes - began_bytes >= QUIET_RAM_BYTES
            yield Excess(name, usage.peak.lo_bytes, budget_bytes, at_least, began_bytes, is_own)
