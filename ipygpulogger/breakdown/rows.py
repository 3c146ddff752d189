"""Blocks in, rows of `AtPeak` out: folded by kind, name and place, the largest first."""

from __future__ import annotations

import itertools
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ..records.at_peak import BEFORE, UNRECORDED, AtPeak, folded
from ..runtime.errors import named
from ..runtime.shell import current_shell
from ..runtime.signals import is_from_a_handler
from .held import names_in
from .kinds import Kinds
from .names import names_at_end
from .places import Place, Places, frames_of, last_resort, user_frame
from .seen import Seen
from .training import training

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .graph import Address
    from .held import Held
    from .places import Frame
    from .replay import Block, Moment
    from .seen import Look

_MOST_ROWS = 100  # of one device
_NAMES = 3  # in one row
_NAMELESS, _FREED = "held by no name", "freed since"
_EARLIER = Place(BEFORE, "")
_NO_STACK = Place("", "allocated without a Python stack")
_OUTPUTS = "In", "Out"
_INEXACT = (
    "This version of torch does not tell when backward passes run: activations and gradients at the peak may"
    " be listed as temporaries."
)
_BY_LINE = "activations", "temporaries", "gradients"  # named after the line that made them


class Told(NamedTuple):
    """What is known of one block."""

    held: Held
    place: Place
    size_bytes: int
    alive: bool

    @property
    def name(self) -> str:
        """How its row is told from others of the kind and place; "" if it need not be."""
        if self.place.place in (BEFORE, UNRECORDED):
            return self.held.name or (_NAMELESS if self.alive else _FREED)
        return self.held.name if self.held.kind == "temporaries" else ""


class Breakdown:
    """Tells kinds and places of blocks; watches training from `begin` to `look`.

    Args:
        shell: IPython's; by default the one of this process.

    Attributes:
        notes: Sentences on what is less exact.
    """

    def __init__(self, shell: Any = None) -> None:
        self._shell = shell
        self.notes: list[str] = []
        self._watching = False
        self._seen = Seen()
        self._first: tuple[Look, ...] = ()
        self._names: dict[Address, Held] = {}

    def begin(self) -> None:
        """Watch from here on."""
        self._watching = True
        training.begin(self)
        with self._unnamed_at_worst():
            shell = self._shell = current_shell() if self._shell is None else self._shell
            names = names_in(sys._getframe(1))
            if shell is not None:
                names = itertools.chain(names, _users_own(dict(shell.user_ns)))
            first = training.look_at_names(names)
            self._first = () if first is None else (first,)

    @property
    def no_pass(self) -> bool:
        """Whether no backward pass ran from `begin` to `look`."""
        return self._seen.exact and not self._seen.passes

    def look(self) -> None:
        """Look at what names hold, at the end of the measurement, and stop watching."""
        self.end()
        if not self._seen.exact:
            self.notes.append(_INEXACT)
        with self._unnamed_at_worst():
            self._names = names_at_end(self._shell, sys._getframe(1))

    @contextmanager
    def _unnamed_at_worst(self) -> Iterator[None]:
        """Look at names: where that fails, blocks have the names of their lines."""
        try:
            yield
        except Exception as reason:
            if is_from_a_handler(reason):
                raise
            self.notes.append(f"What was alive at the peak has no names: {named(reason)}.")

    def drop(self) -> None:
        """Stop watching, and let go of what was seen. Idempotent."""
        self.end()
        self._seen, self._first, self._names = Seen(), (), {}

    def end(self) -> None:
        """Stop watching. Idempotent."""
        if self._watching:
            self._watching = False
            seen = training.end(self)
            self._seen = seen._replace(looks=(*self._first, *seen.looks))

    def rows(self, device: str, index: int, moment: Moment) -> tuple[AtPeak, ...]:
        """Return the rows of one device, the largest first.

        Args:
            device: "cuda:0".
            index: torch's index of it.
            moment: The peak.
        """
        kinds = Kinds(index, moment.count, self._seen, self._names)
        told, found = [], []
        for block in moment.blocks:
            if block.before:
                told.append(Told(kinds.kind_of(block, []), _EARLIER, block.size_bytes, block.alive))
            else:
                stack = frames_of(block.frames)
                found.append((block, kinds.kind_of(block, stack), _lines(block, stack, kinds)))
        places = Places(self._shell)
        for _, _, lines in found:
            places.learn(lines)
        for block, held, lines in found:
            told.append(Told(held, _place(block, lines, places), block.size_bytes, block.alive))
        return rows_of(device, told)


def _users_own(names: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a shell that are not its own."""
    for name, value in names.items():
        if type(name) is str and name[:1] != "_" and name not in _OUTPUTS:
            yield name, value


def _lines(block: Block, stack: list[Frame], kinds: Kinds) -> list[Frame]:
    """Return the line that allocated a block in the measurement; several if any of them may have."""
    user = user_frame(stack)
    if user is not None:
        return [user]
    waiting = [user_frame(one.stack) or last_resort(one.stack) for one in kinds.waiting(block)]
    lines = [line for line in (*waiting, None if any(waiting) else last_resort(stack)) if line is not None]
    return list(dict.fromkeys(lines))


def _place(block: Block, lines: list[Frame], places: Places) -> Place:
    found = list(dict.fromkeys(map(places.place_of, lines)))
    if not found:
        return Place(UNRECORDED, "") if block.lost else _NO_STACK
    return Place(*(" or ".join(dict.fromkeys(parts)) for parts in zip(*found, strict=True)))


def rows_of(device: str, told: list[Told]) -> tuple[AtPeak, ...]:
    """Return one row for all blocks of one kind and place; of earlier blocks, for each name."""
    rows: dict[tuple[str, ...], list[Told]] = {}
    for one in told:
        rows.setdefault((one.held.kind, one.place.place, one.name), []).append(one)
    made = [
        AtPeak(device, some[0].held.kind, _name(some), place, sum(one.size_bytes for one in some), len(some))
        for (_, place, _), some in rows.items()
    ]
    return folded(sorted(made, key=lambda row: -row.size_bytes), _MOST_ROWS)


def _name(some: list[Told]) -> str:
    """Return the name of one row: the variables that hold its blocks, or the line."""
    first = some[0]
    if first.name:
        return first.name
    names = list(dict.fromkeys(one.held.name for one in some if one.held.name))
    if not names or (first.held.kind in _BY_LINE and first.place.text):
        return first.place.text or first.place.place
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more
