"""What a check finds: a figure beside the truth, or why it could not be checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..records import Peak, Usage

    Label = Literal["exact", "bounded", "at least", "about"]


@dataclass(frozen=True)
class Figure:
    """One figure, and the truth, which is known by construction to within an interval.

    Attributes:
        where: Whose memory: "RAM", "cuda:0", "child (fork)".
        case: What came and went: "64 MB for a moment, in a thread".
        what: Which figure: "consumed", "needed", "used", "time".
        truth: The interval in which the truth lies.
        lo: The figure, or its lower bound.
        hi: The figure, or its upper bound; None where it is "at least".
        label: What the figure claims to be; "about" is no claim: an estimate that says what it leaves out.
        unit: Bytes or seconds; "" for a count.
        precision: How far its counter may be off, as the figure itself states.
    """

    where: str
    case: str
    what: str
    truth: tuple[float, float]
    lo: float
    hi: float | None
    label: Label
    unit: Literal["B", "s", ""] = "B"
    precision: float = 0

    @classmethod
    def consumed(cls, where: str, case: str, truth: tuple[float, float], usage: Usage) -> Figure:
        """Return what a usage says was consumed."""
        size, precision = usage.consumed_bytes, getattr(usage, "precision_bytes", 0)
        return cls(where, case, "consumed", truth, size, size, "exact", precision=precision)

    @classmethod
    def needed(cls, where: str, case: str, truth: tuple[float, float], usage: Usage) -> Figure:
        """Return what a usage says was needed."""
        bounds = usage.needed_bytes, usage.needed_at_most_bytes
        precision = usage.peak.precision_bytes
        return cls(where, case, "needed", truth, *bounds, label_of(usage.peak), precision=precision)

    @property
    def is_wrong(self) -> bool:
        """Return whether what is claimed excludes the truth, or is no claim at all (NaN, ``lo > hi``)."""
        (lowest, highest), hi = self.truth, self.hi
        holds = self.lo - self.precision <= highest
        if hi is None:
            holds = holds and self.label == "at least"
        else:
            holds = holds and self.lo <= hi and lowest <= hi + self.precision
        return self.label != "about" and not holds


def label_of(peak: Peak) -> Label:
    """Return the word for the quality of a peak."""
    return "at least" if peak.quality == "sampled" else peak.quality


class Unchecked(NamedTuple):
    """What could not be checked, and why."""

    where: str
    case: str
    reason: str


class Check(NamedTuple):
    """Something to run, which yields each figure as it is found.

    An error that it raises is a failure of ours, and counts as a wrong figure. It restores all it set, also
    when it is interrupted.
    """

    name: str  # for the progress line: "RAM for a moment, in threads"
    run: Callable[[], Iterator[Figure | Unchecked]]
    is_quick: bool = False  # without a device, and in well under a second: part of `--quick`
