"""A set of objects that it does not keep alive."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


class Living(Generic[T]):
    """Objects for as long as something else refers to them.

    As `weakref.WeakSet`, whose iteration takes six times as long (measured): the hooks of a cell go through
    such sets dozens of times.
    """

    __slots__ = ("_references",)

    def __init__(self) -> None:
        self._references: set[weakref.ref[T]] = set()  # each removes itself as its object dies

    def add(self, one: T) -> None:
        """Add an object; adding it again changes nothing."""
        self._references.add(weakref.ref(one, self._references.discard))

    def discard(self, one: T) -> None:
        """Remove an object, if it is here."""
        self._references.discard(weakref.ref(one))

    def __iter__(self) -> Iterator[T]:
        """Yield the objects that are here now, whatever is added or removed meanwhile."""
        # A copy is made in C, at once: another thread, or a finalizer, may change the set while we go on.
        return iter([one for reference in self._references.copy() if (one := reference()) is not None])

    def __contains__(self, one: T) -> bool:
        return weakref.ref(one) in self._references

    def __len__(self) -> int:
        return len(self._references)
