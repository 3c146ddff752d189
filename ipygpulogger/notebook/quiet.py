"""Which cells are quiet: they moved less than a threshold, and there is nothing else to say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ..analysis.notable import nearly_full
from ..records.note import WARNINGS, of_kind
from ..records.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..analysis.group import Group
    from ..records import CellRecord

_TIME = re.compile(r"(\d{1,18}(?:\.\d{1,18})?|\.\d{1,18})\s*(ms|s|min|h)", re.ASCII | re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
_BETWEEN = re.compile(r"(?<=[a-z])(?:\s*,\s*|\s+)", re.ASCII | re.IGNORECASE)  # not in "10 MB"


class Threshold(NamedTuple):
    """What a cell must reach to be reported: a size of memory, a time, or one of the two."""

    size_bytes: int | None = None
    time_s: float | None = None

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Return what a text means: "10MB", "1s", or both, "10MB 1s".

        Sizes are written as those of a budget. Times end in ms, s, min or h.

        Raises:
            ValueError: A part of the text is neither, has no unit, is zero, or comes twice.
        """
        sizes_bytes: list[int] = []
        times_s: list[float] = []
        for part in _BETWEEN.split(text.strip()):
            if match := _TIME.fullmatch(part):
                times_s.append(float(match[1]) * _SECONDS[match[2].lower()])
            else:
                sizes_bytes.append(_size_bytes(part))
        if len(sizes_bytes) > 1 or len(times_s) > 1 or 0 in (*sizes_bytes, *times_s):
            raise ValueError(f"{text!r} is not a size, a time or both, such as '10MB', '1s' or '10MB 1s'")
        return cls(next(iter(sizes_bytes), None), next(iter(times_s), None))

    def covers(self, record: CellRecord) -> bool:
        """Return whether a cell stayed under the size, and under the time."""
        if self.time_s is not None and record.time_s >= self.time_s:
            return False
        return self.size_bytes is None or max(_moved_bytes(record)) < self.size_bytes


def _size_bytes(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError:
        return 0


def _moved_bytes(record: CellRecord) -> Iterator[int]:
    """Yield every amount of memory that a cell's report would speak of, but for that of other processes.

    Of a peak that is not exact the lower bound counts, as for a budget: the upper one of a counter that
    cannot be reset is the highest peak of the whole process, and would make every cell a large one.
    """
    for usage in (record.gen, *record.gpus, record.children, record.pinned):
        if usage is not None:
            yield abs(usage.consumed_bytes)
            yield usage.needed_bytes
    for gpu in record.gpus:
        yield gpu.context_bytes
        yield abs(gpu.unattributed_bytes)
        yield gpu.unknown_rise_bytes
    for _, size_bytes in record.between:
        yield abs(size_bytes)


def is_reported(record: CellRecord, quiet: Threshold | None, *, requested: bool) -> bool:
    """Return whether a cell has a report: if it asks for one, or is neither ours alone nor `quiet`."""
    if requested or record.gpulog_only:
        return requested
    if quiet is None or record.status != "ok" or any(map(nearly_full, record.gpus)):
        return True
    if of_kind(record.notes, *WARNINGS):
        return True
    return not quiet.covers(record)


def has_table(group: Group, quiet: Threshold | None, *, requested: bool) -> bool:
    """Return whether the records of other processes have a table, as if each were a cell's."""
    if requested or quiet is None or group.missing or group.notes:
        return True
    return any(is_reported(record, quiet, requested=False) for record in group)
