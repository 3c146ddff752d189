"""How much RAM this process may use: all of the machine, or what its container is allowed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ..runtime.signals import is_from_a_handler

# cgroup v2, and v1, as a container sees its own group; "max", or more than the machine has, is no limit.
_CGROUP_LIMITS = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")
_MEMINFO = Path("/proc/meminfo")  # as psutil reads it


@cache
def ram_limit_bytes() -> int | None:
    """Return the most RAM that all processes here can have; None when unknown. Read once in a process."""
    limit_bytes = _total_bytes()
    if limit_bytes is None:
        return None
    for path in _CGROUP_LIMITS:
        try:
            limit_bytes = min(limit_bytes, int(path.read_bytes()))
        except (OSError, ValueError):  # another system, or "max"
            continue
    return limit_bytes


def _total_bytes() -> int | None:
    """Return the machine's RAM; None when unknown. On Linux psutil is not imported for it."""
    try:
        with _MEMINFO.open("rb") as lines:
            name, size_kb, unit = lines.readline().split()
        if (name, unit) == (b"MemTotal:", b"kB"):
            return int(size_kb) * 1024
    except (OSError, ValueError):  # another system
        pass
    try:
        import psutil

        return int(psutil.virtual_memory().total)
    except Exception as error:  # an installation can be broken in any way
        if is_from_a_handler(error):
            raise
        return None
