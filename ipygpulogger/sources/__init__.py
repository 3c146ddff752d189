"""Read memory figures from the kernel, NVML, the CUDA driver and each framework, by one contract.

A framework's adapter never imports or initialises the framework, except by the documented preload: it reads
`sys.modules` to see whether the user did. No source imports another source, nor anything above this package.

The contract, which sources of other distributions keep as well (entry point group `ipygpulogger.sources`):

===============  ================================================================================
counter          `Counter`: what is in use and its peak (`Look`, `Reading`); `Unavailable`
device           `Device`, `DeviceMemory`; `DeviceCounter`: a framework's allocator on one device
holding          `Holding`: the memory behind one array
framework        `Framework`: devices, cache, arrays and diagnosis of one framework
user_counters    the peaks that users read from a framework, kept true while we reset them
inherited        framework objects that a forked child got from its parent and must not ask
===============  ================================================================================

General RAM, with `process` as its entrance:

===============  ================================================================================
system_calls     system calls that keep the GIL
rusage           what `getrusage` reports
procfs           the files of Linux about a process, below `/proc`
grain            the resolution of the kernel's memory counts
high_water_mark  Linux: the kernel's peak, which can be reset
foreign_resets   whether something else resets that peak
rising_peak      elsewhere: a peak that only rises, or no peak at all
ram_limit        how much RAM there is and is left: the machine's, or under a limit of a container
limit_diagnosis  what the doctor says about these limits
oom_kills        which processes the kernel killed for lack of memory since that was last said
rss_watcher      the process that samples resident memory where no counter has peaks
malloc           the heap: in use, and kept by malloc
memray           each allocation, and the line that asked for it
memray_tracker   memray's tracker, which all recordings share
child_process    one child process: its memory, its mark, and what it shares
children         which child processes there are, and what ended ones needed
pacing           reads that are skipped for a while once they were slow
process          `Process`: all of the above, as this system offers it
===============  ================================================================================

GPU RAM:

===============  ================================================================================
driver           the CUDA driver, read without creating a context
nvml             NVML: memory, processes, energy and load of whole devices
nvml_library     NVML's library: opened, and closed while no call is in it
nvml_errors      why NVML does not answer, in plain words
visible_devices  which devices `CUDA_VISIBLE_DEVICES` shows to CUDA
torch            torch's allocators
torch_state      what torch has initialised
torch_statistics torch's statistics, and the wrappers around them
torch_snapshot   the blocks of torch's CUDA allocator, and the events that it recorded
other_threads    the other threads of this process: whether each has gone on
snapshot_file    both as torch's own file
torch_history    these events, recorded while one of our recordings needs them
torch_tensors    the memory behind tensors and graph nodes
jax              XLA's allocators
cupy             CuPy's default memory pools
tensorflow       TensorFlow's allocators
rmm              RMM's statistics
===============  ================================================================================
"""

from ..records import Diagnosis
from .counter import Counter, Look, PeakClass, Reading, Unavailable
from .device import Device, DeviceCounter, DeviceMemory
from .framework import Framework
from .holding import Dimensions, Holding

__all__ = [
    "Counter",
    "Device",
    "DeviceCounter",
    "DeviceMemory",
    "Diagnosis",
    "Dimensions",
    "Framework",
    "Holding",
    "Look",
    "PeakClass",
    "Reading",
    "Unavailable",
]
