"""What the runs of a cell needed above what other cells hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .leaks import memories

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from .cell_record import CellRecord
    from .usage import Usage


class Held:
    """One memory of this process while cells run: what some cells left there, and what all others hold.

    A cell that runs again replaces what its earlier run left. So what the watched cells leave does not count
    as held by others. What is freed between cells was theirs first.
    """

    def __init__(self) -> None:
        self._others_bytes: int | None = None
        self._left_bytes = 0

    def others_bytes(self, used_bytes: int) -> int:
        """Return what others hold, now that this much is in use."""
        if self._others_bytes is None:
            self._others_bytes = used_bytes
        change_bytes = used_bytes - self._others_bytes - self._left_bytes
        freed_bytes = min(max(0, self._left_bytes), max(0, -change_bytes))
        self._left_bytes -= freed_bytes
        self._others_bytes += change_bytes + freed_bytes
        return self._others_bytes

    def ran(self, usage: Usage) -> None:
        """Note what a watched cell left."""
        self._left_bytes += usage.consumed_bytes


def needs(
    records: Iterable[CellRecord],
    runs: Iterable[CellRecord],
    device: Hashable,
    cell_of: Callable[[CellRecord], Hashable],
    used_now_bytes: int | None = None,
) -> tuple[dict[int, int], int]:
    """Return what each run of a cell needed in one memory, above what cells hold that ran only once.

    Args:
        records: All cells of a kernel, in their order.
        runs: Those among them that are runs of the cell.
        device: The memory, as `leaks.memories` names it.
        cell_of: Returns what makes another run of the same cell recognizable; None if nothing does.
        used_now_bytes: What the process uses of it now; None if the kernel has ended.

    Returns:
        By the `id` of each run, its highest use less what others held; what others hold in the end.
    """
    wanted, held, seen = {id(run) for run in runs}, Held(), set[object]()
    found: dict[int, int] = {}
    others_bytes = 0
    for record in records:
        cell = cell_of(record)
        usage = memories(record).get(device)
        if usage is not None:
            others_bytes = held.others_bytes(usage.before_bytes)
            if id(record) in wanted:
                found[id(record)] = highest_bytes(usage) - others_bytes
            if id(record) in wanted or cell in seen:
                held.ran(usage)
        if cell is not None:
            seen.add(cell)
    return found, others_bytes if used_now_bytes is None else held.others_bytes(used_now_bytes)


def highest_bytes(usage: Usage) -> int:
    """Return the upper bound of a peak, or the lower one if it has no other."""
    peak = usage.peak
    return peak.lo_bytes if peak.hi_bytes is None else peak.hi_bytes
