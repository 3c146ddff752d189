"""The walk: the memory that each name reaches, counted once, and which names share it.

It goes from each name into all that it holds, one after the other, the deepest first, and notes in order
what it met: a block of memory, or an object that it had seen before. What lies below an object is then a
piece of that list, so that a second name that reaches the object need not be walked again.

What an exception in a variable keeps of its frames, and the autograd graph that a loss keeps, get names of
their own: "err: step.act", "loss (autograd graph)".

Not counted: Python's own small objects one by one (numbers, strings and bytes below 16 KB, arrays and
containers below 1 KB), and what only C code can see. The walk runs no code of the user's.
"""

from __future__ import annotations

import contextlib
import itertools
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..runtime import clock
from ..runtime.collector import undisturbed
from .blocks import GRAPH, Blocks, Claims, Found, Kind, Link, Met, Node, Path, Root
from .frames import CODE_WITH_FAST_LOCALS, function_name, is_shells, locals_of
from .referents import PLAIN_CONTAINERS, TICK, in_pieces, may_be_asked, referents_of, worth_a_look

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..sources import Holding

    Holdings = Sequence[Callable[[Any], Holding | None]]


BUDGET_S = 1.0  # once, after a cell that failed, or when asked
_TURN = 0.4  # of the time left is one name's, until the next has its turn; the first turn is a glance
_LOOK_AT_CLOCK = 128  # objects
_LATE_S = 0.1  # for adding up
_LAST = 1 << 30
_ASKED_FROM = 128  # items: a smaller container's own table is nothing


def walk(
    roots: Iterable[Root], holdings: Holdings, *, closed: Iterable[Any] = (), budget_s: float = BUDGET_S
) -> Found:
    """Add up the memory that each root reaches; what several reach is the first root's.

    Args:
        roots: In the order of their claims; what a variable keeps of tracebacks and graphs comes after all
            variables, and so with each kind.
        holdings: What `Framework.holding` says of a value, for each framework.
        closed: Objects not to go into.
        budget_s: After so long it stops.
    """
    with undisturbed():  # collecting lets ids be used again, and would free what is to be told of
        return _Walk(holdings, closed, budget_s).run(roots)


def holding_of(value: Any, holdings: Holdings) -> Holding | None:
    """What the frameworks say of a value; None for what is no array of theirs."""
    holding = asked(value, who_knows(type(value), holdings))
    return holding if holding is not None and holding.size_bytes else None


def asked(value: Any, holdings: Holdings) -> Holding | None:
    """What the first that knows a value says of it."""
    for holding in holdings:
        try:
            found = holding(value)
        except Exception:  # noqa: S112 - a broken array, of which nothing can be said
            continue
        if found is not None:
            return found
    return None


def who_knows(kind: type, holdings: Holdings) -> Holdings:
    """Those who could say something of a value of this class: a framework tells it by the class alone."""
    asked = []
    for holding in holdings:
        may_hold = getattr(getattr(holding, "__self__", None), "may_hold", None)
        with contextlib.suppress(Exception):  # a framework in pieces
            if may_be_asked(kind) if may_hold is None else may_hold(kind):
                asked.append(holding)
    return asked


def _close(stack: list[tuple[Iterator[Any], Node | None, int]], met: list[Met], seen: Any) -> None:
    """All below an object was seen."""
    _, node, ident = stack.pop()
    if node is not None:
        node.end = len(met)
        if node.end == node.start:
            seen[ident] = None


def _piece(path: Path, start: int) -> Met | None:
    """What the path met from there on."""
    count = len(path.met) - start
    return Node(path, start, len(path.met)) if count > 1 else path.met[start] if count else None


_NEW: Any = object()


