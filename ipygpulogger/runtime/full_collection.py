"""Full garbage collections: how many there were, what one would cost, and running one.

A full collection visits every object that the collector tracks: 2 ms in a fresh shell, 0.1 s once torch is
imported, 0.6 s with ten million lists (measured, Python 3.11 to 3.13). A young one visits what was created
since the last collections, and costs microseconds after a small cell.

What a young collection does not find was reachable at an earlier collection and became garbage later. So
unreachable objects that a cell created are left over only if a collection happened within the cell.
"""

from __future__ import annotations

import gc
import sys

from . import clock, collector

_S_PER_OBJECT = 1e-7  # of a young collection, at most (measured: 60 to 90 ns)
_FIRST_S_PER_BLOCK = 5e-8  # until one was measured (20 to 110 ns)
_S_PER_BLOCK = 5e-9, 5e-7  # within these bounds
_UNKNOWN_S = 0.1  # where the allocator counts no blocks (PYTHONMALLOC=malloc)
# The generations whose collections make objects older. From 3.14 on, all do: collections are incremental.
_AGEING = 1 if sys.version_info < (3, 14) else 0

_SLOW_BLOCKS = 5_000_000  # from here on reading their number takes a tenth of a millisecond and more

_s_per_block = [_FIRST_S_PER_BLOCK]
_blocks = [0]  # when last read


def count() -> int:
    """Return how many full collections this process has run, also those that the user's code asked for."""
    return int(gc.get_stats()[-1]["collections"])


def ageings() -> int:
    """Return how many collections so far moved objects where a young collection does not look."""
    return sum(generation["collections"] for generation in gc.get_stats()[_AGEING:])


def cost_s() -> float:
    """Estimate what a full collection costs now, from the number of memory blocks that Python has allocated.

    Reading that number takes microseconds; a millisecond with ten million lists.
    """
    blocks = _blocks[0] = getattr(sys, "getallocatedblocks", int)()
    return blocks * _s_per_block[0] if blocks > 0 else _UNKNOWN_S


def live_blocks() -> int | None:
    """Return how many blocks Python's allocator has handed out; None where unknown or slow to read."""
    if _blocks[0] > _SLOW_BLOCKS:
        return None
    _blocks[0] = getattr(sys, "getallocatedblocks", int)()
    return _blocks[0] or None


def run() -> None:
    """Run one, and measure what it costs for the next estimate."""
    blocks, began_s = getattr(sys, "getallocatedblocks", int)(), clock.monotonic_s()
    collector.collect()
    took_s = clock.monotonic_s() - began_s
    if blocks > 0:
        least_s, most_s = _S_PER_BLOCK
        _s_per_block[0] = min(max(took_s / blocks, least_s), most_s)


def run_young(budget_s: float) -> bool:
    """Collect what is younger than the last collections; return False if that could cost more than this.

    Where the user has switched the collector off, or raised its thresholds, there may be many objects.
    """
    threshold, (young, middle, _) = collector.users_threshold(), gc.get_count()
    if (young + middle * threshold) * _S_PER_OBJECT > budget_s:
        return False
    collector.collect(1)
    return True
