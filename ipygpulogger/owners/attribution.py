"""Which name each block of memory is attributed to: the first, in order of rank, from which it is reachable.

A `Traversal` is the walk from one name. It lists in order what it found: blocks, and objects that were
visited before, on this traversal or another. Everything reachable from an object is a slice of its
traversal's list, a `Span`, so a later traversal that comes to the object need not visit it again.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..records import Owner
from .memory_blocks import LARGE

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from .memory_blocks import MemoryBlocks

Kind = Literal["variable", "output", "traceback", "other"]
OwnerKey = tuple[str, str, Kind]  # a name, a device, and the name's kind

GRAPH = " (autograd graph)"
_NONE: Any = object()


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
    # For each owner the memory that is attributed to it: the key of each block, and its bytes. A key is the
    # same for whatever shares the block, and may be used again once the block is freed
    blocks: Mapping[OwnerKey, Mapping[Hashable, int]] = {}
    cut_short: frozenset[str] = frozenset()  # the names below which not everything was visited
    uncounted: tuple[str, ...] = ()  # the names that hold memory of unknown size
    # by key, of large blocks where that is known: a weak reference that dies with the block
    alive: Mapping[Hashable, weakref.ref[Any]] = {}
    # by key, of large blocks the names that share it with its owner
    shared: Mapping[Hashable, tuple[str, ...]] = {}


class Traversal:
    """The depth-first traversal from one root."""

    __slots__ = ("found", "graph", "label", "pending", "rank", "root")

    def __init__(self, root: Root, rank: tuple[int, int]) -> None:
        self.root, self.rank = root, rank  # `rank`: its place in the order in which blocks are attributed
        self.label = root.label or root.name  # what the names of traversals that branch off it begin with
        self.graph: Traversal | None = None  # that of the autograd graph that branches off it
        # What is still to be visited, the deepest last: values, the span they belong to, the object's id.
        self.pending: list[tuple[Iterator[Any], Span | None, int]] = []
        # In order: blocks (their number), objects that were visited before, traversals that branch off it.
        self.found: list[Entry] = []

    def push(self, values: Iterable[Any]) -> None:
        """Add values that are to be visited next."""
        self.pending.append((iter(values), None, 0))


class Span:
    """An object that was visited: what is reachable from it is a slice of its traversal's list."""

    __slots__ = ("end", "start", "traversal")

    def __init__(self, traversal: Traversal, start: int, end: int) -> None:
        self.traversal, self.start, self.end = traversal, start, end  # -1 while it is being visited


class Branch(NamedTuple):
    """An object whose memory is attributed to a name of its own: a local variable, or an autograd graph."""

    traversal: Traversal  # the traversal of that name
    ident: int  # the object's id
    origin: str  # the label of the traversal that it branches off


Entry = int | Span | Branch


