"""Which devices `CUDA_VISIBLE_DEVICES` shows to CUDA, read from the environment alone.

The variable selects devices by index, by UUID or by the beginning of a UUID, up to the first entry that
matches none (CUDA Programming Guide, environment variables). Unless `CUDA_DEVICE_ORDER` is PCI_BUS_ID, CUDA
numbers the devices from the fastest to the slowest: that order is known only if all are of one kind.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .nvml import NvmlDevice


def visible(devices: Sequence[NvmlDevice], ordinal: int) -> NvmlDevice | None:
    """Return the device that CUDA counts as this one; None if that is not certain."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    in_order = _in_order(devices)
    if chosen is None:
        return next((device for device in devices if in_order and device.index == ordinal), None)
    found = []
    for entry, matches in _chosen(devices, chosen).items():
        if len(matches) != 1 or (entry.isdecimal() and not in_order):
            break
        found.append(matches[0])
    return found[ordinal] if ordinal < len(found) else None


def hidden(devices: Sequence[NvmlDevice]) -> tuple[NvmlDevice, ...]:
    """Return the devices that CUDA certainly does not see."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return ()
    entries = _chosen(devices, chosen)
    if not _in_order(devices) and any(map(str.isdecimal, entries)):
        return ()
    shown = [device for matches in entries.values() for device in matches]
    return tuple(device for device in devices if device not in shown)


def _in_order(devices: Sequence[NvmlDevice]) -> bool:
    """Return whether CUDA's indices follow the PCI bus, as NVML's do."""
    names = {device.name for device in devices}
    return os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(names) == 1


def _chosen(devices: Sequence[NvmlDevice], chosen: str) -> dict[str, list[NvmlDevice]]:
    """Return what each entry of the variable may mean; an index may mean any MIG slice of a card.

    The same device twice leaves none at all, as in torch (`_parse_visible_devices` in
    `torch/cuda/__init__.py`).
    """
    found: dict[str, list[NvmlDevice]] = {}
    for entry in map(str.strip, chosen.split(",")):
        if entry.isdecimal():
            matches = [device for device in devices if device.index == int(entry)]
        else:
            matches = [device for device in devices if entry and device.uuid.startswith(entry)]
        if matches in found.values():
            return {}
        if not matches or (len(matches) > 1 and not entry.isdecimal()):
            break
        found[entry] = matches
    return found
