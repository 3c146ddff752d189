"""The records that many processes made of the same cell or block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, overload

from .displayed import Displayed
from .process import ProcessRecord


class Missing(NamedTuple):
    """A process that sent no record.

    Attributes:
        who: "rank 2" or "engine 0".
        why: Such as "no answer within 30 s".
    """

    who: str
    why: str


class Group(Displayed, Sequence[ProcessRecord]):
    """The records of many processes, in the order of their ranks, workers and tasks.

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
        self._records = tuple(sorted(records, key=_place))
        self.missing, self.notes = tuple(missing), tuple(notes)

    @overload
    def __getitem__(self, index: int) -> ProcessRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ProcessRecord]: ...
    def __getitem__(self, index: int | slice) -> ProcessRecord | Sequence[ProcessRecord]:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[ProcessRecord]:
        return iter(self._records)


def _place(record: ProcessRecord) -> tuple[bool, int, str, str, str, float]:
    process = record.process
    began_s = record.started_at.timestamp()
    by_rank = process.rank is None, process.rank or 0
    return (*by_rank, process.worker or "", process.host, process.task or "", began_s)
