"""Who has which block of memory: adding up what the paths of a walk met.

A path is the walk from one name. It notes in order what it met: a block, or an object that was seen before,
on this path or another. What lies below an object is a piece of its path's list, so whoever meets it later
reaches all of that without walking it again. A block is the first name's that reaches it.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..records import Owner
from .host_arrays import ASKED_FROM, DEVICE, of_files, resident_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from ..sources import Holding

Kind = Literal["variable", "output", "traceback", "other"]
Claimant = tuple[str, str, Kind]  # a name, a device, and where the name stands

GRAPH = " (autograd graph)"
_LARGE = 1 << 20  # bytes: of smaller blocks it is not kept who shares them and whether they are alive
_NOBODY: Any = object()


class Root(NamedTuple):
    """A name, and what it refers to.

    Attributes:
        name: As the user would write it.
        kind: Where it stands.
        value: What it refers to.
        label: What the frames of an exception below it are called after; by default the name.
    """

    name: str
    kind: Kind
    value: Any
    label: str = ""


class Found(NamedTuple):
    """What a walk found.

    Attributes:
        owners: By name and device, the largest first.
        complete: Everything was seen; otherwise the time was up.
        blocks: Of each owner (name, device, kind) the memory that is counted as its: a block's key (the
            same for whatever shares it, and free to be used again once it is gone) and its bytes.
        cut_short: The names that were not seen whole.
        uncounted: The names that hold memory whose size nobody tells.
        alive: By key, of large blocks where that is known: a weak reference that dies with the block.
        shared: By key, of large blocks the names that share it with its owner.
    """

    owners: tuple[Owner, ...]
    complete: bool
    blocks: Mapping[Claimant, Mapping[Hashable, int]] = {}
    cut_short: frozenset[str] = frozenset()
    uncounted: tuple[str, ...] = ()
    alive: Mapping[Hashable, weakref.ref[Any]] = {}
    shared: Mapping[Hashable, tuple[str, ...]] = {}


class Path:
    """The walk from one name.

    Attributes:
        rank: Its place in the order of claims.
        called: What the paths that begin below it are called after.
        open: What is still to be seen, the deepest last: an iterator, and the node that it belongs to.
        met: In order, blocks (their number), objects seen before (their `Node`) and paths (`Link`).
    """

    __slots__ = ("called", "graph", "met", "open", "rank", "root")

    def __init__(self, root: Root, rank: tuple[int, int], called: str = "") -> None:
        self.root, self.rank, self.called = root, rank, called or root.label or root.name
        self.graph: Path | None = None
        self.open: list[tuple[Iterator[Any], Node | None, int]] = []
        self.met: list[Met] = []

    def push(self, values: Iterable[Any]) -> None:
        """More to be seen."""
        self.open.append((iter(values), None, 0))

    def own(self) -> list[int]:
        """The blocks that it met itself."""
        return [met for met in self.met if type(met) is int]


class Node:
    """An object that was walked: what lies below it is a piece of its path's list, from start to end."""

    __slots__ = ("end", "path", "start")

    def __init__(self, path: Path, start: int, end: int) -> None:
        self.path, self.start, self.end = path, start, end  # no end while it is open: -1


class Link(NamedTuple):
    """What another path begins with, and what the path that led there is called."""

    path: Path
    ident: int
    origin: str


Met = int | Node | Link


