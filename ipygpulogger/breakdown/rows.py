"""Blocks of devices and of general RAM in, rows of `AtPeak` out: by kind, name, line, the largest first."""

from __future__ import annotations

import ast
import builtins
import linecache
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..allocator.places import (
    OURS,
    Frame,
    Place,
    Places,
    frames_of,
    is_top,
    is_users,
    last_resort,
    user_frame,
)
from ..owners.memory_blocks import array_readers
from ..records.device_usage import CPU
from ..records.explained import BEFORE, OTHERS, UNRECORDED, AtPeak, CallStack, Kind, folded
from ..runtime.errors import is_from_a_handler, named
from ..runtime.shell import current_shell
from .kinds import Kinds, TrainingHistory
from .names import Label, Labels, Search, names_at_end
from .timeline import of_replay
from .training import training

if TYPE_CHECKING:
    from ..allocator.graph import Address
    from ..allocator.replay import Block, Moment, Replay
    from ..records.explained import KindTimeline
    from .ram import RamBlock, RamPeak

_MOST_ROWS = 100  # of one device
_NAMES = 3  # in one row
_STACKS = 8  # of one row; the others are added up
_NAMELESS, _FREED = "no name found", "freed since"
_TEMPORARY = Label("temporaries")
DELETED = " (deleted)"
HELD = "held"  # `LabelledBlock.apart` of what names hold, in a row that is called after them
_BY_LINE = "activations", "temporaries", "gradients"  # named after the line that made them


class LabelledBlock(NamedTuple):
    """A block that was alive at the peak, with what is known of it."""

    kind: Kind  # as in `AtPeak`
    place: Place  # the line that asked for it
    name: str  # the variable that holds it; "" for none
    size_bytes: int  # its size
    apart: str = ""  # what its row is called, where that tells it from others of the kind and place
    calls: CallStack = CallStack(0)  # what led there

    @classmethod
    def of(cls, label: Label, place: Place, size_bytes: int, *, alive: bool) -> LabelledBlock:
        """Return a block of a device; alive: whether it still was at the end."""
        apart = label.name if label.kind == "temporaries" or label.name.endswith(DELETED) else ""
        if place.place in (BEFORE, UNRECORDED):
            apart = label.name or (_NAMELESS if alive else _FREED)
        return cls(label.kind, place, label.name, size_bytes, apart)


class Breakdown:
    """Tells kinds and places of blocks; watches training from `begin` to `read_names`."""

    def __init__(self, shell: Any = None) -> None:
        self._shell = shell
        self.notes: list[str] = []  # sentences on what is less exact
        self._watching, self._history = False, TrainingHistory()
        self._names: Labels = {}

    def begin(self) -> None:
        """Watch from here on."""
        self._watching = True
        training.begin(self)

    def read_names(self, wanted: Iterable[Address]) -> None:
        """Find what names hold at the end of the measurement, and stop watching."""
        self.end()
        shell = self._shell = current_shell() if self._shell is None else self._shell
        try:
            self._names = names_at_end(shell, sys._getframe(1), wanted)
        except Exception as reason:
            if is_from_a_handler(reason):
                raise
            self.notes.append(f"What was alive at the peak has no names: {named(reason)}.")

    def drop(self) -> None:
        """Stop watching, and let go of what was observed. Idempotent."""
        self.end()
        self._history, self._names = TrainingHistory(), {}

    def end(self) -> None:
        """Stop watching. Idempotent."""
        if self._watching:
            self._watching, self._history = False, training.end(self)

    def rows(self, device: str, index: int, moment: Moment) -> tuple[AtPeak, ...]:
        """Return the rows of one device, the largest first."""
        kinds, places = Kinds(index, moment.count, self._history, self._names), Places(self._shell)
        latest = sorted(moment.blocks, key=attrgetter("count"), reverse=True)
        deleted = Deleted((frames_of(block.frames) for block in latest), self._shell)
        stacks: dict[tuple[int, ...], list[Frame]] = {}  # by torch's frames, which equal ones share
        known: dict[tuple[int, bool, bool], tuple[Place, CallStack]] = {}
        blocks = []
        for block in moment.blocks:
            if (ids := tuple(map(id, block.frames))) not in stacks:
                stacks[ids] = frames_of(block.frames)
            own = stacks[ids]
            stack = _stack(block, own, kinds)
            label = kinds.label_of(block, own)
            if label == _TEMPORARY and not block.alive and (name := deleted.name_of(own)):
                label = Label("variables", name)
            block.kind = label.kind
            if (key := (id(stack), block.before, block.lost)) not in known:
                known[key] = _place(block, stack, places), places.calls_of(stack)
            place, calls = known[key]
            made = LabelledBlock.of(label, place, block.size_bytes, alive=block.alive)
            blocks.append(made._replace(calls=calls))
        return rows_of(device, blocks)

    def timeline(self, device: str, index: int, replay: Replay, *times_s: float) -> KindTimeline:
        """Return the timeline of one device, after its rows; see `of_replay`."""
        return of_replay(device, replay, Kinds(index, 0, self._history, self._names), *times_s)


