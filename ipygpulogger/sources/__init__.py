"""Where figures come from: kernel, NVML, CUDA driver and each framework, by one contract.

A framework's adapter never imports or initialises the framework, except by the documented preload: it reads
`sys.modules` to see whether the user did. No source imports another source, nor anything above this package.

===========  ================================================================================
system/      general RAM and processes, as the operating system reports them
nvidia/      NVIDIA devices: the CUDA driver and NVML
torch/       torch: its allocators, their statistics and events, and the memory behind tensors
frameworks/  the other frameworks, a file each
===========  ================================================================================

`contract` is the contract of all, which sources of other distributions keep as well (entry point group
`ipygpulogger.sources`).
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
    "Counter",
    "Device",
    "DeviceCounter",
    "DeviceMemory",
    "Diagnosis",
    "Framework",
    "Holding",
    "Observation",
    "PeakClass",
    "Reading",
    "Unavailable",
]
