"""Words that several reports share: bounds, the names that grew, rows of devices, what each source says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ..records import CPU, DRIVER, CellRecord
from ..records.units import MB, nonzero_mb, printable, printable_lines, range_text, rounded_mb, shortened
from .markup import BLUE, GREY, PALE, PURPLE, RED, Part, bar, legend

if TYPE_CHECKING:
    from ..analysis.ranking import Key
    from ..records import DeviceUsage, Diagnosis, Measurement, Owner, Peak

_NAMED = 8  # owners
_UNEXPLAINED_BYTES, _UNEXPLAINED = 5 * MB, 0.05
_SHARED = 3  # other names of one owner


def bounds(lo_bytes: int, hi_bytes: int | None, shown: Callable[[int], str]) -> str:
    """Return a size between bounds: "900 MB", "512 to 560 MB", "at least 900 MB" without an upper one."""
    least = shown(lo_bytes)
    return f"at least {least}" if hi_bytes is None else range_text(least, shown(max(hi_bytes, lo_bytes)))


def highest(peak: Peak, shown: Callable[[int], str] = nonzero_mb, *, at_least: bool = False) -> str:
    """Return how high memory was: "highest 900 MB", "highest at least 900 MB", "highest 512 to 560 MB"."""
    return f"highest {bounds(peak.lo_bytes, None if at_least else peak.hi_bytes, shown)}"


def between(measurement: Measurement) -> str:
    """Return how much memory changed since the previous cell; empty if it did not."""
    moved = measurement.between if isinstance(measurement, CellRecord) else ()
    moves = [f"{device} {rounded_mb(size):+} MB".removeprefix(f"{CPU} ") for device, size in moved]
    return f"between cells: {', '.join(moves)}" if moves else ""


def grew(measurement: Measurement) -> str:
    """Return the names that account for what a cell consumed, and what they leave unexplained."""
    if not isinstance(measurement, CellRecord) or not (measurement.owners or measurement.unexplained):
        return ""
    says = "; ".join(filter(None, [", ".join(_names(measurement)), *_rest(measurement)]))
    return "; ".join(filter(None, [says and f"grew: {says}", *_loaded(measurement)]))


def beyond_names(measurement: Measurement) -> str:
    """Return what `grew` says beside the names: what they leave unexplained, and loaded libraries."""
    if not isinstance(measurement, CellRecord):
        return ""
    return "; ".join([*_rest(measurement), *_loaded(measurement)])


def notable(measurement: Measurement) -> list[Owner]:
    """Return the names that grew by what rounds to a megabyte, without loaded libraries."""
    owners = measurement.owners if isinstance(measurement, CellRecord) else ()
    return [owner for owner in owners if rounded_mb(owner.size_bytes) and not owner.is_libraries]


def _names(record: CellRecord) -> list[str]:
    owners = notable(record)
    named = [_grown(one) + (f" ({also(one.shared)})" if one.shared else "") for one in owners[:_NAMED]]
    for device in dict.fromkeys(owner.device for owner in owners[_NAMED:]):
        size_bytes = sum(owner.size_bytes for owner in owners[_NAMED:] if owner.device == device)
        named.append(f"others {_sized(size_bytes, device)}")
    return named


def _loaded(record: CellRecord) -> list[str]:
    libraries = [owner for owner in record.owners if owner.is_libraries]
    return [_grown(one) for one in libraries if one.size_bytes > _worth_telling_bytes(record, one.device)]


def _rest(record: CellRecord) -> list[str]:
    rest = []
    for device, size_bytes in sorted(record.unexplained, key=lambda one: one[1] < 0):
        if size_bytes < 0:
            rest.append(f"{_sized(-size_bytes, device)} of that took no new memory")
        elif size_bytes > _worth_telling_bytes(record, device):
            rest.append(f"{_sized(size_bytes, device)} unexplained")
    if rest and not record.owners_complete:  # else more time would have found no other names
        rest[-1] += " (search cut short)"
    return rest


def _worth_telling_bytes(record: CellRecord, device: str) -> float:
    """Return the threshold above which unexplained memory is reported: 5 MB, and 5 % of what was consumed."""
    usage = record.memories().get(device)
    return max(_UNEXPLAINED_BYTES, _UNEXPLAINED * usage.consumed_bytes if usage else 0)


def also(shared: Sequence[str]) -> str:
    """Return the other names of one owner: "also x, y, z, 3 more"; empty if it has none."""
    names = [shortened(name) for name in shared[:_SHARED]]
    names += [f"{len(shared) - _SHARED} more"] if len(shared) > _SHARED else []
    return f"also {', '.join(names)}" if names else ""


def _grown(owner: Owner) -> str:
    return f"{shortened(owner.name)} {_sized(owner.size_bytes, owner.device)}"


def _sized(size_bytes: int, device: str) -> str:
    return f"{rounded_mb(size_bytes)} MB" + ("" if device == CPU else f" ({device})")


_DRIVERS = "the driver's own"
_SMALL = 0.01  # of a device: a smaller part that did not move is left out of its bar
_FILLS = {  # of the rungs of a ladder that are not this process's tensors
    "cached": f"{BLUE}40",
    "context and libraries": GREY,
    "context, libraries, other processes": GREY,
    "other processes": PURPLE,
    _DRIVERS: f"{GREY}55",
}


def device_name(gpu: DeviceUsage, gpus: Sequence[DeviceUsage]) -> str:
    """Return the name of a device's row among those of these devices; slices of one card are numbered."""
    if len(gpus) == 1:
        return "GPU"
    hidden = gpu.backend == DRIVER and any(other.backend != DRIVER for other in gpus)
    alike = [other for other in gpus if other.id == gpu.id]
    part = f".{alike.index(gpu)}" if len(alike) > 1 else ""
    return f"{'NVML' if hidden else 'GPU'}{gpu.index}{part}"


