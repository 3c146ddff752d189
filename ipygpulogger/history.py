"""The records of a notebook's cells, in the order they finished."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from .records import CellRecord

if TYPE_CHECKING:
    import pandas as pd


class History(Sequence[CellRecord]):
    """The finished cells; about a kilobyte each, whatever the cell was."""

    def __init__(self) -> None:
        self._records: list[CellRecord] = []

    def append(self, record: CellRecord) -> None:
        """A cell has finished."""
        self._records.append(record)

    @overload
    def __getitem__(self, index: int) -> CellRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CellRecord]: ...
    def __getitem__(self, index: int | slice) -> CellRecord | Sequence[CellRecord]:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[CellRecord]:
        return iter(tuple(self._records))

    def __repr__(self) -> str:
        return f"<History: {len(self)} cells>"

    def to_dicts(self) -> list[dict[str, Any]]:
        """Plain values for JSON, one dict a cell: bytes, seconds, ISO 8601 times."""
        return [record.to_dict() for record in self]

    def to_pandas(self) -> pd.DataFrame:
        """One row a cell; nested figures become columns such as ``gen.peak.lo_bytes``.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas: pip install pandas") from error
        return pd.json_normalize(self.to_dicts())