def _stack(block: Block, own: list[Frame], kinds: Kinds) -> Sequence[Frame]:
    """Return the stack that allocated a block in the measurement, or that waited for the pass which did."""
    one = None if block.before or user_frame(own) else kinds.waiting(block)
    return own if one is None else one.stack or own


def _place(block: Block, stack: Sequence[Frame], places: Places) -> Place:
    if block.before:
        return Place(BEFORE, "")
    if (line := user_frame(stack) or last_resort(stack)) is not None:
        return places.place_of(line, stack)
    return Place(UNRECORDED, "") if block.lost else Place("", "allocated without a Python stack")


def rows_of(device: str, blocks: Iterable[LabelledBlock], least_bytes: float = 0.0) -> tuple[AtPeak, ...]:
    """Return one row for all blocks of one kind, place and `apart`, the largest first."""
    alike: dict[tuple[Kind, Place, str], list[LabelledBlock]] = {}
    for block in blocks:
        alike.setdefault((block.kind, block.place, block.apart), []).append(block)
    made = [_row(device, *key, of_key) for key, of_key in alike.items()]
    made.sort(key=lambda row: (row.is_sum, -row.size_bytes))
    notable = sum(row.size_bytes >= least_bytes for row in made if not row.is_sum)
    return folded(made, min(notable, _MOST_ROWS))


def _row(device: str, kind: Kind, place: Place, apart: str, blocks: list[LabelledBlock]) -> AtPeak:
    # Called after the variables that hold the blocks, or the line.
    names = list(dict.fromkeys(block.name for block in blocks if block.name))
    if apart and apart != HELD:
        name = apart
    elif not names or (kind in _BY_LINE and place.text):
        name = place.text or place.place
    else:
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        name = ", ".join(names[:_NAMES]) + more
    size_bytes = sum(block.size_bytes for block in blocks)
    return AtPeak(device, kind, name, place.place, size_bytes, len(blocks), _stacks(blocks, size_bytes))


def _stacks(blocks: Iterable[LabelledBlock], size_bytes: int) -> tuple[CallStack, ...]:
    """Return how much each of the user's stacks allocated, the most first; none where none is known."""
    sizes, libraries = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for block in blocks:
        if frames := block.calls.frames:
            sizes[frames] += block.size_bytes
            libraries[frames] = max(libraries[frames], block.calls.library_frames)
    found = [CallStack(most, frames, libraries[frames]) for frames, most in sizes.most_common(_STACKS)]
    rest_bytes = size_bytes - sum(one.size_bytes for one in found)
    return (*found, CallStack(rest_bytes)) if found and rest_bytes else tuple(found)


class Deleted:
    """Finds the variable that held a block at the peak and was deleted before the end, by the cell's text.

    Its statement is `a = ` and what an operator or a library's function returns. The peak came after that
    statement and before the next one that binds or deletes `a`.
    """

    def __init__(self, stacks: Iterable[Sequence[Frame]], shell: Any) -> None:
        # `stacks`: of what was alive at the peak, the latest first.
        self._names = vars(builtins) | ({} if shell is None else shell.user_ns)
        self._peak = next(filter(is_top, chain.from_iterable(stacks)), ("", 0, ""))
        self._body: list[ast.stmt] = []
        with suppress(SyntaxError, ValueError):
            self._body = ast.parse("".join(linecache.getlines(self._peak[0]))).body

    def name_of(self, stack: Sequence[Frame]) -> str:
        """Return "a (deleted)" for a block with this stack that `a` held; "" where that is not certain."""
        line = next((frame for frame in stack if is_users(frame[0])), None)
        if line is None or not is_top(line) or line[0] != self._peak[0]:
            return ""
        made, peak = self._at(line[1]), self._at(self._peak[1])
        if 0 <= made < peak:
            match self._body[made]:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if self._is_librarys(value):
                    later = self._body[made + 1 : peak + 1]
                    rebound = any(_rebinds(one, name) for one in self._body[peak + 1 :])
                    return name + DELETED if rebound and not any(_rebinds(one, name) for one in later) else ""
        return ""

    def _at(self, line: int) -> int:
        """Return which statement of the cell stands on a line; -1 for none and for several."""
        found = [at for at, one in enumerate(self._body) if one.lineno <= line <= (one.end_lineno or 0)]
        return found[0] if len(found) == 1 else -1

    def _is_librarys(self, value: ast.expr) -> bool:
        """Return whether only operators and functions of modules and of Python make a value."""
        calls = [node.func for node in ast.walk(value) if isinstance(node, ast.Call)]
        roots = [self._names.get(ast.unparse(function).partition(".")[0]) for function in calls]
        return isinstance(value, (ast.Call, ast.BinOp)) and all(
            isinstance(root, (ModuleType, type, type(len))) for root in roots
        )


