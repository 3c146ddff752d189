"""Devices in reports: their names (GPU, GPU1, NVML2, GPU0.1), and how the memory of each is divided."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ..records import DRIVER
from ..records.units import printable_lines, rounded_mb, size_text, without_controls
from .markup import BLUE, GREY, PALE, PURPLE, RED, Part, bar, legend, line, small

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..records import CellRecord, DeviceUsage

    Key = tuple[str, int, str | None]  # `DeviceUsage.key`


DRIVERS = "the driver's own"
FILLS = {  # of the rungs of a ladder that are not this process's tensors
    "cached": f"{BLUE}40",
    "context and libraries": GREY,
    "context, libraries, other processes": GREY,
    "other processes": PURPLE,
    DRIVERS: f"{GREY}55",
}


def device_name(gpu: DeviceUsage, gpus: Sequence[DeviceUsage]) -> str:
    """Return the name of a device's row among the rows of these devices.

    The index is the framework's, or NVML's where no framework sees the device. Slices of one card share its
    index and are numbered behind it.
    """
    if len(gpus) == 1:
        return "GPU"
    hidden = gpu.backend == DRIVER and any(other.backend != DRIVER for other in gpus)
    alike = [other for other in gpus if other.id == gpu.id]
    part = f".{alike.index(gpu)}" if len(alike) > 1 else ""
    return f"{'NVML' if hidden else 'GPU'}{gpu.index}{part}"


def named_devices(records: Iterable[CellRecord]) -> dict[Key, tuple[str, DeviceUsage]]:
    """Return the devices of many cells by key: the name of each among them all, and its latest figures."""
    latest = {gpu.key: gpu for record in records for gpu in record.gpus}
    return named(latest.values())


def named(gpus: Iterable[DeviceUsage]) -> dict[Key, tuple[str, DeviceUsage]]:
    """Return devices by key, each once, with the name of each among them all."""
    found = sorted(gpus, key=lambda gpu: (gpu.backend == DRIVER, gpu.backend, gpu.index))
    return {gpu.key: (device_name(gpu, found), gpu) for gpu in found}


def ladder(gpu: DeviceUsage) -> list[tuple[str, int]]:
    """Return how a device's memory is divided, and related figures: names and bytes; empty when unknown."""
    rungs: list[tuple[str, int]] = [(rung.name, rung.size_bytes) for rung in gpu.ladder]
    if not rungs or gpu.total_bytes is None:
        return []
    rungs.append(("total", gpu.total_bytes))
    if gpu.headroom_bytes is not None:
        rungs.append(("headroom", gpu.headroom_bytes))
    if gpu.limit_bytes is not None:
        rungs.append(("limit", gpu.limit_bytes))
    if gpu.reserved_peak is not None:
        rungs.append(("peak of tensors and cached", gpu.reserved_peak.lo_bytes))
    if gpu.pools_bytes:
        rungs.append(("in graphs and pools", gpu.pools_bytes))
    return rungs


def parts(gpu: DeviceUsage) -> list[Part]:
    """Return how a device's memory is divided, as the parts of a bar, in their order.

    Held before and consumed are this process's memory, or held alone where it gave memory back. Context,
    libraries and cache are what is in use beyond it. The transient part of the peak is free again.
    """
    rungs = dict(gpu.ladder)
    if not rungs:
        return []
    found: list[Part] = []
    outside_bytes = 0  # of this process, not in its allocator, and told as held or consumed
    if gpu.attributed:
        after_bytes = max(0, gpu.after_bytes)
        held_bytes = min(max(0, gpu.held_before_bytes), after_bytes)
        held = "held" if gpu.after_bytes < gpu.held_before_bytes else "held before"
        found += [Part(held, held_bytes, PALE), Part("consumed", after_bytes - held_bytes, BLUE)]
        outside_bytes = max(0, after_bytes - rungs.get("tensors", 0))
    elif "tensors" in rungs:
        found.append(Part("tensors", rungs["tensors"], PALE))
    for name, fill in FILLS.items():
        size_bytes = rungs.get(name, 0) - (outside_bytes if name.startswith("context") else 0)
        found.append(Part(name, max(0, size_bytes), fill))
    moment_bytes = gpu.peaked_bytes if gpu.attributed else 0
    found.append(Part("for a moment", moment_bytes, RED))
    found.append(Part("free", rungs["free"]))
    return found


def bars(gpus: Sequence[DeviceUsage]) -> str:
    """Return the ladder of each device as HTML: a bar, and the same in words."""
    told = ""
    for gpu in gpus:
        name = f"{device_name(gpu, gpus)}: {gpu.name}{' (unified memory)' if gpu.unified else ''}"
        found = [
            Part(rung.name, rung.size_bytes, BLUE if rung.name == "tensors" else FILLS.get(rung.name, ""))
            for rung in gpu.ladder
        ]
        further = ", ".join(
            f"{name} {size_text(size_bytes)}" for name, size_bytes in ladder(gpu)[len(found) :]
        )
        told += line(escape(name))
        told += bar(found, gpu.total_bytes or 0) + legend(found) if found else ""
        told += small(further or "its memory use is unavailable")
    return without_controls(told)


def ladders(gpus: Sequence[DeviceUsage]) -> str:
    """Return the ladder of each device as text."""
    lines = []
    for gpu in gpus:
        lines.append(f"{device_name(gpu, gpus)}: {gpu.name}{' (unified memory)' if gpu.unified else ''}")
        found = ladder(gpu)
        lines += [f"  {name:36}{rounded_mb(size_bytes):>8} MB" for name, size_bytes in found]
        if not found:
            lines.append("  its memory use is unavailable")
    return printable_lines(lines)
