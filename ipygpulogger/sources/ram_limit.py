"""How much RAM this process may use: all of the machine, or what its container is allowed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ..runtime.signals import is_from_a_handler

# cgroup v2, and v1, as a container sees its own group; "max", or more than the machine has, is no limit.
_CGROUP_LIMITS = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")


@cache
def ram_limit_bytes() -> int | None:
    """Return the most RAM that all processes here can have; None when unknown. Read once in a process."""
    try:
        import psutil

        limit_bytes = int(psutil.virtual_memory().total)
    except Exception as error:  # an installation can be broken in any way
        if is_from_a_handler(error):
            raise
        return None
    for path in _CGROUP_LIMITS:
        try:
            limit_bytes = min(limit_bytes, int(path.read_text(encoding="ascii")))
        except (OSError, ValueError):  # another system, or "max"
            continue
    return limit_bytes
