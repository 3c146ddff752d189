"""One path to each large block of memory, followed again after each cell to see whether it still holds.

A walk from every name finds what is reachable, and takes milliseconds. To find out whether a block that it
found is still reachable, it is enough to follow one path to it: from the value of a name, over each object on
the way, to the next. That takes a microsecond for each object.

Only ids are kept, which keep none of the user's objects alive. An object that is freed while another one
takes its id does no harm: that one would have to refer to the same next object.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from ..runtime import clock
from .referents import CONTAINERS
from .roots import Roots

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from .attribution import Paths

_LONG = 20_000  # items: what a longer container holds counts as reachable while the container is
_LOOK_AT_CLOCK = 64  # objects


class KnownPaths:
    """The paths to the large blocks that the names of a shell hold.

    Args:
        shell: IPython's.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._roots = Roots(shell)
        self._below: dict[int, set[int]] = {}  # by object: the next ones; by 0: the values of names
        self._ends: dict[Hashable, int] = {}  # by block: the last object of the path to it
        self._begin = 0  # the name that comes first the next time

    def learn(self, paths: Paths) -> None:
        """Replace the known paths by those that a walk has just found.

        Some objects cannot be followed to the next, as a data frame creates its parts when it is asked for
        them. A path ends at the first of these.

        Args:
            paths: The walk's.
        """
        self._roots = Roots(self._shell)
        below: dict[int, set[int]] = {}
        for lower, upper in paths.parents.items():
            below.setdefault(upper, set()).add(lower)
        self._below, self._ends = below, {}
        reached, _ = self._follow(None)
        self._below = {upper: lower & reached for upper, lower in below.items()}
        for key, end in paths.ends.items():
            last = end
            while last and last not in reached:
                last = paths.parents.get(last, 0)
            if last:
                self._ends[key] = last

    def broken(self, budget_s: float) -> list[Hashable]:
        """Return the blocks to which the known path no longer leads.

        Args:
            budget_s: The time budget. A path that is not followed by then counts as unbroken. The next call
                begins with the name at which this one ended.
        """
        if not self._ends:
            return []
        reached, left_out = self._follow(clock.monotonic_s() + budget_s)
        return [key for key, end in self._ends.items() if end not in reached and end not in left_out]

    def forget(self, keys: Iterable[Hashable]) -> None:
        """Forget the paths to these blocks."""
        for key in keys:
            self._ends.pop(key, None)

    def _follow(self, deadline_s: float | None) -> tuple[set[int], set[int]]:
        """Follow every path.

        Returns:
            The ids of the objects that were reached, and of those that were left out for lack of time.
        """
        below = self._below
        first = below.get(0, set())
        values = list({id(value): value for value in self._roots.values() if id(value) in first}.values())
        begin = self._begin % max(1, len(values))
        values = values[begin:] + values[:begin]
        reached, steps = set(map(id, values)), 0
        for number, root in enumerate(values):
            pending = [root]
            while pending:
                value = pending.pop()
                wanted = below.get(id(value))
                if not wanted:
                    continue
                if _is_long(value):
                    reached |= self._all_below([value])
                    continue
                steps += 1
                if deadline_s is not None and not steps % _LOOK_AT_CLOCK and clock.monotonic_s() > deadline_s:
                    self._begin = begin + number
                    return reached, self._all_below([value, *pending, *values[number + 1 :]])
                for one in gc.get_referents(value):
                    if id(one) in wanted and id(one) not in reached:
                        reached.add(id(one))
                        pending.append(one)
        return reached, set()

    def _all_below(self, values: list[Any]) -> set[int]:
        found: set[int] = set()
        pending = [id(value) for value in values]
        while pending:
            lower = self._below.get(pending.pop(), set()) - found
            found |= lower
            pending += lower
        return found


def _is_long(value: Any) -> bool:
    kind = type(value)
    for base in CONTAINERS:
        if issubclass(kind, base):
            count: int = base.__len__(value)  # type: ignore[attr-defined]
            return count > _LONG
    return False
