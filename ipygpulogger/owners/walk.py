"""The walk: from each name, depth first, to every object that is reachable from it, and the memory behind.

Local variables that a traceback keeps, and the autograd graph that a loss keeps, have names of their own:
"err: step.act", "loss (autograd graph)". The walk runs none of the user's code.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator
from operator import attrgetter, itemgetter
from types import TracebackType
from typing import Any

from ..runtime import clock
from ..runtime.collector import undisturbed
from ..runtime.shell import is_shell_code
from .attribution import GRAPH, Attribution, Entry, Kind, Root, Span, Traversal, WalkResult
from .memory_blocks import ArrayReaders, MemoryBlocks, read, readers_of
from .referents import (
    PLAIN_CONTAINERS,
    TICK,
    function_name,
    in_pieces,
    is_function,
    locals_of,
    referents_of,
    worth_visiting,
)

BUDGET_S = 1.0  # of a walk after a cell that failed, or that the user asked for
_TURN = 0.4  # of the time left, for one name; before the first turn each name is begun
_LOOK_AT_CLOCK = 128  # objects
_NAMES_TO_CLOCK = 32
_LATE_S = 0.1  # more, for attributing; at most half the budget
_LAST = 1 << 30
_SURE = 32  # urgent names, which are begun in any case
_LISTED_FROM = 128  # items: the table of a smaller container does not count


def walk(
    roots: Iterable[Root],
    readers: ArrayReaders,
    *,
    closed: Iterable[Any] = (),
    budget_s: float = BUDGET_S,
    urgent: Container[str] = (),
) -> WalkResult:
    """Attribute the memory that is reachable from each root; what several reach belongs to the first.

    What tracebacks and graphs keep comes after all variables, and so for every other kind. `closed` objects
    are not visited. The `urgent` names are visited first, for most of the time, and precede no other.
    """
    with undisturbed():  # a collection would free what is to be counted, and ids would be used again
        return _Walk(readers, closed, budget_s).run(list(roots), urgent)


def _close(stack: list[tuple[Iterator[Any], Span | None, int]], found: list[Entry], visited: Any) -> None:
    """End the span of an object of which everything below was visited."""
    _, span, ident = stack.pop()
    if span is not None:
        span.end = len(found)
        if span.end == span.start:
            visited[ident] = None


_NEW: Any = object()


class _Walk:
    def __init__(self, readers: ArrayReaders, closed: Iterable[Any], budget_s: float) -> None:
        self._readers, self._deadline_s = readers, clock.thread_s() + budget_s
        self._sure = _SURE if budget_s > 0 else 0
        self._more_s = min(_LATE_S, budget_s / 2)
        # What is reachable from each object that was visited, by id; None for nothing. Everything here is
        # kept alive by others or by `_kept`, so that no id is used twice.
        self._visited: dict[int, Entry | None] = {id(value): None for value in closed}
        self._kinds: dict[int, tuple[type, ArrayReaders, Callable[[Any], Iterable[Any]] | None]] = {}
        self._kept: list[Any] = []
        self._blocks = MemoryBlocks()
        self._ranks: dict[Kind, int] = {}
        self._branch_order = 0
        self._traversals: list[Traversal] = []
        self._left_out: set[str] = set()  # names that were not visited at all
        self._uncounted: dict[str, None] = {}

    def run(self, roots: list[Root], urgent: Container[str]) -> WalkResult:
        kinds = dict.fromkeys(map(itemgetter(1), roots))
        self._ranks = {kind: 2 * place for place, kind in enumerate(kinds)}
        self._branch_order = len(roots)
        try:
            self._walk(roots, urgent)
            found = Attribution(self._blocks, lambda: clock.thread_s() <= late)
            # From here on: finding out what is resident has a budget of its own.
            late = max(self._deadline_s, clock.thread_s()) + self._more_s
            return found.result(self._traversals, self._uncounted, self._left_out)
        finally:  # leave no reference cycle of ours to the garbage collector
            self._visited.clear()
            for traversal in self._traversals:
                traversal.found.clear()
                traversal.pending.clear()

    def _walk(self, roots: list[Root], urgent: Container[str]) -> None:
        """Visit what is reachable: each name is begun first, so that one does not take all the time."""
        orders = range(len(roots))
        first = {i for i in orders if roots[i][0] in urgent or roots[i][3] in urgent} if urgent else set()
        order_of_visits = (*sorted(first), *(i for i in orders if i not in first))
        for number, order in enumerate(order_of_visits):
            is_sure = order in first and number < self._sure
            if not is_sure and not number % _NAMES_TO_CLOCK and not self._in_time():
                self._left_out.update(roots[left].name for left in order_of_visits[number:])
                return
            self._start(roots[order], order, _TURN if order in first else 0.0, sure=is_sure)
        while (pending := [one for one in self._traversals if one.pending]) and self._in_time():
            for traversal in sorted(pending, key=attrgetter("rank")):
                self._go(traversal, _TURN)

    def _begin(self, root: Root, rank: int, order: int) -> Traversal:
        self._traversals.append(Traversal(root, (rank, order)))
        return self._traversals[-1]

    def _start(self, root: Root, order: int, share: float, *, sure: bool) -> None:
        """Visit a value and some of what it refers to; one that refers to nothing needs no traversal."""
        value, rank = root.value, self._ranks[root.kind]
        if root.label:  # an exception's own attributes come after the variables of its frames
            rank, order = rank | 1, _LAST
        kind = type(value)
        how = self._kinds.get(id(kind)) or self._learn(kind)
        if id(value) not in self._visited and not (how[2] is not None and how[2](value)):
            small = id(kind) in PLAIN_CONTAINERS and len(value) < _LISTED_FROM
            if small or not how[1] or read(value, how[1]) is None:
                self._visited[id(value)] = None
                return
        traversal = self._begin(root, rank, order)
        traversal.push((value,))
        self._go(traversal, share, sure=sure)

    def _in_time(self) -> bool:
        return clock.thread_s() <= self._deadline_s

    def _go(self, traversal: Traversal, share: float, *, sure: bool = False) -> None:  # noqa: C901, PLR0912 - a hot loop: calls would cost
        """Continue a traversal for this share of the time left."""
        now_s = clock.thread_s()
        if now_s > self._deadline_s and not sure:
            return
        turn_ends_s = now_s + share * (self._deadline_s - now_s)
        stack, found, visited, kinds = traversal.pending, traversal.found, self._visited, self._kinds
        step = 0
        while stack:
            try:
                for value in stack[-1][0]:
                    step += 1
                    if value is TICK or not step % _LOOK_AT_CLOCK:
                        if clock.thread_s() > turn_ends_s:
                            if value is not TICK:
                                traversal.push((value,))
                            return
                        if value is TICK:
                            continue
                    kind = type(value)
                    how = kinds.get(id(kind)) or self._learn(kind)
                    below = visited.get(id(value), _NEW)
                    if below is not _NEW:
                        if below is not None:
                            found.append(below)
                        continue
                    start = len(found)
                    children: Any = how[2](value) if how[2] is not None else ()
                    if how[1] and (id(kind) not in PLAIN_CONTAINERS or len(value) >= _LISTED_FROM):
                        children = self._count(traversal, value, how[1], children)
                    if kind is TracebackType:
                        self._branch_off_locals(traversal, value)
                        children = worth_visiting((value.tb_next,))
                    if children:
                        span = visited[id(value)] = Span(traversal, start, -1)
                        stack.append((iter(children), span, id(value)))
                        break
                    # Nothing, the one entry, or a span of several.
                    many = len(found) > start + 1
                    own = found[start] if len(found) > start else None
                    visited[id(value)] = Span(traversal, start, len(found)) if many else own
                else:
                    _close(stack, found, visited)
            except RuntimeError:  # another thread changed the container
                _close(stack, found, visited)

    def _learn(self, kind: type) -> Any:
        """Look up, once for each class, the readers and the function for referents of its values."""
        how = self._kinds[id(kind)] = kind, readers_of(kind, self._readers), referents_of(kind)
        return how

    def _count(
        self, traversal: Traversal, value: Any, readers: ArrayReaders, children: Iterable[Any]
    ) -> Iterable[Any]:
        """Note the memory behind a value, if it has any; return what is to be visited below it."""
        holding = read(value, readers)
        if holding is None:
            return children
        if holding.size_bytes:
            traversal.found.append(self._blocks.number(holding))
        if not holding.counted:
            self._uncounted[traversal.root.name] = None
        parts, graph = holding.parts, holding.graph
        if not parts and graph is None:
            return children
        self._kept.append((holding, value))
        listed = isinstance(parts, (list, tuple))
        parts = worth_visiting(parts) if listed else in_pieces(iter(parts))
        # A graph within a graph has no name of its own.
        if graph is None or traversal.root.name.endswith(GRAPH):
            return itertools.chain(parts, children, () if graph is None else (graph,))
        if traversal.graph is None:  # which has a name of its own
            traversal.graph = self._branch_off(traversal, traversal.label + GRAPH)
        traversal.graph.push((graph,))
        return [child for some in (parts, children) for child in some if child is not graph]

    def _branch_off_locals(self, traversal: Traversal, entry: TracebackType) -> None:
        """Attribute each local variable that a traceback entry keeps to a name of its own."""
        frame = entry.tb_frame
        if id(frame) in self._visited or is_shell_code(frame):
            return
        if is_function(frame) or id(frame.f_locals) not in self._visited:
            for name, value in locals_of(frame):
                if worth_visiting((value,)):
                    where = f"{traversal.label}: {function_name(frame)}.{name}"
                    self._branch_off(traversal, where).push((value,))
        self._visited[id(frame)] = None

    def _branch_off(self, traversal: Traversal, name: str) -> Traversal:
        self._branch_order += 1
        return self._begin(Root(name, traversal.root.kind, None), traversal.rank[0] | 1, self._branch_order)
