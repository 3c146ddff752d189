"""What a check finds: a figure beside the truth, or why it could not be checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
        label: What the figure claims to be.
        unit: Bytes or seconds.
    """

    where: str
    case: str
    what: str
    truth: tuple[float, float]
    lo: float
    hi: float | None
    label: Literal["exact", "bounded", "at least"]
    unit: Literal["B", "s"] = "B"

    @property
    def is_wrong(self) -> bool:
        """Return whether what is claimed excludes the truth."""
        return self.lo > self.truth[1] or (self.hi is not None and self.hi < self.truth[0])


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
