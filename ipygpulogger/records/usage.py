"""Memory over a scope: what was in use at both ends, the highest, and what follows from them.

This is the only place where consumed, needed and peaked are computed. Sizes are in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

from .units import MB, rounded_mb
from .value import Value

Quality = Literal["exact", "bounded", "sampled"]
Timeline = tuple[tuple[float, int], ...]  # a time series: (seconds since the beginning, bytes), at most 64

Bytes = TypeVar("Bytes", int, float)  # a float where it may be infinite

_NOTABLE = 0.01


def consumed(before_bytes: int, after_bytes: int) -> int:
    """Return used after minus used before; negative when memory was given back."""
    return after_bytes - before_bytes


def above_ends(peak_bytes: Bytes, before_bytes: int, after_bytes: int) -> Bytes:
    """Return how far the highest use is above both ends of its scope; negative below the higher end."""
    return peak_bytes - max(before_bytes, after_bytes)


def needed(peak_bytes: int, before_bytes: int, after_bytes: int) -> int:
    """Return the highest use minus the use before: what must have been free; never negative."""
    return max(peak_bytes, before_bytes, after_bytes) - before_bytes


def notable(moved_bytes: int, used_bytes: int) -> bool:
    """Return whether a change deserves to be explained: more than 1 MB, and more than 1 % of what is used."""
    return moved_bytes > MB and moved_bytes > _NOTABLE * used_bytes


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Peak(Value):
    """The highest use within a scope; the true value lies in ``[lo_bytes, hi_bytes]``.

    Attributes:
        lo_bytes: The lower bound.
        hi_bytes: The upper bound; None when there is none ("sampled").
        quality: "exact", "bounded" or "sampled".
        precision_bytes: The granularity of the counter itself, as its documentation states it.
    """

    lo_bytes: int
    hi_bytes: int | None
    quality: Quality
    precision_bytes: int = 0

    @classmethod
    def within(cls, lo_bytes: int, hi_bytes: int | None, precision_bytes: int = 0) -> Peak:
        """Return the peak between two bounds: exact where the granularity alone keeps them apart."""
        if hi_bytes is None:
            return cls(lo_bytes, None, "sampled", precision_bytes)
        exact = hi_bytes - lo_bytes <= precision_bytes
        return cls(lo_bytes, hi_bytes, "exact" if exact else "bounded", precision_bytes)

    @property
    def coarse(self) -> bool:
        """Whether the granularity is worth a remark beside the peak, being over 1 MB and over 1 % of it."""
        return self.precision_bytes > max(MB, self.lo_bytes // 100)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Usage(Value):
    """Memory at both ends of a scope, and the highest within it, in bytes."""

    before_bytes: int
    after_bytes: int
    peak: Peak

    @classmethod
    def of_runs(
        cls, first_bytes: int, consumed_bytes: int, peaked: tuple[int, int | None], precision_bytes: int
    ) -> Usage:
        """Return the usage of several runs together, such as those of a source line in a loop.

        It is in use when the first began, consumed by all, and in bounds the most that one had as peaked.
        """
        after_bytes = first_bytes + consumed_bytes
        higher_bytes, (lo_bytes, hi_bytes) = max(first_bytes, after_bytes), peaked
        highest_bytes = None if hi_bytes is None else higher_bytes + max(lo_bytes, hi_bytes)
        peak = Peak.within(higher_bytes + lo_bytes, highest_bytes, precision_bytes)
        return cls(first_bytes, after_bytes, peak)

    @property
    def consumed_bytes(self) -> int:
        """Used after minus used before; negative when memory was given back."""
        return consumed(self.before_bytes, self.after_bytes)

    @property
    def peaked_bytes(self) -> int:
        """How far the highest is above both ends, freed again within the scope; never negative."""
        return max(0, above_ends(self.peak.lo_bytes, self.before_bytes, self.after_bytes))

    @property
    def peaked_at_most_bytes(self) -> int | None:
        """The upper bound of `peaked_bytes`; None when the peak has none."""
        hi_bytes = self.peak.hi_bytes
        return None if hi_bytes is None else max(0, above_ends(hi_bytes, self.before_bytes, self.after_bytes))

    @property
    def needed_bytes(self) -> int:
        """The highest minus what was in use before, which must have been free for the scope to run."""
        return needed(self.peak.lo_bytes, self.before_bytes, self.after_bytes)

    @property
    def needed_at_most_bytes(self) -> int | None:
        """The upper bound of `needed_bytes`; None when the peak has none."""
        if self.peak.hi_bytes is None:
            return None
        return needed(max(self.peak.lo_bytes, self.peak.hi_bytes), self.before_bytes, self.after_bytes)

    def described(self) -> str:
        """Return the figures as words, in whole megabytes: "consumed 128 MB, needed 128 MB, used 170 MB"."""
        least = "at least " if self.peak.hi_bytes is None else ""
        consumed, needed, used = map(rounded_mb, (self.consumed_bytes, self.needed_bytes, self.after_bytes))
        return f"consumed {consumed} MB, needed {least}{needed} MB, used {used} MB"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.described()}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Heap(Value):
    """What glibc's malloc holds, in bytes: in use by the program, and kept for later requests."""

    in_use_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RamUsage(Usage):
    """General RAM of one process: its resident memory (RSS), and malloc's share of it where that is known.

    Attributes:
        heap_before: What malloc held at the beginning; None when unknown.
        heap_after: What malloc held at the end; None when unknown.
        timeline: Resident bytes over a long scope.
        precision_bytes: The possible error of `consumed_bytes`; 0 but for Linux 6.2 to 6.16.
    """

    heap_before: Heap | None = None
    heap_after: Heap | None = None
    timeline: Timeline = ()
    precision_bytes: int = 0

    @property
    def newly_kept_bytes(self) -> int:
        """How much more freed memory malloc keeps than before; 0 when that is unknown."""
        before, after = self.heap_before, self.heap_after
        return after.kept_bytes - before.kept_bytes if before and after else 0

    @property
    def newly_in_use_bytes(self) -> int:
        """How much more of malloc's memory is in use than before; never negative, and 0 when unknown."""
        before, after = self.heap_before, self.heap_after
        return max(0, after.in_use_bytes - before.in_use_bytes) if before and after else 0

    @property
    def kept_of_consumed_bytes(self) -> int:
        """The part of what was consumed that is freed memory which malloc did not return to the kernel."""
        return max(0, min(self.newly_kept_bytes, self.consumed_bytes - self.newly_in_use_bytes))
