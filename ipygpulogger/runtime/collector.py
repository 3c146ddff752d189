"""The garbage collector: our objects do not count towards its next run; what a full collection costs.

CPython counts the containers that were created and not yet freed, and collects once the count exceeds a
threshold. Our hooks create containers too, and each record keeps some. A collection that they trigger would
free what the user's cell left behind, and run finalizers, at a moment that the user's program did not cause.

Not covered are our threads, which create fewer than a hundred containers at a time, and the table of lines.
The collector is never switched off: another thread may switch it off or on meanwhile, and that must last.

A full collection visits every object that the collector tracks: 2 ms in a fresh shell, 0.1 s once torch is
imported, 0.6 s with ten million lists (measured, Python 3.11 to 3.13). A young one visits what was created
since the last collections, and costs microseconds after a small cell.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING

from . import clock
from .objects import walk_stack

if TYPE_CHECKING:
    from collections.abc import Iterator

# More containers than any work of ours creates. Not 0, which means "never": another thread that reads the
# threshold now and restores it later would turn the collector off for good. Odd, to be recognised as ours.
_RAISED = 10_000_019
_SPARES = 4096  # 200 KB: enough for what the first reports import, and for what 200 records keep


class _Spare:
    """A container without content: freeing one lowers the collector's count by one."""

    __slots__ = ("_",)  # without a slot the collector would not count it


class _State:
    """What has to be restored."""

    def __init__(self) -> None:
        self.working: dict[int, int] = {}  # by thread: the collector's count when our work began there
        self.thresholds: tuple[int, ...] = ()  # the user's, while ours are set
        self.room: tuple[int, ...] | None = None  # memory for the next tuple of thresholds
        self.spares = [_Spare() for _ in range(_SPARES)]


_state = _State()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Suspend automatic collections during our work; thresholds that others set meanwhile are kept."""
    working, thread = _state.working, get_ident()
    if thread in working:
        yield
        return
    working[thread] = 0
    try:
        _raise()
        yield
    finally:
        working.pop(thread, None)
        if not working:
            restore()


def begin_hook() -> None:
    """Suspend automatic collections until `end_hook`, which also restores the collector's present count.

    A function, which raises the threshold first: even the objects of a `with` could trigger a collection. A
    hook never runs inside other work of ours. If such work is still marked as running, it was interrupted,
    and what it left behind is corrected here.
    """
    _raise()
    for _ in walk_stack(
        sys._getframe()
    ):  # looking at a frame creates an object, which is freed when the frame ends
        pass
    _state.working[get_ident()] = gc.get_count()[0]


def end_hook() -> None:
    """End a hook: free as many spare containers as it left behind.

    The spares are created when this module is loaded. Once they are used up, the count rises by what each
    record keeps.
    """
    count = _state.working.pop(get_ident(), None)
    if count is not None:
        _level(gc.get_count()[0] - count)
    if not _state.working:
        restore()


def collect(generation: int = 2) -> None:
    """Collect garbage because the user asked for it."""
    _level(-_SPARES)  # creating spares is free here: the collection resets the count to zero
    gc.collect(generation)
    _state.working.update(dict.fromkeys(_state.working, gc.get_count()[0]))


def users_threshold() -> int:
    """Return how many containers the user lets be created before a young collection."""
    threshold = gc.get_threshold()[0]
    return _state.thresholds[0] if threshold == _RAISED and _state.thresholds else threshold


def restore() -> None:
    """Restore the user's thresholds if ours are still set, as after an interrupt."""
    theirs = _state.thresholds
    if theirs and gc.get_threshold() == (_RAISED, *theirs[1:]):
        gc.set_threshold(*theirs)


def _raise() -> None:
    _state.room = None  # the next tuple of this size takes its place, which does not count as a new one
    now = gc.get_threshold()
    if 0 < now[0] < _RAISED:
        _state.thresholds = now  # first: after an interrupt they are restored from it
        gc.set_threshold(_RAISED, *now[1:])
    _state.room = now[0], now[1], now[2]


def _level(made: int) -> None:
    """Free as many spares as containers were created; create spares if more were freed than created."""
    spares = _state.spares
    if made > 0:
        del spares[-made:]
    else:
        spares.extend(_Spare() for _ in range(min(-made, _SPARES - len(spares))))


def _after_fork_in_child() -> None:
    _state.working.clear()  # its threads do not exist in the child
    restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


_S_PER_OBJECT = 1e-7  # of a young collection, at most (measured: 60 to 90 ns)
_FIRST_S_PER_BLOCK = 5e-8  # until one was measured (20 to 110 ns)
_S_PER_BLOCK = 5e-9, 5e-7  # within these bounds
_UNKNOWN_S = 0.1  # where the allocator counts no blocks (PYTHONMALLOC=malloc)
_SLOW_BLOCKS = 5_000_000  # from here on reading their number takes a tenth of a millisecond and more

_s_per_block = [_FIRST_S_PER_BLOCK]
_blocks = [0]  # when last read


def cost_s() -> float:
    """Estimate what a full collection costs now, from the number of memory blocks that Python has allocated.

    Reading that number takes microseconds; a millisecond with ten million lists.
    """
    blocks = _blocks[0] = getattr(sys, "getallocatedblocks", int)()
    return blocks * _s_per_block[0] if blocks > 0 else _UNKNOWN_S


def costs_at_most(limit_s: float) -> bool:
    """Return whether a full collection costs no more than this, as far as is known.

    For a small limit the number of blocks is not read again where it was large.
    """
    if limit_s <= 0 or (_blocks[0] > _SLOW_BLOCKS and _blocks[0] * _S_PER_BLOCK[0] > limit_s):
        return False
    return cost_s() <= limit_s


def run() -> None:
    """Run one, and measure what it costs for the next estimate."""
    blocks, began_s = getattr(sys, "getallocatedblocks", int)(), clock.monotonic_s()
    collect()
    took_s = clock.monotonic_s() - began_s
    if blocks > 0:
        least_s, most_s = _S_PER_BLOCK
        _s_per_block[0] = min(max(took_s / blocks, least_s), most_s)


def run_young(budget_s: float) -> None:
    """Collect what is younger than the last collections, unless that could cost more than this.

    Where the user has switched the collector off, or raised its thresholds, there may be many objects.
    """
    threshold, (young, middle, _) = users_threshold(), gc.get_count()
    if (young + middle * threshold) * _S_PER_OBJECT <= budget_s:
        collect(1)
