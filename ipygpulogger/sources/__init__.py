"""Where figures come from: kernel, NVML, CUDA driver and each framework, by one contract.

A framework's adapter never imports or initialises the framework, except by the documented preload. No source
imports another source, nor anything above this package. Sources of other distributions keep the contract as
well (entry point group `ipygpulogger.sources`).
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
