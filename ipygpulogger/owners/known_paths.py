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
    from collections.abc import Container, Hashable, Mapping

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

    def learn(
        self, paths: Paths, values: Mapping[Hashable, int] | None = None, keep: Container[Hashable] = ()
    ) -> None:
        """Replace the known paths by those that a walk has just found.

        Some objects cannot be followed to the next, as a data frame creates its parts when it is asked for
        them. A path ends at the last object before these.

        Args:
            paths: The walk's.
            values: Further keys, each with the `id` of the value of a name.
            keep: The keys whose known paths are kept, where the walk did not find them.
        """
        self._roots = Roots(self._shell)
        kept = {key: end for key, end in self._ends.items() if key in keep and key not in paths.ends}
        above = {lower: upper for upper, below in self._below.items() for lower in below} if kept else {}
        above |= paths.parents
        above |= dict.fromkeys((values or {}).values(), 0)
        self._below = _turned(above)
        reached, _ = self._follow(None)
        self._ends = {**kept, **(values or {})}
        for key, end in paths.ends.items():
            seen = set()
            while end and end not in reached and end not in seen:  # ids that were used again may go round
                seen.add(end)
                end = above.get(end, 0)  # noqa: PLW2901 - it goes up
            if end in reached:
                self._ends[key] = end
        on_the_way: dict[int, int] = {}
        for end in self._ends.values():
            lower = end
            while lower and lower not in on_the_way:
                upper = above.get(lower, 0)
                on_the_way[lower], lower = upper, upper
        self._below = _turned(on_the_way)

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


def _turned(above: Mapping[int, int]) -> dict[int, set[int]]:
    """Return, by object, the next ones, from the one before each."""
    below: dict[int, set[int]] = {}
    for lower, upper in above.items():
        below.setdefault(upper, set()).add(lower)
    return below


def _is_long(value: Any) -> bool:
    kind = type(value)
    for base in CONTAINERS:
        if issubclass(kind, base):
            count: int = base.__len__(value)  # type: ignore[attr-defined]
            return count > _LONG
    return False
