"""The cells of a page: all of a usual notebook; of very many the worst ones, and the figures of all."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from .course import Course
from .ranking import Highest, by_peak
from .row import record_of
from .spread import Spread
from .totals import Totals

if TYPE_CHECKING:
    from collections.abc import Callable

    from .cell_record import CellRecord
    from .row import Origin, Row

    Numbered = tuple[int, Row]

MOST = 500  # cells that a page shows in full
_BY_PEAK, _BY_TIME, _FAILED = 200, 50, 50  # cells in full of more than that


class Fold:
    """The rows of a run, of which it keeps what a page shows.

    Args:
        record: Returns the record of a row by its origin.
        source: Returns the text of a cell.

    Attributes:
        record: As above, and so is the other.
        source: That.
        totals: The totals of the run.
        course: Memory over its time.
        spread: The figures of all cells.
    """

    def __init__(
        self,
        record: Callable[[Origin], CellRecord] = record_of,
        source: Callable[[CellRecord], str] = attrgetter("source"),
    ) -> None:
        self.record, self.source = record, source
        self.totals, self.course, self.spread = Totals(), Course(), Spread()
        self._all: list[Row] = []
        self._peaks = Highest["Numbered"](_BY_PEAK)
        self._times = Highest["Numbered"](_BY_TIME)
        self._failed = Highest["Numbered"](_FAILED)

    @property
    def count(self) -> int:
        """How many cells there are."""
        return self.totals.every.count

    @property
    def is_whole(self) -> bool:
        """Whether all cells are shown in full."""
        return self.count <= MOST

    def add(self, row: Row) -> None:
        """Add the next cell."""
        self.totals.add(row)
        if self.count <= MOST:
            self._all.append(row)
        elif self._all:
            self._all.clear()
        self.course.add(row)
        self.spread.add(row)
        one = self.count, row
        self._peaks.add(by_peak(row), one)
        self._times.add(row.time_s, one)
        if not row.succeeded:
            self._failed.add(self.count, one)

    def shown(self) -> list[CellRecord]:
        """Return the cells that are shown in full, in their order.

        Of very many these are the cells that needed most, those that took longest, and the last that failed.
        """
        if self.is_whole:
            return [self.record(row.origin) for row in self._all]
        found = dict((*self._peaks.ranked(), *self._times.ranked(), *self._failed.ranked()))
        return [self.record(found[number].origin) for number in sorted(found)]
