"""The scopes that are open, and the loggers that run: while there are any, something is being measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..runtime.living import Living

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..sources import Device
    from .device_scope import DeviceScope
    from .ledger import Shares
    from .peaks import PeakTracker


class Measuring(Protocol):
    """An open measurement: a `scope.Scope`, or the lines of a cell."""

    def adopt(self, tracker: PeakTracker, device: Device, *, sure: bool) -> None:
        """Measure a device that a framework began to use, from zero."""

    def adopt_pinned(self, tracker: PeakTracker) -> None:
        """Measure the page-locked host memory that a framework began to count, from zero."""

    def orphaned(self) -> bool:
        """Return whether the call that should have closed it has ended."""

    def close(self) -> None:
        """End it."""

    def device_scopes(self) -> list[DeviceScope]:
        """Return its part on each device, for the sampler."""

    def sampled(self, resident_bytes: int) -> None:
        """Record a sample of general RAM."""

    def device_sampled(
        self, uuid: str, used_bytes: int, other_bytes: int | None, found: Shares | None
    ) -> None:
        """Record a sample of a device."""


class Unsampled:
    """The part of `Measuring` that all have in common that need no sampler and are ended by their caller."""

    def adopt_pinned(self, tracker: PeakTracker) -> None:
        """Ignore page-locked host memory, which is measured by scopes."""

    def orphaned(self) -> bool:
        """Return False: the caller that began this ends it."""
        return False

    def device_scopes(self) -> list[DeviceScope]:
        """Return no device: the sampler has nothing to look at."""
        return []

    def sampled(self, resident_bytes: int) -> None:
        """Ignore a sample of general RAM."""

    def device_sampled(
        self, uuid: str, used_bytes: int, other_bytes: int | None, found: Shares | None
    ) -> None:
        """Ignore a sample of a device."""


class OpenScopes:
    """The open scopes, which iterating gives, and the loggers that run between them.

    Both are held weakly: a scope that an interrupt kept from being closed ends with its last referrer.

    Attributes:
        loggers: Those that run. They keep our wrappers on the frameworks between cells.
    """

    def __init__(self) -> None:
        self._scopes: Living[Measuring] = Living()
        self.loggers: Living[object] = Living()

    def __iter__(self) -> Iterator[Measuring]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self._scopes)

    def __contains__(self, scope: Measuring) -> bool:
        return scope in self._scopes

    def all(self) -> list[Measuring]:
        """Return a list of the open scopes, which later changes do not affect."""
        return list(self._scopes)

    def add(self, scope: Measuring) -> None:
        """Add a scope that opens."""
        self._scopes.add(scope)

    def discard(self, scope: Measuring) -> None:
        """Remove a scope that has ended, if it is here."""
        self._scopes.discard(scope)

    def is_measuring(self) -> bool:
        """Return whether a scope is open or a logger runs."""
        return bool(self.loggers or self._scopes)
