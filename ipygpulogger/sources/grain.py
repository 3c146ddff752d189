"""How far the memory counts of this machine's kernel may be off.

Since Linux 6.2 each CPU keeps a part of every count to itself (f1a7941243c1), so that a sum over the parts
that are published is approximate. From Linux 6.17 on the resident size, but not its high-water mark, is
summed over all parts and exact (82241a83cd15).
"""

from __future__ import annotations

import os
import re

from . import procfs, rusage

_PERCPU_COUNTER_KERNEL = (6, 2)
_EXACT_SIZE_KERNEL = (6, 17)
SYS_CPU = "/sys/devices/system/cpu"


def high_water_precision_bytes() -> int:
    """Return how far the kernel's stored peak may lie from the truth.

    Since Linux 6.2 each of the three resident counts (anonymous, file, shared) is kept in batches of
    `max(32, 2 * cpus)` pages a CPU (lib/percpu_counter.c); before, in batches of 64 pages a thread.
    """
    cpus = cpu_count()
    batch_pages = max(32, 2 * cpus) if _kernel() >= _PERCPU_COUNTER_KERNEL else 64
    return 3 * batch_pages * cpus * rusage.PAGE_BYTES


def resident_precision_bytes() -> int:
    """Return how far the resident size may lie from the truth: on Linux 6.2 to 6.16 as far as the mark.

    Some distributions ship the correction in an older kernel: there this is more than need be.
    """
    approximate = _PERCPU_COUNTER_KERNEL <= _kernel() < _EXACT_SIZE_KERNEL
    return high_water_precision_bytes() if approximate else 0


def largest_fault_bytes() -> int:
    """Return what one page fault can add: a huge page if the kernel has them, else 64 kB (fault-around)."""
    try:
        return int(procfs.read("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"))
    except (OSError, ValueError):
        return 64 * 2**10


def cpu_count() -> int:
    """Return how many CPUs the kernel can bring online, whatever this process may run on.

    Not `os.cpu_count()`, which `PYTHON_CPU_COUNT` changes, nor the affinity: neither changes the kernel's
    batches. CPUs that are merely possible (free slots of a virtual machine) hold no part of a count.
    """
    for name in ("present", "possible"):
        try:
            ranges = procfs.read(f"{SYS_CPU}/{name}").decode().strip().split(",")
            ends = [[int(end) for end in one.split("-")] for one in ranges]
            return sum(end[-1] - end[0] + 1 for end in ends)
        except (OSError, ValueError):
            continue
    try:
        return max(1, os.sysconf("SC_NPROCESSORS_CONF"))
    except (AttributeError, OSError, ValueError):
        return os.cpu_count() or 1


def _kernel() -> tuple[int, ...]:
    numbers = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return tuple(map(int, numbers.groups())) if numbers else (0, 0)