def named_devices(gpus: Iterable[DeviceUsage]) -> dict[Key, tuple[str, DeviceUsage]]:
    """Return the devices by key, each once: the name among them all, and the latest figures."""
    latest = {gpu.key: gpu for gpu in gpus}
    found = sorted(latest.values(), key=lambda gpu: (gpu.backend == DRIVER, gpu.backend, gpu.index))
    return {gpu.key: (device_name(gpu, found), gpu) for gpu in found}


def parts(gpu: DeviceUsage) -> list[Part]:
    """Return how a device's memory is divided, as the parts of a bar.

    Held before and consumed are this process's memory, or held alone where it gave memory back. Context,
    libraries and cache are what is in use beyond it. The transient part of the peak is free again.
    """
    rungs = dict(gpu.ladder)
    if not rungs:
        return []
    found: list[Part] = []
    outside_bytes = 0  # of this process, not in its allocator, and shown as held or consumed
    if gpu.attributed:
        after_bytes = max(0, gpu.after_bytes)
        held_bytes = min(max(0, gpu.held_before_bytes), after_bytes)
        held = "held" if gpu.after_bytes < gpu.held_before_bytes else "held before"
        found += [Part(held, held_bytes, PALE), Part("consumed", after_bytes - held_bytes, BLUE)]
        outside_bytes = max(0, after_bytes - rungs.get("tensors", 0))
    elif "tensors" in rungs:
        found.append(Part("tensors", rungs["tensors"], PALE))
    for name, fill in _FILLS.items():
        size_bytes = rungs.get(name, 0) - (outside_bytes if name.startswith("context") else 0)
        found.append(Part(name, max(0, size_bytes), fill))
    moment_bytes = gpu.peaked_bytes if gpu.attributed else 0
    return [*found, Part("for a moment", moment_bytes, RED), Part("free", rungs["free"])]


def device_bar(gpu: DeviceUsage, gpus: Sequence[DeviceUsage]) -> str:
    """Return how a device's memory is divided, as HTML: a bar, and the same in words."""
    if gpu.total_bytes is None:
        return ""
    least_bytes = gpu.total_bytes * _SMALL
    found = [
        part
        for part in parts(gpu)
        if part.fill in (BLUE, RED) or (part.name != _DRIVERS and part.size_bytes >= least_bytes)
    ]
    if not found:
        return ""
    name = f"{device_name(gpu, gpus)}: " if len(gpus) > 1 else ""
    return bar(found, gpu.total_bytes) + legend(found, name)


def ladders(gpus: Sequence[DeviceUsage]) -> str:
    """Return how each device's memory is divided, and related figures, as text."""
    lines = []
    for gpu in gpus:
        lines.append(f"{device_name(gpu, gpus)}: {gpu.name}{' (unified memory)' if gpu.unified else ''}")
        sizes = gpu.total_bytes, gpu.headroom_bytes, gpu.limit_bytes, gpu.pools_bytes or None
        further = zip(("total", "headroom", "limit", "in graphs and pools"), sizes, strict=True)
        known = [(name, size) for name, size in further if size is not None]
        rows = [f"  {name:36}{rounded_mb(size):>8} MB" for name, size in (*gpu.ladder, *known)]
        lines += rows if gpu.ladder else ["  its memory use is unavailable"]
    return printable_lines(lines)


def diagnoses(found: Sequence[Diagnosis]) -> str:
    """Return what each source reports about itself, one line each, with the remedy below if there is one."""
    from .table import Column, Table  # no cell needs it

    table = Table(
        [Column("", "words", least=12), Column("", "words", gap=1, least=8), Column("", "words", gap=1)]
    )
    for one in found:
        table.add(one.source, one.state, one.says)
        if one.remedy:
            table.add("", "", f"-> {one.remedy}")
    return printable_lines(table.text(marks=False)[1:])  # without heads


def status(state: str, found: Sequence[Diagnosis], gpus: Sequence[DeviceUsage]) -> str:
    """Return what a logger does, how exact each source is, and how each device's memory is divided."""
    states = ", ".join(dict.fromkeys(f"{one.source} {one.state}" for one in found))
    reasons = printable(f"{states}; reasons: %gpulog doctor")
    return "\n".join([state, reasons, *([ladders(gpus)] if gpus else [])])
