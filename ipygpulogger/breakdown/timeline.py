"""The memory of a device over a measurement, by kind, at as many moments as a drawing can show."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ..allocator.places import frames_of
from ..records.explained import Kind, KindTimeline

if TYPE_CHECKING:
    from ..allocator.replay import Block, Replay
    from .kinds import Kinds

Phase = tuple[str, float, float]  # a name, from, to
Point = tuple[float, tuple[int, ...]]
Life = tuple[int, int, int, Any]  # of a block: its size, the events that began and ended its life, itself

_STACKED: tuple[Kind, ...] = (  # from the bottom: what lasts, what comes and goes
    *("before", "parameters", "optimizer state", "variables", "gradients", "activations", "temporaries"),
)
_SPANS = 80  # of equal length: of each, two moments have their kinds looked up
_FIGURES = 450  # of a timeline, at most: they are 6 KB of JSON
_PHASES = 60  # that a drawing can show


def of_replay(device: str, replay: Replay, kinds: Kinds, began_s: float, ended_s: float) -> KindTimeline:
    """Return the timeline of a device in microseconds since the epoch; its beginning and end in seconds.

    The blocks that were alive at the peak have their kinds already. Those of others are looked up here.
    """
    first, last = replay.ends
    times = [event["time_us"] for event in replay.events[first + 1 : last + 1]]
    times.insert(0, times[0] if replay.missing and times else began_s * 1e6)  # lost events were before these
    times = list(accumulate(times, max))  # the clock may have been set
    stacks: dict[tuple[int, ...], Any] = {}
    made: list[float] = []  # when activations were allocated

    def kind_of(block: Block) -> Kind:
        if block.kind is None:
            key = tuple(map(id, block.frames))  # torch has one object for equal frames
            if (stack := stacks.get(key)) is None:
                stack = stacks[key] = frames_of(block.frames)
            block.kind = kinds.label_of(block, stack, block.count).kind
        kind: Kind = block.kind
        if kind == "activations" and block.began > first:
            made.append(float(times[block.began - first]))
        return kind

    lives = ((one.size_bytes, one.began, one.ended, one) for one in replay.blocks)
    found, points = by_kind(times, replay.totals(), lives, kind_of, first)
    points = (*points, (max(ended_s * 1e6, times[-1]), points[-1][1]))
    spans = [(name, begin_s * 1e6, end_s * 1e6) for name, begin_s, end_s in kinds.spans]
    return KindTimeline(device, found, points, phases(spans, made, times[0], ended_s * 1e6))


def by_kind(
    times: Sequence[float],
    totals: Sequence[int],
    lives: Iterable[Life],
    kind_of: Callable[[Any], Kind],
    first: int,
) -> tuple[tuple[Kind, ...], tuple[Point, ...]]:
    """Return a timeline's kinds and points, from its times and totals after each event from `first` on."""
    at = moments(times, totals)
    kinds, sums = sums_at([first + i for i in at], lives, kind_of)
    # No number of an event's is kept: it would keep a part of the heap from being given back.
    return kinds, tuple((float(times[at[k]]), sums[k]) for k in fewer([times[i] for i in at], sums))


def moments(times: Sequence[float], totals: Sequence[int], spans: int = _SPANS) -> list[int]:
    """Return the indices of the first and the last, and of each span those of the highest and the last.

    What is left out is never higher than both of those that stay around it. The same goes for `fewer`.
    """
    width = (times[-1] - times[0]) / spans
    ends = [bisect_left(times, times[0] + i * width) for i in range(1, spans)] if width else []
    found, begin = {0}, 0
    for end in (*ends, len(times)):
        if begin < end:
            found |= {max(range(begin, end), key=totals.__getitem__), end - 1}
            begin = end
    return sorted(found)


def sums_at(
    at: Sequence[int], lives: Iterable[Life], kind_of: Callable[[Any], Kind]
) -> tuple[tuple[Kind, ...], list[tuple[int, ...]]]:
    """Return the kinds of what was alive after any of some events, and for each event their sums.

    The lives are in the order in which they began.
    """
    changes: dict[Kind, list[int]] = {}
    begin, later = 0, [*at, sys.maxsize]
    for size_bytes, began, ended, one in lives:
        while later[begin] < began:
            begin += 1
        if ended > later[begin]:  # else it cannot be seen
            of_kind = changes.setdefault(kind_of(one), [0] * len(later))
            of_kind[begin] += size_bytes
            of_kind[bisect_left(later, ended)] -= size_bytes
    kinds = tuple(kind for kind in _STACKED if kind in changes)
    return kinds, list(zip(*(list(accumulate(changes[kind]))[:-1] for kind in kinds), strict=True))


def fewer(times: Sequence[float], sums: Sequence[tuple[int, ...]], figures: int = _FIGURES) -> list[int]:
    """Return the indices of the points that a timeline has room for; the highest stays.

    One by one the point goes without which the area drawn until the next one is the least wrong.
    """
    totals, wrong = list(map(sum, sums)), [0.0] * len(sums)
    peak = totals.index(max(totals))

    def loss(k: int) -> float:
        before, i, after = kept[k - 1], kept[k], kept[k + 1]
        if i == peak or totals[i] > max(totals[before], totals[after]):
            return float("inf")
        differs = sum(abs(a - b) for a, b in zip(sums[i], sums[before], strict=True))
        return wrong[before] + wrong[i] + (times[after] - times[i]) * differs

    kept = list(range(len(sums)))
    losses = [float("inf"), *map(loss, range(1, len(kept) - 1)), float("inf")]
    while len(kept) * (1 + len(sums[0])) > figures:
        k = losses.index(min(losses))
        wrong[kept[k - 1]] = losses[k]
        del kept[k], losses[k]
        for near in (k - 1, k):
            losses[near] = loss(near) if 0 < near < len(kept) - 1 else float("inf")
    return kept


def phases(spans: Iterable[Phase], made: Sequence[float], first: float, last: float) -> tuple[Phase, ...]:
    """Return the phases in their order; of too many, none.

    They are the backward passes and steps in `spans`, and what leads to a pass, from the first activation on
    that was `made` since the phase before.
    """

    def found() -> Iterator[Phase]:
        allocated, until = sorted(made), first
        for name, began, end in sorted(spans, key=lambda span: span[2]):
            begin = max(began, until)
            k = bisect_right(allocated, until)
            if name == "backward" and k < len(allocated) and allocated[k] < begin:
                yield "forward", allocated[k], begin
            if end > begin:
                yield name, begin, min(end, last)
                until = end

    every = tuple(found())
    return every if len(every) <= _PHASES else ()


def placed(one: KindTimeline, began_s: float, time_s: float) -> KindTimeline:
    """Return a timeline of `of_replay` in seconds since the beginning of a measurement of so many seconds."""

    def since_s(at_us: float) -> float:
        return float(f"{min(max(at_us / 1e6 - began_s, 0.0), time_s):.6g}")

    points = tuple((since_s(at_us), sums) for at_us, sums in one.points)
    shown = tuple((name, since_s(begin_us), since_s(end_us)) for name, begin_us, end_us in one.phases)
    return replace(one, points=points, phases=shown)