class Claims:
    """The blocks of each name.

    Args:
        blocks: All that were met.
        seen: Of each object, by id, what lies below it.
        in_time: Whether there is time to go on.
    """

    def __init__(self, blocks: Blocks, seen: Mapping[int, Met | None], in_time: Callable[[], bool]) -> None:
        self._blocks, self._seen, self._in_time = blocks, seen, in_time
        self._same = blocks.same_memory()
        self._first: dict[int, Claimant | None] = dict.fromkeys(blocks.no_memory())
        self._sizes: dict[Claimant, dict[Hashable, int]] = {}
        self._shared: dict[Claimant, dict[str, None]] = {}
        self._sharers: dict[int, dict[str, None]] = {}

    def found(self, paths: Iterable[Path], uncounted: Iterable[str]) -> Found:
        """Add up what these paths met."""
        paths = sorted(paths, key=attrgetter("rank"))
        cut = frozenset(path.root.name for path in paths if path.open)
        in_time, linked = True, []
        for path in paths:
            in_time = in_time and self._in_time()
            reached, links = self._reached(path) if in_time else (self._merged(path.own()), [])
            self._claim(path, reached)
            linked += [(path, links)] if links else []
        for path, links in linked:
            in_time = in_time and self._in_time()
            if in_time:
                self._share(path.called, self._behind(path, links))
        owners = [
            Owner(
                name, sum(sizes.values()), device, kind, _told(name, self._shared.get((name, device, kind)))
            )
            for (name, device, kind), sizes in self._sizes.items()
        ]
        owners.sort(key=lambda owner: -owner.size_bytes)
        complete = in_time and not cut
        shared = {
            self._blocks.keys[number]: _told(owner[0], names)
            for number, names in self._sharers.items()
            if (owner := self._first[number])
        }
        return Found(tuple(owners), complete, self._sizes, cut, tuple(uncounted), self._blocks.alive, shared)

    def _claim(self, path: Path, reached: list[int]) -> None:
        """What nobody has is this path's; the rest it shares."""
        first, keys, sizes = self._first, self._blocks.keys, self._blocks.sizes
        mine: dict[str, Claimant] = {}
        others: list[int] = []
        for number in reached:
            owner = first.get(number, _NOBODY)
            if owner is _NOBODY:
                device = self._blocks.devices[number]
                owner = mine.get(device)
                if owner is None:
                    owner = mine[device] = path.root.name, device, path.root.kind
                    self._sizes.setdefault(owner, {})
                first[number] = owner
                self._sizes[owner][keys[number]] = sizes[number]
            else:
                others.append(number)
        self._share(path.root.name, others)

    def _share(self, name: str, numbers: list[int]) -> None:
        for number in set(numbers):
            owner = self._first.get(number)
            if owner is not None and owner[0] != name:
                self._shared.setdefault(owner, {})[name] = None
                if self._blocks.sizes[number] >= _LARGE:
                    self._sharers.setdefault(number, {})[name] = None

    def _behind(self, path: Path, links: list[Link]) -> list[int]:
        """The blocks in the graphs and frames that a path reaches, but that bear another's name."""
        found: list[int] = []
        seen = set()
        links = list(links)
        while links:
            link = links.pop()
            if link.ident not in seen and link.origin != path.called:
                seen.add(link.ident)
                reached, more = self._reached(link.path, self._seen.get(link.ident))
                found += reached
                links += more
        return found

    def _reached(self, path: Path, begin: Any = _NOBODY) -> tuple[list[int], list[Link]]:
        """The blocks that a path reaches, in paths that were there first as well, some more than once.

        Args:
            path: The path.
            begin: What of it; by default the whole.
        """
        found: list[int] = []
        links: list[Link] = []
        done: dict[Path, bytearray] = {}  # of each path's list, what was looked at
        pending: list[Met | None] = [Node(path, 0, len(path.met)) if begin is _NOBODY else begin]
        while pending:
            met = pending.pop()
            if type(met) is int:
                found.append(met)
            elif type(met) is Link:
                links.append(met)
            elif type(met) is Node:
                of = met.path.met
                seen = done.setdefault(met.path, bytearray(len(of)))
                end = len(of) if met.end < 0 else met.end
                start = seen.find(0, met.start, end)
                while start >= 0:
                    stop = seen.find(1, start, end)
                    stop = end if stop < 0 else stop
                    seen[start:stop] = bytes((1,)) * (stop - start)
                    piece = of[start:stop]
                    found += [one for one in piece if type(one) is int]
                    pending += [one for one in piece if type(one) is not int]
                    start = seen.find(0, stop, end)
        return self._merged(found), links

    def _merged(self, numbers: list[int]) -> list[int]:
        """Of a block within another, that one's number."""
        return [self._same.get(number, number) for number in numbers] if self._same else numbers


