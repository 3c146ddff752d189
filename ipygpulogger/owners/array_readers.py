"""Readers: functions that return the memory behind a value, for host arrays and for each framework."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ..engine.machine import machine
from .host_arrays import HOST
from .referents import may_be_asked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..sources import Holding

    ArrayReaders = Sequence[Callable[[Any], Holding | None]]


def array_readers() -> ArrayReaders:
    """Return every reader of this process: `Framework.holding` of each framework, and the host's."""
    return [HOST.holding, *(framework.holding for framework in machine().frameworks)]


def holding_of(value: Any, readers: ArrayReaders) -> Holding | None:
    """Return the memory behind a value; None if it is not an array or owns no memory."""
    holding = read(value, readers_of(type(value), readers))
    return holding if holding is not None and holding.size_bytes else None


def read(value: Any, readers: ArrayReaders) -> Holding | None:
    """Return the memory behind a value, from the first reader that knows it."""
    for reader in readers:
        try:
            found = reader(value)
        except Exception:  # noqa: S112 - a broken array, of which nothing can be said
            continue
        if found is not None:
            return found
    return None


def readers_of(kind: type, readers: ArrayReaders) -> ArrayReaders:
    """Return the readers that may know values of a class; a framework decides that by the class alone."""
    found = []
    for reader in readers:
        owner = getattr(reader, "__self__", None)
        if owner is HOST:
            of_kind = HOST.reader_of(kind)
            found += [] if of_kind is None else [of_kind]
            continue
        may_hold = getattr(owner, "may_hold", None)
        with contextlib.suppress(Exception):  # a framework in pieces
            if may_be_asked(kind) if may_hold is None else may_hold(kind):
                found.append(reader)
    return found
