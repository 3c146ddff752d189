"""Which name each block of memory is attributed to: the first, in order of rank, from which it is reachable.

A `Traversal` lists in order what the walk from one name found. What is reachable from an object is a slice of
that list, a `Span`, so a later traversal that comes to the object need not visit it again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..records import Owner
from .memory_blocks import LARGE, MemoryBlocks

if TYPE_CHECKING:
    import weakref


Kind = Literal["variable", "output", "traceback", "other"]
OwnerKey = tuple[str, str, Kind]  # a name, a device, and the name's kind

GRAPH = " (autograd graph)"


class Root(NamedTuple):
    """A name from which the walk starts."""

    name: str  # as the user would write it
    kind: Kind  # what holds the name
    value: Any  # the object that it refers to
    label: str = ""  # what the names of frames below it begin with; by default the name


class WalkResult(NamedTuple):
    """What a walk found."""

    owners: tuple[Owner, ...]  # by name and device, the largest first
    complete: bool  # whether every reachable object was visited; otherwise the time budget was used up
    # by owner, the key of each block, which may be used again once the block is freed, and its bytes
    blocks: Mapping[OwnerKey, Mapping[Hashable, int]] = {}
    cut_short: frozenset[str] = frozenset()  # the names below which not everything was visited
    uncounted: tuple[str, ...] = ()  # the names that hold memory of unknown size
    # by key, of large blocks where that is known: a weak reference that dies with the block
    alive: Mapping[Hashable, weakref.ref[Any]] = {}
    # by key, of large blocks the names that share it with its owner
    shared: Mapping[Hashable, tuple[str, ...]] = {}
    whole: Mapping[Hashable, int] = {}  # by key, of blocks that are partly resident: the whole size


class Traversal:
    """The depth-first traversal from one root."""

    __slots__ = ("found", "graph", "label", "pending", "rank", "root")

    def __init__(self, root: Root, rank: tuple[int, int]) -> None:
        self.root: Root = root
        self.rank: tuple[int, int] = rank  # its place in the order in which blocks are attributed
        self.label: str = root.label or root.name  # the names of traversals that branch off it begin so
        self.graph: Traversal | None = None  # that of the autograd graph that branches off it
        # What is still to be visited, the deepest last: values, the span they belong to, the object's id.
        self.pending: list[tuple[Iterator[Any], Span | None, int]] = []
        # In order: blocks (their number), and objects that were visited before.
        self.found: list[Entry] = []

    def push(self, values: Iterable[Any]) -> None:
        """Add values that are to be visited next."""
        self.pending.append((iter(values), None, 0))


@dataclass(slots=True, eq=False)
class Span:
    """An object that was visited: what is reachable from it is a slice of its traversal's list."""

    traversal: Traversal
    start: int
    end: int  # -1 while it is being visited


Entry = int | Span


class Attribution:
    """Attributes each block to the first name that reaches it, while `in_time` returns True."""

    def __init__(self, blocks: MemoryBlocks, in_time: Callable[[], bool]) -> None:
        self._blocks, self._in_time = blocks, in_time
        self._within = blocks.same_memory()
        self._first: dict[int, OwnerKey | None] = dict.fromkeys(blocks.without_memory())
        self._sizes: dict[OwnerKey, dict[Hashable, int]] = {}
        self._shared: dict[OwnerKey, dict[str, None]] = {}
        self._sharers: dict[int, dict[str, None]] = {}

    def result(
        self, traversals: Iterable[Traversal], uncounted: Iterable[str], left_out: Iterable[str] = ()
    ) -> WalkResult:
        """Attribute all blocks that these traversals found.

        `uncounted` names hold memory of unknown size; for `left_out` there was no time.
        """
        traversals = sorted((one for one in traversals if one.found or one.pending), key=attrgetter("rank"))
        cut = frozenset(one.root.name for one in traversals if one.pending).union(left_out)
        in_time = True
        for one in traversals:
            in_time = in_time and self._in_time()
            own = [entry for entry in one.found if type(entry) is int]
            self._attribute(one.root, self._reachable(one) if in_time else self._merged(own))
        owners = [
            Owner(key[0], sum(sizes.values()), key[1], key[2], _sharers(key[0], self._shared.get(key)))
            for key, sizes in self._sizes.items()
        ]
        shared = {
            self._blocks.keys[number]: _sharers(owner[0], names)
            for number, names in self._sharers.items()
            if (owner := self._first[number])
        }
        owners.sort(key=lambda owner: -owner.size_bytes)
        found = tuple(owners), in_time and not cut, self._sizes, cut, tuple(uncounted)
        return WalkResult(*found, self._blocks.alive, shared, self._blocks.whole)

    def _attribute(self, root: Root, reachable: list[int]) -> None:
        """Attribute the blocks that have no owner yet to this name, which shares the others."""
        first, blocks = self._first, self._blocks
        others: set[int] = set()
        for number in reachable:
            if number in first:
                others.add(number)
            else:
                owner = first[number] = root.name, blocks.devices[number], root.kind
                self._sizes.setdefault(owner, {})[blocks.keys[number]] = blocks.sizes[number]
        for number in others:
            known = first[number]
            if known is not None and known[0] != root.name:
                self._shared.setdefault(known, {})[root.name] = None
                if blocks.sizes[number] >= LARGE:
                    self._sharers.setdefault(number, {})[root.name] = None

    def _reachable(self, traversal: Traversal) -> list[int]:
        """Return the blocks that are reachable from what a traversal found, each perhaps more than once."""
        found: list[int] = []
        done: dict[Traversal, bytearray] = {}  # by traversal, which entries of its list are done
        pending = [Span(traversal, 0, -1)]
        while pending:
            span = pending.pop()
            entries = span.traversal.found
            seen = done.setdefault(span.traversal, bytearray(len(entries)))
            end = len(entries) if span.end < 0 else span.end
            start = seen.find(0, span.start, end)
            while start >= 0:
                stop = seen.find(1, start, end)
                stop = end if stop < 0 else stop
                seen[start:stop] = bytes((1,)) * (stop - start)
                piece = entries[start:stop]
                found += [one for one in piece if isinstance(one, int)]
                pending += [one for one in piece if not isinstance(one, int)]
                start = seen.find(0, stop, end)
        return self._merged(found)

    def _merged(self, numbers: list[int]) -> list[int]:
        """Replace the number of a block within another by that one's."""
        return [self._within.get(number, number) for number in numbers] if self._within else numbers


def _sharers(owner: str, names: Mapping[str, None] | None) -> tuple[str, ...]:
    """Return the names that share with an owner, without the autograd graphs of names that are listed."""
    listed = {owner, *(names or ())}
    return tuple(name for name in names or () if not (name.endswith(GRAPH) and name[: -len(GRAPH)] in listed))
