"""What the doctor says about memory limits, and which processes the kernel killed for lack of memory.

A kernel that was killed cannot say so, and the next one only finds a count. How much of it was said of the
last group is remembered in one small file in the user's runtime or cache folder. It is written only where a
process was killed, and if it cannot be, the count is said again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ...records import Diagnosis
from ...records.units import size_text
from ...runtime.output import write_file

if TYPE_CHECKING:
    from .ram_limit import Kills, MemoryLimit, RamLimits

_BEYOND = {  # what happens there, by the end of a limit's source
    "memory.high": "beyond it Linux slows the processes down, and kills none",
    "RLIMIT_AS": "it counts address space; beyond it allocating fails",
    "RLIMIT_DATA": "it counts private writable memory; beyond it allocating fails",
}
_REMEDY = (
    "%gpulog vars shows what holds memory; every process under the limit counts, so end kernels that you no"
    " longer need, or ask for a larger limit"
)


def diagnoses(limits: RamLimits) -> list[Diagnosis]:
    """Return what is known of each limit, and of processes that were killed."""
    known = sorted(limits.all(), key=lambda one: (one.left_bytes is None, one.left_bytes or one.limit_bytes))
    found = [_of_limit(limit) for limit in known]
    if not found:
        found = [Diagnosis("RAM limit", "absent", "neither the machine's RAM nor a limit can be read")]
    kills = limits.kills(of_machine=True)
    if kills and kills.processes:
        says = f"{killed(kills, kills.processes)}, from {kills.source}"
        found.append(Diagnosis("OOM kills", "exact", says))
    return found


def killed(kills: Kills, count: int) -> str:
    """Return the sentence that so many processes were killed."""
    processes = "1 process" if count == 1 else f"{count} processes"
    limit = "" if kills.limit_bytes is None else f" (limit {size_text(kills.limit_bytes)})"
    return f"Linux killed {processes} of {kills.where} for lack of memory{limit}"


def _of_limit(limit: MemoryLimit) -> Diagnosis:
    is_known = limit.used_bytes is not None
    left = f"{limit} left" if is_known else f"{limit}, of which the part in use cannot be read"
    says = [left if limit.source == limit.name else f"{left}, from {limit.source}"]
    if limit.group is not None and limit.used_bytes is not None:
        says.append(f"working set {size_text(limit.used_bytes)}, without page cache that can be reclaimed")
    says += [beyond for source, beyond in _BEYOND.items() if limit.source.endswith(source)]
    remedy = _REMEDY if limit.is_scarce else None
    return Diagnosis("RAM limit", "exact" if is_known else "bounded", "; ".join(says), remedy)


_FILE = Path("ipygpulogger", "oom-kills")


def take_new(limits: RamLimits, kills: Kills) -> int:
    """Return how many of these kills were not taken before, by any process of this user."""
    path, group, new = _folder() / _FILE, _identity(limits, kills), kills.processes
    with suppress(OSError, ValueError):  # none so far, or not as written below
        taken_group, _, taken = path.read_text("utf-8").rpartition(" ")
        if taken_group == group and 0 <= int(taken) <= new:
            new -= int(taken)
    if new:
        with suppress(OSError):  # a home that cannot be written
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, f"{group} {kills.processes}")
    return new


def _folder() -> Path:
    for name in ("XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
        if folder := os.environ.get(name):
            return Path(folder)
    return Path(os.path.expanduser("~"), ".cache")  # noqa: PTH111 - raises nothing without a home


def _identity(limits: RamLimits, kills: Kills) -> str:
    """Return what no other group has: not one of the same path in another container, host or boot."""
    try:
        boot = limits.read("/proc/sys/kernel/random/boot_id").decode(errors="replace").strip()
        return f"{boot} {Path(limits.path(kills.source)).stat().st_ino} {kills.source}"
    except OSError:
        return kills.source
