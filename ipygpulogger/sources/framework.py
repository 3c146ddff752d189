"""A framework that has an allocator of its own on accelerator devices, such as torch or JAX."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..records import Diagnosis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .counter import Counter, PeakClass
    from .device import DeviceCounter
    from .holding import Dimensions, Holding

_STATES: dict[PeakClass, Literal["exact", "bounded", "sampled"]] = {
    "resettable": "exact",
    "monotone": "bounded",
    "sampled": "sampled",
}


class Framework(ABC):
    """A framework's devices, cache, arrays and diagnosis, once the user has imported it.

    It never imports or initialises the framework. Only `counters` must be implemented; every other method
    has a default.

    Attributes:
        name: The framework's module: "torch". While it is not in `sys.modules`, only `load`, `diagnose` and
            `after_fork_in_child` are called.
        on_user_reset: Set by the engine. If users can reset the same peaks as we do, the framework
            calls this with the device's index (None for pinned memory) and the user's reset, which the
            engine then runs.
    """

    name: ClassVar[str]
    on_user_reset: Callable[[int | None, Callable[[], None]], None] | None = None

    @abstractmethod
    def counters(self) -> Iterable[DeviceCounter]:
        """Return a counter for each device that this process uses now; the same objects every time."""

    def pinned(self) -> Counter | None:
        """Return the counter of page-locked host memory; None if the framework uses or counts none."""
        return None

    def current_index(self) -> int | None:
        """Return the index of the framework's current device; None while it uses none."""
        return None

    def load(self) -> None:  # noqa: B027 - having nothing to do is fine, here and below
        """Import the framework, in a process that only runs `diagnose`, which then reports an error."""

    def can_preload(self) -> bool:
        """Return whether `preload` would create a context now; asked before each cell."""
        return type(self).preload is not Framework.preload and self.current_index() is None

    def preload(self) -> None:  # noqa: B027
        """Create the current device's context, if the user has imported the framework."""

    def settle(self) -> None:  # noqa: B027
        """Return cached, unused memory to the device."""

    def hold(self) -> bool | None:
        """Preserve what the user reads from the framework's peak counters, until `release`.

        Returns:
            Whether the framework was in use before, so that resets by the user may have gone unseen.
        """
        return None

    def release(self) -> None:  # noqa: B027
        """Take every wrapper off, because no scope is open and no logger runs."""

    def after_fork_in_child(self) -> None:  # noqa: B027
        """Replace locks, which another thread may have held at the moment of the fork."""

    def may_hold(self, kind: type) -> bool:  # noqa: ARG002
        """Return whether values of a class can be arrays of the framework; asked once per class."""
        return type(self).holding is not Framework.holding

    def holding(self, value: Any) -> Holding | None:  # noqa: ARG002
        """Return the memory behind one of the framework's arrays; None for any other value."""
        return None

    def leading_dimension(self, value: Any) -> int | None:
        """Return an array's first dimension, which may be a batch size; None if it has fewer than two."""
        shape: Any = getattr(value, "shape", ())
        return int(shape[0]) if len(shape) > 1 else None

    def dimensions(self, value: Any) -> Dimensions | None:  # noqa: ARG002
        """Return the shape of one of the framework's arrays; None for any other value."""
        return None

    def item_bytes(self, value: Any) -> int | None:  # noqa: ARG002
        """Return the size of an element of one of the framework's data types; None for any other value."""
        return None

    def diagnose(self) -> Diagnosis | None:
        """Say what is exact here, and why; None if the user has not imported the framework."""
        counters = list(self.counters())
        if not counters:
            known = self.name in sys.modules
            return Diagnosis(self.name, "absent", "uses no device in this process so far") if known else None
        devices = ", ".join(counter.device.id for counter in counters)
        return Diagnosis(self.name, _STATES[counters[0].peak_class], f"its allocator on {devices}")