def _told(owner: str, names: Mapping[str, None] | None) -> tuple[str, ...]:
    """Who shares; a name's graph is not told beside the name itself."""
    told = {owner, *(names or ())}
    return tuple(name for name in names or () if not (name.endswith(GRAPH) and name[: -len(GRAPH)] in told))


class Blocks:
    """The blocks of memory that were met, each with a number."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._mapped: list[int] = []
        self._borrowed: set[int] = set()
        self.keys: list[Hashable] = []
        self.devices: list[str] = []
        self.sizes: list[int] = []
        self.alive: dict[Hashable, weakref.ref[Any]] = {}

    def number(self, holding: Holding) -> int:
        """Its number, a new one where it was not met before."""
        key, size_bytes, device = holding[:3]
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.keys)
            self.keys.append(key)
            self.devices.append(device)
            self.sizes.append(size_bytes)
            if holding.owner is not None and size_bytes >= _LARGE:
                self.alive[key] = weakref.ref(holding.owner)
            if holding.mapped:
                self._mapped.append(number)
            if holding.borrowed:
                self._borrowed.add(number)
        elif number in self._borrowed and not holding.borrowed:  # now it is known how large it is
            self._borrowed.remove(number)
            self.sizes[number] = size_bytes
        elif size_bytes > self.sizes[number] and (number in self._borrowed or not holding.borrowed):
            self.sizes[number] = size_bytes  # what begins where it does was met first
        return number

    def same_memory(self) -> dict[int, int]:
        """Which blocks lie within others, as an array of numpy's in a tensor's; those grow to hold them.

        The key of a block that has an address is its device and that. A borrowed block is the one that it
        begins in, which does not grow by it. Where there is none, it counts as what is left of it beside the
        others; those borrowed blocks that overlap are one.
        """
        found: dict[int, int] = {}
        for device in set(self.devices):
            placed = [
                (key[1], number)
                for number, key in enumerate(self.keys)
                if type(key) is tuple and key[0] == device and type(key[1]) is int
            ]
            placed.sort()
            own = self._joined([one for one in placed if one[1] not in self._borrowed], found)
            starts = [start for start, _, _ in own]
            alone = []
            for address, number in placed:
                if number in self._borrowed:
                    at = bisect_right(starts, address) - 1
                    if at >= 0 and address < own[at][1]:
                        found[number] = own[at][2]
                    else:
                        alone.append((address, number))
            left = {
                number: list(_between(start, end, own)) for start, end, number in self._joined(alone, found)
            }
            for number, ranges in left.items():
                self.sizes[number] = sum(stop - begin for begin, stop in ranges)
            if device == DEVICE:
                asked = [number for number in left if self.sizes[number] >= ASKED_FROM]
                sizes = resident_bytes([left[number] for number in asked])
                for number, size_bytes in zip(asked, sizes, strict=True):
                    self.sizes[number] = size_bytes
        return found

    def _joined(self, placed: list[tuple[int, int]], found: dict[int, int]) -> list[tuple[int, int, int]]:
        """(start, end, number) of blocks in the order of their addresses, those that overlap as the first."""
        joined: list[tuple[int, int, int]] = []
        for address, number in placed:
            end = address + self.sizes[number]
            if joined and address < joined[-1][1]:
                start, last_end, first = joined[-1]
                found[number] = first
                joined[-1] = start, max(end, last_end), first
                self.sizes[first] = joined[-1][1] - start
            else:
                joined.append((address, end, number))
        return joined

    def no_memory(self) -> list[int]:
        """Those that only show a file, or nothing that is resident."""
        large = [number for number in self._mapped if self.sizes[number] >= ASKED_FROM]
        asked = {self.keys[number]: number for number in large if number not in self._borrowed}
        found = of_files(key[1] for key in asked if type(key) is tuple and key[0] == DEVICE)
        nothing = [number for number in self._borrowed if not self.sizes[number]]
        return nothing + [asked[DEVICE, address] for address in found]


def _between(start: int, end: int, blocks: list[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
    """What of a range lies outside these blocks, which are in the order of their addresses."""
    for block_start, block_end, _ in blocks[bisect_right(blocks, (start,)) :]:
        if block_start >= end:
            break
        if block_start > start:
            yield start, block_start
        start = block_end
    if start < end:
        yield start, end
