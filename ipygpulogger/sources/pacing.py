"""Reads that are skipped for a while once they were slow, so that no cell waits for them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

_SKIPPED_FIRST = 64
_SKIPPED_MOST = 16384


class Paced(Generic[_T]):
    """A read whose cost grows with what the process holds.

    After a slow read the next 64 are skipped, and twice as many each time it is slow again. Slow is CPU time:
    a read that only waited for a CPU, on a busy machine, does not count. Nor does the first read, which may
    load what it needs.

    Args:
        read: The read.
        limit_s: CPU time from which it is slow.
    """

    def __init__(self, read: Callable[[], _T], limit_s: float) -> None:
        self._read, self._limit_s = read, limit_s
        self._to_skip = self._skipped = 0
        self._is_first = True

    def __call__(self) -> _T | None:
        """Return what the read returns; None if it is skipped."""
        if self._to_skip:
            self._to_skip -= 1
            return None
        began_s = time.thread_time()
        found = self._read()
        if self._is_first:
            self._is_first = False
        elif time.thread_time() - began_s <= self._limit_s:
            self._skipped = 0
        else:
            self._skipped = min(2 * self._skipped, _SKIPPED_MOST) or _SKIPPED_FIRST
            self._to_skip = self._skipped
        return found
