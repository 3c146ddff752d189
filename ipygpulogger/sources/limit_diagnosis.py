"""What the doctor and ``%gpulog status`` say about the limits of RAM: a line for each, the tightest first."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..records import Diagnosis
from ..records.budget import parse
from ..records.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .ram_limit import Kills, RamLimits, Room

_HUB = "MEM_LIMIT"  # JupyterHub sets it for each notebook server; so do its tools that show memory
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
    """Return what is known of each limit, of one that is only stated, and of processes that were killed."""
    rooms = sorted(limits.rooms(), key=_order)
    kills = limits.kills(of_machine=True)
    return [
        *_of_rooms(limits, rooms),
        *_of_hub(rooms),
        *([_of_kills(kills)] if kills and kills.processes else []),
    ]


def killed(kills: Kills, count: int) -> str:
    """Return the sentence that so many processes were killed."""
    processes = "1 process" if count == 1 else f"{count} processes"
    limit = "" if kills.limit_bytes is None else f" (limit {size_text(kills.limit_bytes)})"
    return f"Linux killed {processes} of {kills.where} for lack of memory{limit}"


def _order(room: Room) -> tuple[bool, int]:
    return room.left_bytes is None, room.left_bytes or room.limit_bytes


def _of_rooms(limits: RamLimits, rooms: Sequence[Room]) -> Iterator[Diagnosis]:
    for room in rooms:
        is_known = room.used_bytes is not None
        left = f"{room} left" if is_known else f"{room}, of which the part in use cannot be read"
        source = "" if room.source == room.name else f", from {room.source}"
        says = [f"{left}{source}", *_more(limits, room)]
        yield Diagnosis(
            "RAM limit",
            "exact" if is_known else "bounded",
            "; ".join(says),
            _REMEDY if room.is_scarce else None,
        )
    if not rooms:
        yield Diagnosis("RAM limit", "absent", "neither the machine's RAM nor a limit can be read")


def _more(limits: RamLimits, room: Room) -> Iterator[str]:
    """Yield what else is known about a limit."""
    if room.group is not None:
        if room.used_bytes is not None:
            yield f"working set {size_text(room.used_bytes)}, without page cache that can be reclaimed"
        peak_bytes, swap_bytes = limits.peak_bytes(room.group), limits.swap_bytes(room.group)
        if peak_bytes is not None:
            yield f"peak {size_text(peak_bytes)}, with page cache"
        if swap_bytes is not None:
            yield f"swap up to {size_text(swap_bytes)}" if swap_bytes else "no swap"
    for source, says in _BEYOND.items():
        if room.source.endswith(source):
            yield says


def _of_hub(rooms: Sequence[Room]) -> Iterator[Diagnosis]:
    """Yield what JupyterHub says; that is a statement, which a cgroup may enforce."""
    text = os.environ.get(_HUB, "").strip()
    try:
        size_bytes = parse(f"{text}B" if text.isdecimal() else text) if text else 0
    except ValueError:
        return
    if not size_bytes:
        return
    size = size_text(size_bytes)
    if any(room.group and room.limit_bytes <= size_bytes for room in rooms):
        yield Diagnosis(_HUB, "exact", f"{size}, as the environment states it; a limit above enforces it")
    else:
        yield Diagnosis(
            _HUB, "absent", f"no limit that can be read here enforces the {size} that the environment states"
        )


def _of_kills(kills: Kills) -> Diagnosis:
    return Diagnosis("OOM kills", "exact", f"{killed(kills, kills.processes)}, from {kills.source}")