class _Walk:
    def __init__(self, holdings: Holdings, closed: Iterable[Any], budget_s: float) -> None:
        self._holdings = holdings
        self._deadline_s = clock.monotonic_s() + budget_s
        # By id. Only what others keep alive comes in here, or what `_kept` does: no id is used twice.
        # None: nothing is below it.
        self._seen: dict[int, Met | None] = {id(value): None for value in closed}
        self._kinds: dict[int, tuple[type, Holdings, Callable[[Any], Iterable[Any]] | None]] = {}
        self._kept: list[Any] = []
        self._blocks = Blocks()
        self._paths: list[Path] = []
        self._uncounted: dict[str, None] = {}

    def run(self, roots: Iterable[Root]) -> Found:
        groups: dict[Kind, int] = {}
        for root in roots:
            rank = groups.setdefault(root.kind, 2 * len(groups))
            # What an exception carries comes after what its frames hold.
            path = Path(root, (rank | 1, _LAST) if root.label else (rank, len(self._paths)))
            path.push(worth_a_look((root.value,)))
            self._paths.append(path)
        try:
            return self._found()
        finally:  # no cycle of ours waits for the garbage collector
            self._seen.clear()
            for path in self._paths:
                path.met.clear()
                path.open.clear()

    def _found(self) -> Found:
        share = 0.0  # of the first turn: a glance at each, so that no huge list starves the others
        while (waiting := [path for path in self._paths if path.open]) and self._in_time():
            for path in sorted(waiting, key=attrgetter("rank")):
                self._go(path, share)
            share = _TURN
        late_s = self._deadline_s + _LATE_S
        return Claims(self._blocks, self._seen, lambda: clock.monotonic_s() <= late_s).found(
            self._paths, self._uncounted
        )

    def _in_time(self) -> bool:
        return clock.monotonic_s() <= self._deadline_s

    # -- the walk ----------------------------------------------------------------------------------

    def _go(self, path: Path, share: float) -> None:  # noqa: C901, PLR0912 - a loop over every object: calls would cost
        """One turn, of this share of the time left."""
        now_s = clock.monotonic_s()
        if now_s > self._deadline_s:
            return
        turn_ends_s = now_s + share * (self._deadline_s - now_s)
        stack, met, seen, kinds = path.open, path.met, self._seen, self._kinds
        step = 0
        while stack:
            values = stack[-1][0]
            try:
                for value in values:
                    step += 1
                    if value is TICK or not step % _LOOK_AT_CLOCK:
                        if clock.monotonic_s() > turn_ends_s:
                            if value is not TICK:
                                path.push((value,))
                            return
                        if value is TICK:
                            continue
                    kind = type(value)
                    how = kinds.get(id(kind)) or self._learn(kind)
                    hit = seen.get(id(value), _NEW)
                    if hit is not _NEW:
                        if hit is not None:
                            met.append(hit)
                        continue
                    start = len(met)
                    children: Any = how[2](value) if how[2] is not None else ()
                    if how[1] and (id(kind) not in PLAIN_CONTAINERS or len(value) >= _ASKED_FROM):
                        children = self._claim(path, value, how[1], children)
                    if kind is TracebackType:
                        self._name_locals(path, value)
                        children = worth_a_look((value.tb_next,))
                    if children:
                        below = seen[id(value)] = Node(path, start, -1)
                        stack.append((iter(children), below, id(value)))
                        break
                    seen[id(value)] = _piece(path, start)
                else:
                    _close(stack, met, seen)
            except RuntimeError:  # another thread changed the container
                _close(stack, met, seen)

    def _learn(self, kind: type) -> Any:
        holdings = who_knows(kind, self._holdings)
        how = self._kinds[id(kind)] = kind, holdings, referents_of(kind)
        return how

    def _claim(self, path: Path, value: Any, holdings: Holdings, children: Iterable[Any]) -> Iterable[Any]:
        """Note the memory behind a value, if it has any; what is to be seen below it."""
        holding = asked(value, holdings)
        if holding is None:
            return children
        if holding.size_bytes:
            path.met.append(self._blocks.number(holding))
        if not holding.counted:
            self._uncounted[path.root.name] = None
        parts, graph = holding.parts, holding.graph
        if not parts and graph is None:
            return children
        self._kept.append((holding, value))
        listed = isinstance(parts, (list, tuple))
        parts = worth_a_look(parts) if listed else in_pieces(iter(parts))
        if graph is None:
            return itertools.chain(parts, children)
        if path.root.name.endswith(GRAPH):  # within a graph all is the same
            return itertools.chain(parts, children, (graph,))
        self._name_graph(path, graph)
        return [child for some in (parts, children) for child in some if child is not graph]

    def _name_graph(self, path: Path, graph: Any) -> None:
        """The graph has a name of its own."""
        if path.graph is None:
            path.graph = self._branch(path, path.called + GRAPH)
        path.graph.push((graph,))
        path.met.append(Link(path.graph, id(graph), path.called))

    def _name_locals(self, path: Path, link: TracebackType) -> None:
        """Each local variable that a traceback keeps has a name of its own."""
        frame = link.tb_frame
        if id(frame) in self._seen:
            hit = self._seen[id(frame)]
            if hit is not None:
                path.met.append(hit)
            return
        start = len(path.met)
        is_function = frame.f_code.co_flags & CODE_WITH_FAST_LOCALS
        if not is_shells(frame) and (is_function or id(frame.f_locals) not in self._seen):
            for name, value in locals_of(frame):
                if worth_a_look((value,)):
                    local = self._branch(path, f"{path.called}: {function_name(frame)}.{name}")
                    local.push((value,))
                    path.met.append(Link(local, id(value), path.called))
        self._seen[id(frame)] = _piece(path, start)

    def _branch(self, path: Path, name: str) -> Path:
        branch = Path(Root(name, path.root.kind, None), (path.rank[0] | 1, len(self._paths)))
        self._paths.append(branch)
        return branch
