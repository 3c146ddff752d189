"""What NVML can measure of a device within a scope besides memory: energy and utilization."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records import Metric
from ..sources import Unavailable
from ..sources.nvml import ENERGY_RESOLVES_S

if TYPE_CHECKING:
    from datetime import datetime

    from ..sources.nvml import Nvml
    from .device_scope import DeviceScope

METRICS = {"energy": "J", "utilization": "%"}  # each name, with its unit


def energy_now_j(nvml: Nvml, uuid: str) -> float | Unavailable:
    """Return the driver's energy counter of a device, in joules, or why it cannot be read."""
    try:
        return nvml.energy_j(uuid)
    except Unavailable as reason:
        return reason


def metric(name: str, nvml: Nvml, on: DeviceScope, began: datetime, time_s: float) -> Metric:
    """Return one metric of a scope that ends now: a value, or the reason why there is none.

    Args:
        name: One of `METRICS`.
        nvml: The driver.
        on: The device in the scope, with the energy counter as read at the beginning.
        began: When the scope began.
        time_s: How long it lasted. The driver's energy counter needs a while to move.
    """
    uuid, unit = on.device.uuid or "", METRICS[name]
    try:
        if name == "utilization":
            return Metric(name, nvml.utilization_percent(uuid, began.timestamp()), unit)
        if isinstance(on.energy_j, Unavailable):
            raise on.energy_j
        used_j = nvml.energy_j(uuid) - on.energy_j
    except Unavailable as reason:
        return Metric(name, None, unit, str(reason))
    if time_s < ENERGY_RESOLVES_S or not used_j:
        return Metric(name, None, unit, "too short for the driver's counter")
    return Metric(name, used_j, unit)
