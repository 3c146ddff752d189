"""A counter: numbers that move, and the highest that each has been since the last reset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

PeakClass = Literal["resettable", "monotone", "sampled"]
UNREADABLE = "the memory of this process cannot be read"  # how the reason begins where RAM has no counter


class Unavailable(Exception):  # noqa: N818 - a state of the world rather than a mistake
    """The counter cannot be read now; the message says why in one sentence."""


class Reading(NamedTuple):
    """One series of a counter at one moment.

    Attributes:
        current_bytes: In use now.
        peak_bytes: The highest value since the counter's last reset; None if nothing counts it.
        seen_bytes: The highest value that a sampler saw since the last look; 0 without a sampler.
    """

    current_bytes: int
    peak_bytes: int | None
    seen_bytes: int = 0


class Look(NamedTuple):
    """Every series of a counter at one moment.

    Attributes:
        readings: One per series.
        stamp: Event counts that change whenever memory could have grown, such as page faults or
            allocations. They are read no later than the readings. Empty if there are no such counts.
        reset_elsewhere: Something other than this package may have reset the peaks since the last look.
    """

    readings: tuple[Reading, ...]
    stamp: tuple[int, ...]
    reset_elsewhere: bool = False


class Counter(ABC):
    """One or more series, each with its current value and its peak since the last reset.

    Only `engine.peaks.PeakTracker` may call `reset`: it keeps the peaks of every open scope.

    Attributes:
        peak_class: "resettable" (exact), "monotone" (exact only if the peak rose within the scope), or
            "sampled" (a lower bound).
        precision_bytes: How far a peak may be off.
        current_precision_bytes: How far a current value may be off.
    """

    peak_class: PeakClass
    precision_bytes: int = 0
    current_precision_bytes: int = 0

    def describe(self) -> str:
        """Name the counter, as part of a sentence."""
        return "a peak counter"

    @abstractmethod
    def look(self) -> Look:
        """Read every series.

        Raises:
            Unavailable: It cannot be read now.
        """

    def stamp(self) -> tuple[int, ...]:
        """Return the stamp alone; override this if it costs less than a look.

        Raises:
            Unavailable: It cannot be read now.
        """
        return self.look().stamp

    def reset(self) -> None:
        """Restart every peak from the current value; only resettable counters have this."""
        raise NotImplementedError(f"{type(self).__name__} has no reset")

    def growth_bytes(self, earlier: tuple[int, ...], later: tuple[int, ...]) -> tuple[int | None, ...]:
        """Bound, for each series, how many bytes were allocated between two stamps; None if unknown.

        They may have been freed again by the second stamp.
        """
        raise NotImplementedError(f"{type(self).__name__} has no stamps")

    def watch(self, *, on: bool) -> None:  # noqa: B027 - most counters do not care
        """Prepare for the first open scope, or release what is not needed after the last one."""

    def close(self) -> None:  # noqa: B027 - most counters hold nothing
        """Release what looking needs, such as descriptors; the next look or watch acquires it again."""