def _rebinds(statement: ast.stmt, name: str) -> bool:
    names = (node for node in ast.walk(statement) if isinstance(node, ast.Name) and node.id == name)
    return any(not isinstance(node.ctx, ast.Load) for node in names)


# -- of general RAM: by the line that asked for the blocks

_NOTABLE_SHARE = 0.001  # of the peak: rows of less stand as one
_LARGE_BYTES = 64 << 10  # from here on it is looked up who holds a block
_SMALL_OBJECTS = "small objects of Python"  # the line asked for the last of them


def ram_rows(peak: RamPeak, shell: Any) -> tuple[AtPeak, ...]:
    """Return the rows of "cpu", without what our own code asked for."""
    stacks = {
        number: [(file, line, function) for function, file, line in peak.askers[number].stack_trace()]
        for number in {block.stack for block in peak.blocks}
    }
    lines = {number: _line_that_asked(stack) for number, stack in stacks.items()}
    lines = {number: line for number, line in lines.items() if line is None or not line[0].startswith(OURS)}
    places = Places(shell)
    place_of = {
        number: Place("", OTHERS) if line is None else places.place_of(line, stacks[number])
        for number, line in lines.items()
    }
    calls_of = {number: places.calls_of(stacks[number]) for number in lines}
    deleted = Deleted((stacks[block.stack] for block in reversed(peak.blocks)), shell)
    name_of = {number: deleted.name_of(stacks[number]) for number in lines}
    blocks = [block for block in peak.blocks if block.stack in lines]
    names = _names_of_blocks(blocks, shell)
    labelled = (
        _labelled(
            block,
            place_of[block.stack],
            calls_of[block.stack],
            names.get(block.address, "") if block.alive else name_of[block.stack],
        )
        for block in blocks
    )
    return rows_of(CPU, labelled, _NOTABLE_SHARE * peak.size_bytes)


def _labelled(block: RamBlock, place: Place, calls: CallStack, name: str) -> LabelledBlock:
    name = "" if block.is_arena else name
    kind: Kind = "variables" if block.alive or name else "temporaries"
    place = Place(place.place, _SMALL_OBJECTS) if block.is_arena else place
    # What names hold is not one with the rest of its line.
    apart = (HELD if block.alive else name) if name else ""
    return LabelledBlock(kind, place, name, block.size_bytes, apart, calls)


def _line_that_asked(stack: list[Frame]) -> Frame | None:
    """Return the line that asked: the innermost that is the user's or ours, else of a text; else None."""
    user = user_frame(stack)
    for frame in stack:
        if frame is user or frame[0].startswith(OURS):
            return frame
    found = last_resort(stack)
    is_text = found is not None and found[0].startswith("<") and not found[0].startswith("<frozen")
    return found if is_text else None


def _names_of_blocks(blocks: Iterable[RamBlock], shell: Any) -> dict[int, str]:
    """Return by address which variables hold blocks now; of large blocks only."""
    kept = sorted(
        (one.address, one.size_bytes)
        for one in blocks
        if one.alive and one.size_bytes >= _LARGE_BYTES and not one.is_arena
    )
    if not kept:
        return {}
    starts = [address for address, _ in kept]
    found: dict[int, str] = {}
    for name, _, holding in Search(shell, sys._getframe(), array_readers(), len(kept)).found():
        key = holding.key
        if holding.device == CPU and type(key) is tuple and type(key[1]) is int:
            address, size_bytes = kept[bisect_right(starts, key[1]) - 1]
            if address <= key[1] < address + size_bytes:
                found.setdefault(address, name)
                if len(found) == len(kept):
                    break
    return found
