"""The records that many processes made of the same cell or block."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from ..records.process import ProcessRecord
from ..records.value import Sequenced, displayed_text
from .imbalance import Figure, Outlier, figures_of, outliers_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_NUMBER = re.compile(r"([0-9]{1,18})")


class Missing(NamedTuple):
    """A process that sent no record.

    Attributes:
        who: "rank 2" or "engine 0".
        why: Such as "no answer within 30 s".
    """

    who: str
    why: str


class Group(Sequenced[ProcessRecord]):
    """The records of many processes, in the order of their ranks, workers and tasks.

    Printed or displayed it is one table: a row for each process, of more than 16 for those that failed, stand
    out or needed most. Its length is the number of records. It is true if it has anything to tell: a group of
    no record but a missing process is not nothing.

    Attributes:
        label: What was measured, such as "In [4]".
        missing: The processes that sent no record.
        notes: What else is to be said, in plain sentences.
    """

    def __init__(
        self,
        label: str,
        records: Iterable[ProcessRecord],
        missing: Iterable[Missing] = (),
        notes: Iterable[str] = (),
    ) -> None:
        self.label = label
        self._records = tuple(sorted(records, key=place_of))
        self.missing, self.notes = tuple(missing), tuple(notes)

    def __bool__(self) -> bool:
        return bool(self._records or self.missing or self.notes)

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """The smallest, the median and the largest figure of RAM, of each device and of the time."""
        return tuple(figures_of(self._records))

    @cached_property
    def outliers(self) -> tuple[Outlier, ...]:
        """The processes that needed or took over 1.2 times the median, the farthest above it first."""
        return tuple(outliers_of(self._records))

    def __repr__(self) -> str:
        return displayed_text(self)


def place_of(record: ProcessRecord) -> tuple[object, ...]:
    """Return the place of a record among others; no two records share one, whatever order they came in."""
    process = record.process
    return (
        process.rank is None,
        process.rank or 0,
        _natural(process.worker or ""),
        _natural(process.host),
        process.pid,
        process.task or "",
        record.started_at,
        record.label,
    )


def _natural(name: str) -> list[tuple[str, int]]:
    """Return what sorts names as people count: "engine 2" before "engine 10"."""
    parts = _NUMBER.split(name)
    numbers = [*map(int, parts[1::2]), -1]
    return list(zip(parts[::2], numbers, strict=True))
