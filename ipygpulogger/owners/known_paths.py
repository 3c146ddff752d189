"""One path to each large block of memory, followed again after each cell to see whether it still holds.

A walk from every name finds what is reachable, and takes milliseconds. To find out whether a block that it
found is still reachable, it is enough to follow one path to it: from the value of a name, over each object on
the way, to the next. That takes a microsecond for each object.

Only ids are kept, which keep none of the user's objects alive. An object that is freed while another one
takes its id does no harm: that one would have to refer to the same next object.
"""

from __future__ import annotations

import gc
from random import Random
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
        self._upper: set[int] = set()  # the objects below which a path has more than one object to go
        self._above: dict[int, int] = {}  # by object: the one before it
        self._ends: dict[Hashable, int] = {}  # by block: the last object of the path to it
        self._order = Random()  # noqa: S311 - of what is followed first where time is short; no secret

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
        ends = {key: end for key, end in self._ends.items() if key in keep and key not in paths.ends}
        above = {**(self._above if ends else {}), **paths.parents}
        for key, value in (values or {}).items():
            ends[key], above[value] = value, 0
        self._set(above)
        missing = self._all_below(self._follow(None))
        for key, end in paths.ends.items():
            seen = set()
            while end in missing and end not in seen:  # ids that were used again may go round
                seen.add(end)
                end = above.get(end, 0)  # noqa: PLW2901 - it goes up
            if end and end not in seen:
                ends[key] = end
        self._ends, self._above = ends, {}
        for end in ends.values():
            lower = end
            while lower and lower not in self._above:
                upper = above.get(lower, 0)
                self._above[lower], lower = upper, upper
        self._set(self._above)

    def broken(self, budget_s: float) -> list[Hashable]:
        """Return the blocks to which the known path no longer leads.

        Args:
            budget_s: The time budget. A path that is not followed by then counts as unbroken. Each call
                follows the paths in another order.
        """
        if not self._ends:
            return []
        missing = self._follow(clock.monotonic_s() + budget_s)
        if not missing:
            return []
        lost = self._all_below(missing)
        return [key for key, end in self._ends.items() if end in lost]

    def _follow(self, deadline_s: float | None) -> set[int]:
        """Follow every path, until time runs out; return the ids of the objects that are not there."""
        below = self._below
        wanted = below.get(0, set())
        values = self._roots.values()
        found = dict(zip(map(id, values), values, strict=True))
        pending = [found[ident] for ident in wanted if ident in found]
        missing = wanted - found.keys()
        if len(below) > _LOOK_AT_CLOCK:
            self._order.shuffle(pending)
        done: set[int] = set()
        while pending:
            value = pending.pop()
            if id(value) in done or id(value) not in below or _is_long(value):
                continue
            done.add(id(value))
            if deadline_s is not None and not len(done) % _LOOK_AT_CLOCK and clock.monotonic_s() > deadline_s:
                break
            referents, wanted = gc.get_referents(value), below[id(value)]
            if not wanted.issubset(map(id, referents)):
                missing |= wanted.difference(map(id, referents))
            if id(value) in self._upper:
                pending += [one for one in referents if id(one) in wanted and id(one) in below]
        return missing

    def _set(self, above: Mapping[int, int]) -> None:
        """Set what is to be followed, from the object before each."""
        self._below = {}
        for lower, upper in above.items():
            self._below.setdefault(upper, set()).add(lower)
        self._upper = {
            upper for upper, lower in self._below.items() if any(one in self._below for one in lower)
        }

    def _all_below(self, idents: set[int]) -> set[int]:
        found, pending = set(idents), list(idents)
        while pending:
            lower = self._below.get(pending.pop(), set()) - found
            found |= lower
            pending += lower
        return found


def _is_long(value: Any) -> bool:
    kind = type(value)
    if kind is dict or kind is list:
        return len(value) > _LONG
    if not issubclass(kind, CONTAINERS):
        return False
    base: Any = next(base for base in CONTAINERS if issubclass(kind, base))
    count: int = base.__len__(value)
    return count > _LONG
