"""The user's garbage collector: our own work neither sets it off nor brings its next run nearer.

CPython counts the containers that were made and not yet freed, and collects once they are more than a
threshold. Our hooks make containers too, and each record keeps some. A collection that these set off would
free what the user's cell left behind, and run its finalizers, when the user's program did not make it.

Not covered are our threads, which make fewer than a hundred containers at a time, and the table of lines.
The collector's switch is not touched: another thread may turn it off meanwhile, and shall find it so.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING

from .frames import walk_stack

if TYPE_CHECKING:
    from collections.abc import Iterator

# More containers than any work of ours makes. Not 0, which means "never": where another thread reads the
# threshold just now and sets it again later, its collector would be off for good. Odd, to be known as ours.
_RAISED = 10_000_019
_SPARES = 8192  # 400 KB: what is loaded with the first owners and errors, and what 500 records keep


class _Spare:
    """A container without use: freeing one takes one off the collector's count."""

    __slots__ = ("_",)  # without a slot the collector would not count it


class _State:
    """What is to be put back."""

    def __init__(self) -> None:
        self.working: dict[int, int] = {}  # by thread, the collector's count when our work there began
        self.thresholds: tuple[int, ...] = ()  # the user's, while ours are in their place
        self.spares = [_Spare() for _ in range(_SPARES)]


_state = _State()


@contextmanager
def undisturbed() -> Iterator[None]:
    """While our work lasts, nothing is collected automatically; thresholds that others set meanwhile stay."""
    working, thread = _state.working, get_ident()
    if thread in working:
        yield
        return
    working[thread] = 0
    try:
        _raise()
        yield
    finally:
        working.pop(thread, None)
        if not working:
            restore()


def begin_hook() -> None:
    """As `undisturbed`, until `end_hook`; and then the collector's count is what it is now.

    A function that raises the threshold first: even what a `with` needs could set off a collection. No other
    work of ours goes on around a hook: what seems to was interrupted, and what that left is put right.
    """
    _raise()
    for _ in walk_stack(
        sys._getframe()
    ):  # a frame once looked at is an object, which goes when the frame ends
        pass
    _state.working[get_ident()] = gc.get_count()[0]


def end_hook() -> None:
    """The hook is over.

    As many containers are freed as it left behind; they were made when this module was loaded. Once they are
    used up, the count rises by what each record keeps.
    """
    count = _state.working.pop(get_ident(), None)
    if count is not None:
        _level(gc.get_count()[0] - count)
    if not _state.working:
        restore()


def collect(generation: int = 2) -> None:
    """Collect garbage because the user asked for it."""
    _level(-_SPARES)  # making spares is free here: the collection sets the count to zero
    gc.collect(generation)
    _state.working.update(dict.fromkeys(_state.working, gc.get_count()[0]))


def restore() -> None:
    """Set the user's thresholds again where ours are still in their place, as an interrupt may leave them."""
    theirs = _state.thresholds
    if theirs and gc.get_threshold() == (_RAISED, *theirs[1:]):
        gc.set_threshold(*theirs)


def _raise() -> None:
    now = gc.get_threshold()
    if 0 < now[0] < _RAISED:
        _state.thresholds = now  # first: an interrupt after the next line is made good from it
        gc.set_threshold(_RAISED, *now[1:])


def _level(made: int) -> None:
    """Free as many spares as containers were made; where more were freed than made, make spares."""
    spares = _state.spares
    if made > 0:
        del spares[-made:]
    else:
        spares.extend(_Spare() for _ in range(min(-made, _SPARES - len(spares))))


def _after_fork_in_child() -> None:
    _state.working.clear()  # of threads that are not here
    restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
