"""The outside world, one file per origin of truth.

A source imports no other source and nothing above. It imports and initialises nothing that the
user has not already imported, except by the documented preload.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..records import Diagnosis

PeakClass = Literal["resettable", "monotone", "sampled"]


class Unavailable(Exception):  # noqa: N818 - a state of the world rather than a mistake
    """The counter cannot be read now; the text says why in one sentence."""


class Reading(NamedTuple):
    """One look at one number.

    Attributes:
        current_bytes: In use now.
        peak_bytes: The highest since the counter's last reset; None where nothing counts it.
        seen_bytes: The highest that a sampler saw since the last look; 0 without one.
    """

    current_bytes: int
    peak_bytes: int | None
    seen_bytes: int = 0


class Look(NamedTuple):
    """Every number of a counter at one moment.

    Attributes:
        readings: One per series of the counter.
        stamp: Counts that move whenever memory could have grown; taken no later than the readings.
            Empty where no such count exists.
    """

    readings: tuple[Reading, ...]
    stamp: tuple[int, ...]


class Counter(ABC):
    """Numbers that move, and the highest they have been since the last reset.

    Only `peaks.PeakOwner` may call `reset`.

    Attributes:
        peak_class: "resettable" (exact), "monotone" (exact only where a record was set) or "sampled".
        precision_bytes: The grain of the counter.
    """

    peak_class: PeakClass
    precision_bytes: int = 0

    @abstractmethod
    def look(self) -> Look:
        """Read everything.

        Raises:
            Unavailable: It cannot be read now.
        """

    def reset(self) -> None:
        """Let every peak start again from what is in use now; resettable counters only."""
        raise NotImplementedError(f"{type(self).__name__} has no reset")

    def growth_bytes(self, earlier: tuple[int, ...], later: tuple[int, ...]) -> tuple[int | None, ...]:
        """For each series, at most how much came (and may have gone) between two stamps; None: unknown."""
        raise NotImplementedError(f"{type(self).__name__} has no stamps")

    def watch(self, *, on: bool) -> None:  # noqa: B027 - most counters do not care
        """Somebody begins or ends to be interested; only sampled counters care."""


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator device as a framework knows it."""

    backend: str
    index: int
    name: str
    uuid: str | None
    total_bytes: int | None


class DeviceCounter(Counter):
    """A framework's allocator on one device; its series are allocated and reserved bytes."""

    device: Device

    def device_used_bytes(self) -> int | None:
        """In use on the whole device as the framework's driver tells it; None when it does not."""
        return None


class Framework(Protocol):
    """A framework with an allocator of its own on accelerator devices."""

    def counters(self) -> Iterable[DeviceCounter]:
        """The devices this process uses now; the same objects every time."""

    def current_index(self) -> int | None:
        """The framework's current device, or None while it uses none."""

    def preload(self) -> None:
        """Create the current device's context, if the user has imported the framework."""

    def settle(self) -> None:
        """Give cached, unused memory back to the device."""

    def hold(self) -> None:
        """Somebody measures: from now on keep the user's own counters true."""

    def release(self) -> None:
        """Nobody measures any longer: take every wrapper off."""

    def diagnose(self) -> Diagnosis:
        """What is exact here, and why."""
