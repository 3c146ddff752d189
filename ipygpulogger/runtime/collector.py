"""The garbage collector: it does not run during our work; what a full collection costs.

A collection within a hook would free what the user's cell left behind. So the collector's threshold is raised
during our work. It is never switched off: another thread may switch it off or on, and that must last.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from . import clock

# More containers than any work of ours creates. Not 0, which means "never": another thread that reads the
# threshold now and restores it later would turn the collector off for good. Odd, to be recognised as ours.
_RAISED = 10_000_019


class _State:
    """What has to be restored; one per process."""

    def __init__(self) -> None:
        self.working: set[int] = set()  # the threads that work for us
        self.thresholds: tuple[int, ...] = ()  # the user's, while ours are set
        self.room: tuple[int, ...] | None = None  # memory for the next tuple of thresholds


_state = _State()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Suspend automatic collections during our work; thresholds that others set meanwhile are kept."""
    if get_ident() in _state.working:
        yield
        return
    try:
        begin_hook()
        yield
    finally:
        end_hook()


def begin_hook() -> None:
    """Suspend automatic collections until `end_hook`; even the objects of a `with` could trigger one."""
    _state.room = None  # the next tuple of this size takes its place, which does not count as a new one
    now = gc.get_threshold()
    if 0 < now[0] < _RAISED:
        _state.thresholds = now  # first: after an interrupt they are restored from it
        gc.set_threshold(_RAISED, *now[1:])
    _state.room = now[0], now[1], now[2]
    _state.working.add(get_ident())


def end_hook() -> None:
    """End a hook."""
    _state.working.discard(get_ident())
    if not _state.working:
        restore()


def restore() -> None:
    """Restore the user's thresholds if ours are still set, as after an interrupt."""
    theirs = _state.thresholds
    if theirs and gc.get_threshold() == (_RAISED, *theirs[1:]):
        gc.set_threshold(*theirs)


def _after_fork_in_child() -> None:
    _state.working.clear()  # its threads do not exist in the child
    restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


# A full collection visits every object that the collector tracks: 2 ms in a fresh shell, 0.1 s once torch is
# imported, 0.6 s with ten million lists (measured, Python 3.11 to 3.13).
_S_PER_BLOCK = 5e-9, 5e-7  # a measured cost is within these bounds
_UNKNOWN_S = 0.1  # where the allocator counts no blocks (PYTHONMALLOC=malloc)
_YOUNG_S_PER_OBJECT = 1e-7  # of a young collection, at most (measured: 60 to 90 ns)

_SLOW_BLOCKS = 5_000_000  # from here on reading their number takes a tenth of a millisecond and more

_s_per_block = [5e-8]  # until one was measured (20 to 110 ns)
_blocks = [0]  # when last read


def cost_s() -> float:
    """Estimate what a full collection costs now, from the number of blocks that Python has allocated."""
    blocks = _blocks[0] = getattr(sys, "getallocatedblocks", int)()
    return blocks * _s_per_block[0] if blocks > 0 else _UNKNOWN_S


def costs_at_most(limit_s: float) -> bool:
    """Return whether a full collection costs no more, as far as is known; a large count is not read again."""
    if limit_s <= 0 or (_blocks[0] > _SLOW_BLOCKS and _blocks[0] * _S_PER_BLOCK[0] > limit_s):
        return False
    return cost_s() <= limit_s


def collect(generation: int = 2) -> None:
    """Collect garbage because the user asked for it."""
    gc.collect(generation)


def run() -> None:
    """Run a full collection, and measure what it costs for the next estimate."""
    blocks, began_s = getattr(sys, "getallocatedblocks", int)(), clock.monotonic_s()
    collect()
    took_s = clock.monotonic_s() - began_s
    if blocks > 0:
        least_s, most_s = _S_PER_BLOCK
        _s_per_block[0] = min(max(took_s / blocks, least_s), most_s)


def _young() -> int:
    """Return the generation to collect for what is young; 2 where every collection is a full one."""
    marker: list[object] = []
    if all(any(one is marker for one in gc.get_objects(generation)) for generation in (1, 0)):
        return 2  # without the GIL, all objects are in each generation
    # Where the third threshold is always 0 (the first releases of 3.14), 1 is a step of a full collection.
    return 1 if gc.get_threshold()[2] else 0


YOUNG = _young()


def run_young(budget_s: float) -> None:
    """Collect what is young unless it could cost more, as where the user has switched the collector off."""
    if YOUNG == 2:
        if costs_at_most(budget_s):
            run()
        return
    threshold, (young, middle, _) = gc.get_threshold()[0], gc.get_count()
    if threshold == _RAISED:
        threshold = _state.thresholds[0]
    if (young + middle * threshold) * _YOUNG_S_PER_OBJECT <= budget_s:
        collect(YOUNG)
