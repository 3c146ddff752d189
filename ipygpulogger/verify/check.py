"""What a check finds, and programs of known sizes, which any memory may run."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..engine.scope import Scope

if TYPE_CHECKING:
    from ..records import Usage

    Step = tuple[str, Any]  # "keep", "moment" (bytes), "free", "open", "close" (a scope) or "call"
    Via = Callable[[Callable[[], Any]], Any]

Label = Literal["exact", "bounded", "at least", "about"]
Truth = float | tuple[float, float]  # exactly, or between these
NOT_BY_PROCESS = "the driver does not report what this process holds, as in containers and under WSL"


@dataclass(frozen=True)
class Figure:
    """One figure, and the truth, which is known by construction to within an interval."""

    where: str  # "RAM", "cuda:0", "child (fork)"
    case: str  # what came and went
    what: str  # "consumed", "needed", "used", "time"
    truth: tuple[float, float]
    lo: float
    hi: float | None  # None where it is "at least"
    label: Label  # "about": an estimate whose notes name what it leaves out, so its error is only shown
    unit: Literal["B", "s", ""] = "B"
    precision: float = 0  # how far its counter may be off, as the figure itself states

    @property
    def is_wrong(self) -> bool:
        """Return whether the truth is outside the bounds, or they are invalid (NaN, ``lo > hi``)."""
        (lowest, highest), hi = self.truth, self.hi
        is_bound = self.label == "at least" if hi is None else self.lo <= hi and lowest <= hi + self.precision
        return self.label != "about" and not (is_bound and self.lo - self.precision <= highest)


@dataclass(frozen=True)
class Unchecked:
    """What could not be checked, and why."""

    where: str
    case: str
    reason: str


def exact(where: str, case: str, what: str, truth: Truth, shown: float | None) -> Figure | Unchecked:
    """Return a figure that claims to be exact, beside the truth."""
    if shown is None:
        return Unchecked(where, f"{case}: {what}", "unknown here")
    return Figure(where, case, what, _span(truth), shown, shown, "exact")


def figures(where: str, case: str, usage: Usage, consumed: Truth, needed: Truth) -> Iterator[Found]:
    """Yield what a usage says was consumed and needed, beside the truth."""
    if not getattr(usage, "attributed", True):
        yield Unchecked(where, case, NOT_BY_PROCESS)
        return
    size, peak, precision = usage.consumed_bytes, usage.peak, getattr(usage, "precision_bytes", 0)
    yield Figure(where, case, "consumed", _span(consumed), size, size, "exact", precision=precision)
    bounds, label = (usage.needed_bytes, usage.needed_at_most_bytes), peak.quality
    said: Label = "at least" if label == "sampled" else label
    yield Figure(where, case, "needed", _span(needed), *bounds, said, precision=peak.precision_bytes)


def in_a_thread(step: Callable[[], Any]) -> Any:
    """Return what a step returns in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(step).result()


def _span(truth: Truth) -> tuple[float, float]:
    return truth if isinstance(truth, tuple) else (truth, truth)


Found = Figure | Unchecked


class Check(NamedTuple):
    """Something to run, which yields each figure as it is found; an error of it counts as a wrong figure."""

    name: str  # for the progress line: "RAM for a moment, in threads"
    run: Callable[[], Iterator[Found]]

    def found(self) -> Iterator[Found]:
        """Run it without collections and huge pages, which would move memory meanwhile."""
        was_enabled, was_disabled = gc.isenabled(), _huge_pages_off()
        try:
            gc.collect()
            gc.disable()
            _huge_pages_off(1)
            yield from self.run()
        finally:
            _huge_pages_off(was_disabled)
            (gc.enable if was_enabled else gc.disable)()


def _huge_pages_off(*value: int) -> int:
    """Return PR_GET_THP_DISABLE (42), or pass a value to PR_SET_THP_DISABLE (41)."""
    if sys.platform != "linux":
        return 0
    arguments = map(ctypes.c_ulong, (*(value or (0,)), 0, 0, 0))
    return int(ctypes.CDLL(None).prctl(41 if value else 42, *arguments))


class Memory:
    """A memory in which known amounts come and go."""

    id: str
    unit_bytes: int  # no check holds more than 16 of them, with what is cached
    slack_bytes: int = 0  # how much else may move meanwhile
    in_use: str = "used"  # the name of its figure of what is in use
    _used = "after_bytes"  # its field in a usage
    take: Callable[[int], Any]  # returns what holds so many bytes as long as it lives
    held_bytes: Callable[[int], int]  # how much is in use for so many bytes
    used_bytes: Callable[[], int | None]  # from the kernel or torch itself, not through our sources, if known
    usage: Callable[[Scope], Usage]

    def play(
        self,
        case: str,
        steps: Iterable[Step],
        via: Via = lambda step: step(),
        *,
        measured: bool = True,
        reset_peaks: bool = True,
    ) -> Iterator[Found]:
        """Run a program, and yield the figures of each of its scopes beside the truth."""
        kept: list[tuple[int, Any]] = []
        scopes: dict[str, tuple[Scope, int, list[int]]] = {}  # in use before, and after each step
        base_bytes, slack_bytes = self.used_bytes(), self.slack_bytes
        try:
            for verb, what in steps:
                if verb in ("keep", "moment"):
                    kept.append((self.held_bytes(what), via(partial(self.take, what))))
                now_bytes = sum(size_bytes for size_bytes, _ in kept)
                for _, _, levels in scopes.values():
                    levels.append(now_bytes)
                if verb == "call":
                    what()
                elif verb == "open" and measured and what not in scopes:
                    scopes[what] = via(Scope(reset_peaks=reset_peaks).open), now_bytes, [now_bytes]
                elif verb == "close" and what in scopes:
                    scope, before_bytes, levels = scopes.pop(what)
                    via(scope.close)
                    usage, name = self.usage(scope), f"{case}, {what}"
                    ends = now_bytes - before_bytes, max(levels) - before_bytes
                    spans = [(end - slack_bytes, end + slack_bytes) for end in ends]
                    yield from figures(self.id, name, usage, *spans)
                    if base_bytes is not None and what == "taken":
                        used = base_bytes + now_bytes - slack_bytes, base_bytes + now_bytes + slack_bytes
                        yield exact(self.id, name, self.in_use, used, getattr(usage, self._used))
                elif verb in ("free", "moment") and kept:
                    via(partial(kept.__delitem__, 0 if verb == "free" else -1))
        finally:
            for scope, _, _ in scopes.values():
                scope.close()

    def amounts(self, cases: Iterable[tuple[str, int, int]]) -> Iterator[Found]:
        """Yield the figures of amounts that stay for a while, and of others that come and go at once."""
        for case, kept, moment in cases:
            taken = ("open", "taken"), ("moment", moment), ("keep", kept), ("close", "taken")
            yield from self.play(case, (*taken, ("open", "given back"), ("free", 0), ("close", "given back")))

    def nested(self, between: Callable[[], object] = lambda: None) -> Iterable[Step]:
        """Return the steps of scopes that nest and overlap; six units are in use at once."""
        unit = self.unit_bytes
        return (
            *(("keep", unit), ("open", "outer"), ("keep", unit), ("open", "inner"), ("moment", 2 * unit)),
            *(("call", between), ("open", "overlapping"), ("keep", unit), ("close", "inner")),
            *(("moment", 3 * unit + 1), ("free", 0), ("call", between), ("close", "overlapping")),
            *(("free", 0), ("call", between), ("close", "outer")),
        )
