"""Which kills of the out-of-memory killer are new, so that a restarted notebook kernel says each once.

A kernel that was killed cannot say so, and the next one only finds a count. How much of it was said is
remembered in one small file in the user's runtime or cache folder. It is written only where a process was
killed, and if it cannot be, the count is said again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runtime import files

if TYPE_CHECKING:
    from .ram_limit import Kills, RamLimits

_FILE = Path("ipygpulogger", "oom-kills.json")
_MOST_GROUPS = 32  # that are remembered: the last ones
_MOST_BYTES = 100_000


def take_new(limits: RamLimits, kills: Kills) -> int:
    """Return how many of these kills were not taken before, by any process of this user."""
    path, group = _folder() / _FILE, _identity(limits, kills)
    taken = _read(path)
    before, new = taken.pop(group, 0), kills.processes
    if isinstance(before, int) and 0 <= before <= new:
        new -= before
    if new:
        kept = list(taken.items())[1 - _MOST_GROUPS :]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write(path, json.dumps({**dict(kept), group: kills.processes}))
        except OSError:  # a home that cannot be written
            pass
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


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
