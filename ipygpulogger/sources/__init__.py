"""Where figures come from: kernel, NVML, CUDA driver and each framework, by one contract.

No source imports another source, and none imports or initialises a framework, but by the documented preload.
"""

from ..records import Diagnosis
from .contract import (
    Counter,
    Device,
    DeviceCounter,
    DeviceMemory,
    Framework,
    Holding,
    Observation,
    PeakClass,
    Reading,
    Unavailable,
)

__all__ = [
    "Counter", "Device", "DeviceCounter", "DeviceMemory", "Diagnosis", "Framework", "Holding",
    "Observation", "PeakClass", "Reading", "Unavailable",
]  # fmt: skip
