"""The measurements that are open, and the loggers that run: while there are any, something is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.objects import WeakIdentitySet

if TYPE_CHECKING:
    from ..sources import Device
    from .children import Children
    from .device_scope import DeviceScope
    from .ledger import Shares
    from .peaks import PeakTracker


class Measuring:
    """An open measurement, as the machine treats it: a `scope.Scope`, the lines of a cell, a recording.

    Unless it overrides them, it needs no samples, and its caller ends it.

    Attributes:
        children: Its part that is about child processes; None where they do not concern it.
    """

    children: Children | None = None

    def adopt(self, tracker: PeakTracker, device: Device, *, sure: bool) -> None:
        """Measure a device that a framework began to use, from zero; `sure` if no reset was unseen."""

    def adopt_pinned(self, tracker: PeakTracker) -> None:
        """Measure the page-locked host memory that a framework began to count, from zero."""

    def orphaned(self) -> bool:
        """Return whether the call that should have closed it has ended."""
        return False

    def close(self) -> None:
        """End it; called of one that is orphaned."""

    def device_scopes(self) -> list[DeviceScope]:
        """Return its part on each device, for the sampler."""
        return []

    def sampled(self, resident_bytes: int) -> None:
        """Record a sample of general RAM."""

    def device_sampled(
        self, uuid: str, used_bytes: int, other_bytes: int | None, found: Shares | None
    ) -> None:
        """Record a sample of a device.

        Args:
            uuid: The device.
            used_bytes: In use on the whole device.
            other_bytes: The part outside the allocators; None if the allocators changed while NVML was read.
            found: Which processes hold that part, if it jumped and the driver reported it.
        """


class OpenScopes(WeakIdentitySet[Measuring]):
    """The open measurements, held weakly: one that an interrupt kept from being closed ends by itself.

    Attributes:
        loggers: Those that run. They keep our wrappers on the frameworks between cells.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loggers: WeakIdentitySet[object] = WeakIdentitySet()

    def is_measuring(self) -> bool:
        """Return whether anything is open or a logger runs."""
        return bool(self.loggers or self._references)