class Attribution:
    """Attributes each block to the first name that reaches it, while `in_time` returns True."""

    def __init__(
        self, blocks: MemoryBlocks, visited: Mapping[int, Entry | None], in_time: Callable[[], bool]
    ) -> None:
        self._blocks, self._visited, self._in_time = blocks, visited, in_time
        self._within = blocks.same_memory()
        self._first: dict[int, OwnerKey | None] = dict.fromkeys(blocks.without_memory())
        self._sizes: dict[OwnerKey, dict[Hashable, int]] = {}
        self._shared: dict[OwnerKey, dict[str, None]] = {}
        self._sharers: dict[int, dict[str, None]] = {}

    def result(
        self, traversals: Iterable[Traversal], uncounted: Iterable[str], left_out: Iterable[str] = ()
    ) -> WalkResult:
        """Attribute every block that these traversals found.

        `uncounted` names hold memory of unknown size; for `left_out` there was no time.
        """
        traversals = sorted((one for one in traversals if one.found or one.pending), key=attrgetter("rank"))
        cut = frozenset(one.root.name for one in traversals if one.pending).union(left_out)
        in_time, branching = True, []
        for one in traversals:
            in_time = in_time and self._in_time()
            if in_time:
                reachable, branches = self._reachable(one)
                branching += [(one, branches)] if branches else []
            else:
                reachable = self._merged([entry for entry in one.found if type(entry) is int])
            self._attribute(one.root, reachable)
        for one, branches in branching:
            in_time = in_time and self._in_time()
            if in_time:
                self._share(one.label, self._behind(one, branches))
        owners = [
            Owner(key[0], sum(sizes.values()), key[1], key[2], _sharers(key[0], self._shared.get(key)))
            for key, sizes in self._sizes.items()
        ]
        shared = {
            self._blocks.keys[number]: _sharers(owner[0], names)
            for number, names in self._sharers.items()
            if (owner := self._first[number])
        }
        return WalkResult(
            tuple(sorted(owners, key=lambda owner: -owner.size_bytes)),
            in_time and not cut,
            self._sizes,
            cut,
            tuple(uncounted),
            self._blocks.alive,
            shared,
        )

    def _attribute(self, root: Root, reachable: list[int]) -> None:
        """Attribute the blocks that have no owner yet to this name, which shares the others."""
        first, blocks = self._first, self._blocks
        others: list[int] = []
        for number in reachable:
            if number in first:
                others.append(number)
            else:
                owner = first[number] = root.name, blocks.devices[number], root.kind
                self._sizes.setdefault(owner, {})[blocks.keys[number]] = blocks.sizes[number]
        self._share(root.name, others)

    def _share(self, name: str, numbers: list[int]) -> None:
        for number in set(numbers):
            owner = self._first.get(number)
            if owner is not None and owner[0] != name:
                self._shared.setdefault(owner, {})[name] = None
                if self._blocks.sizes[number] >= LARGE:
                    self._sharers.setdefault(number, {})[name] = None

    def _behind(self, traversal: Traversal, branches: list[Branch]) -> list[int]:
        """Return the blocks that a traversal reaches in branches of others, which have names of their own."""
        found: list[int] = []
        seen = set()
        pending = list(branches)
        while pending:
            branch = pending.pop()
            if branch.ident not in seen and branch.origin != traversal.label:
                seen.add(branch.ident)
                reachable, more = self._reachable(branch.traversal, self._visited.get(branch.ident))
                found += reachable
                pending += more
        return found

    def _reachable(self, traversal: Traversal, start_at: Any = _NONE) -> tuple[list[int], list[Branch]]:
        """Return what is reachable from all that a traversal found, or from one entry: blocks and branches.

        A block may be there more than once.
        """
        found: list[int] = []
        branches: list[Branch] = []
        done: dict[Traversal, bytearray] = {}  # by traversal, which entries of its list are done
        pending: list[Entry | None] = [Span(traversal, 0, -1) if start_at is _NONE else start_at]
        while pending:
            entry = pending.pop()
            if type(entry) is int:
                found.append(entry)
            elif type(entry) is Branch:
                branches.append(entry)
            elif type(entry) is Span:
                entries = entry.traversal.found
                seen = done.setdefault(entry.traversal, bytearray(len(entries)))
                end = len(entries) if entry.end < 0 else entry.end
                start = seen.find(0, entry.start, end)
                while start >= 0:
                    stop = seen.find(1, start, end)
                    stop = end if stop < 0 else stop
                    seen[start:stop] = bytes((1,)) * (stop - start)
                    piece = entries[start:stop]
                    found += [one for one in piece if type(one) is int]
                    pending += [one for one in piece if type(one) is not int]
                    start = seen.find(0, stop, end)
        return self._merged(found), branches

    def _merged(self, numbers: list[int]) -> list[int]:
        """Replace the number of a block within another by that one's."""
        return [self._within.get(number, number) for number in numbers] if self._within else numbers


def _sharers(owner: str, names: Mapping[str, None] | None) -> tuple[str, ...]:
    """Return the names that share with an owner, without the autograd graphs of names that are listed."""
    listed = {owner, *(names or ())}
    return tuple(name for name in names or () if not (name.endswith(GRAPH) and name[: -len(GRAPH)] in listed))
