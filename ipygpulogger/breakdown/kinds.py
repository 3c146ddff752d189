"""What each block that was alive at the peak was for.

A position in what an allocator did is the number of the last allocation until then, in statistics and events.
"""

from __future__ import annotations

import itertools
import os
import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..allocator.places import Frame, user_frame
from .names import Label, Labels, surer

if TYPE_CHECKING:
    from ..allocator.replay import Block


@dataclass(slots=True, eq=False)
class BackwardPass:
    """One backward pass."""

    stack: tuple[Frame, ...]  # the Python stack that waits for it, innermost first
    retained: bool  # its graph stays for another
    inner: bool  # it is within another
    began_s: float = 0.0  # since the epoch
    ended_s: float = 0.0  # the same for its end; 0 while it runs
    begin: dict[int, int] = field(default_factory=dict)  # by device, the position at which it began
    end: dict[int, int] | None = None  # the same for its end; None while it runs
    walked: bool = False  # whether its graph was
    whole: bool = False  # whether all that it keeps was found
    leaves: Sequence[Any] = ()  # while it runs, the tensors whose gradients were not read yet


class LabelSnapshot(NamedTuple):
    """What the blocks at some addresses held at one moment."""

    positions: dict[int, int]  # by device, the position at that moment
    labels: Labels  # by address
    graph_of: BackwardPass | None = None  # the backward pass whose graph was walked; None for another source


class TrainingHistory(NamedTuple):
    """All that was observed of training."""

    snapshots: tuple[LabelSnapshot, ...] = ()  # in their order; those of modules and optimizers come first
    passes: tuple[BackwardPass, ...] = ()  # in the order in which they began
    steps: tuple[tuple[float, float], ...] = ()  # of optimizers, outside of passes: from, to; since the epoch


class BoundedLog:
    """The latest items, and of the older ones those around which the peak rose."""

    def __init__(self, count: int) -> None:
        self._latest: deque[tuple[int, Any]] = deque(maxlen=count)  # with their numbers
        self._risen: deque[tuple[int, Any]] = deque(maxlen=2 * count)
        self._numbers = itertools.count()

    def add(self, item: Any) -> None:
        """Add the latest item."""
        self._latest.append((next(self._numbers), item))

    def rise(self) -> None:
        """Note that the peak rose between the last two items, or after them."""
        self._risen.extend(itertools.islice(reversed(self._latest), 2))

    def items(self) -> tuple[Any, ...]:
        """Return what is kept, in its order."""
        kept = dict((*self._risen, *self._latest))
        return tuple(kept[number] for number in sorted(kept))


# The figures of aten/src/ATen/cuda/CublasHandlePool.cpp: of each handle and stream, kept for good.
WORKSPACE_BYTES = 8_519_680  # the default, a size that no tensor has by chance
_CUBLAS_BYTES = {WORKSPACE_BYTES, 33_554_432}  # of Hopper and later 32 MB, which tensors do have
CUBLAS = "workspace of cuBLAS"
_CHECKPOINT = "checkpoint.py"
_RECOMPUTES = "recompute_fn", "unpack_hook"
_ENGINE = "_engine_run_backward"
_NEVER = 1 << 62
_AT_ONCE = 64  # backward passes that may be under way, in all threads together


class Kinds:
    """Tells what the blocks of one device were for."""

    def __init__(self, index: int, count: int, history: TrainingHistory, names: Labels) -> None:
        self._index, self._count, self._names = index, count, names
        # By address, what was found there: when, and before which pass.
        self._found: dict[int, list[tuple[int, Label, BackwardPass | None]]] = {}
        for snapshot in history.snapshots:
            if (position := snapshot.positions.get(index)) is not None:
                for (device, address), label in snapshot.labels.items():
                    if device == index:
                        found = self._found.setdefault(address, [])
                        found.append((position, label, snapshot.graph_of))
        # By identity, the positions of snapshots that are still there: of a long training not all are.
        self._kept = {id(snapshot.positions) for snapshot in history.snapshots}
        self._passes = sorted((one for one in history.passes if index in one.begin), key=self._begin)
        ended = [one for one in self._passes if one.ended_s and not one.inner]
        ended = [one for one in ended if self._begin(one) < self._end(one)]  # others ran elsewhere
        # Backward passes and steps, from when and until when, since the epoch.
        self.spans: list[tuple[str, float, float]] = [("backward", one.began_s, one.ended_s) for one in ended]
        self.spans += [("step", *step) for step in history.steps]
        self._begins = [self._begin(one) for one in self._passes]
        self._latest_ends = list(itertools.accumulate(map(self._end, self._passes), max))
        self._workspaces = workspaces()

    def label_of(self, block: Block, stack: list[Frame], count: int | None = None) -> Label:
        """Return what a block was for at a position, by default at the peak."""
        count = self._count if count is None else count
        label = self._observed(block, count)
        if label is None or label.computed:
            # `_make_grads` makes the gradient of the result, with which a backward pass begins.
            is_first = any(name == "_make_grads" for _, _, name in stack)
            if is_recomputed(stack) or (self._was_saved(block, count) and not is_first):
                return Label("activations", label.name if label is not None else "")
            if label is None and not block.before and self._outlived_its_pass(block, stack):
                label = Label("gradients")
        if label is not None:
            return label
        if block.alive and block.size_bytes in self._workspaces:
            return Label("before" if block.before else "temporaries", CUBLAS)
        if block.before:
            return Label("before")
        return Label("variables" if block.alive else "temporaries")

    def waiting(self, block: Block) -> BackwardPass | None:
        """Return the innermost pass within which a block was allocated; None if that is not known."""
        if block.lost:
            return None
        found = [one for one in self._around(block.count - 1) if block.count <= self._end(one)]
        found = [one for one in found if user_frame(one.stack) is not None] or found
        return found[-1] if sum(not one.inner for one in found) <= 1 and found else None

    def _observed(self, block: Block, count: int) -> Label | None:
        address = self._index, block.address
        label = self._names.get(address) if block.alive else None
        until = _NEVER if block.freed is None else block.freed
        for position, one, graph_of in self._found.get(block.address, ()):
            if not block.count <= position <= until:
                continue
            # Whether that was before a backward pass let go of its graph.
            was_kept = graph_of is None or graph_of.retained or count <= self._end(graph_of)
            if one.kind != "activations" or was_kept:
                label = surer(label, one)
            elif one.name:  # the graph has let go of it, the variable has not
                label = surer(label, Label("variables", one.name))
        return label

    def _was_saved(self, block: Block, count: int) -> bool:
        """Return whether a backward pass freed a block, where it is unknown what its graph kept."""
        return block.freed is not None and any(
            block.count <= self._begin(one) and max(block.freed, count) <= self._end(one)
            for one in self._around(block.freed)
            if not (one.whole and id(one.begin) in self._kept)
        )

    def _outlived_its_pass(self, block: Block, stack: list[Frame]) -> bool:
        """Return whether the engine allocated a block in a backward pass that it outlived."""
        if (stack and stack[0][2] != _ENGINE) or block.size_bytes in self._workspaces:
            return False
        one = self.waiting(block)
        if one is None or (one.walked and id(one.end) in self._kept):
            return False
        return block.freed is None or block.freed > self._end(one)

    def _around(self, count: int) -> list[BackwardPass]:
        """Return the last passes that had begun at a position, in their order; not all that had ended."""
        last = bisect_right(self._begins, count)
        return self._passes[max(last - _AT_ONCE, bisect_left(self._latest_ends, count)) : last]

    def _begin(self, one: BackwardPass) -> int:
        return one.begin[self._index]

    def _end(self, one: BackwardPass) -> int:
        return (one.end or {}).get(self._index, _NEVER)


def is_recomputed(stack: Iterable[Frame]) -> bool:
    """Return whether checkpointing computes an activation again, which the pass then needs."""
    return any(name in _RECOMPUTES and file.endswith(_CHECKPOINT) for file, _, name in stack)


def workspaces() -> set[int]:
    """Return the sizes that cuBLAS's workspaces may have here."""
    said = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    return {sum(int(size) * int(count) * 1024 for size, count in said)} if said else _CUBLAS_BYTES
