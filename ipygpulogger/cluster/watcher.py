"""`Watch`: what `watch` returns, whichever engine it watches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records.group import Group
from ..records.history import History
from ..records.recorders import keep

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class Watch:
    """Measures what a cluster does for each cell of this notebook, until it is stopped.

    Attributes:
        records: A `Group` for each cell in which other processes worked; the last is ``records[-1]``.
        history: The `ProcessRecord`s of all of them, in one `History`.
    """

    def __init__(self) -> None:
        self.records: list[Group] = []
        self.history = History()

    def keep(self, group: Group) -> None:
        """Add the records of a cell that has ended, here and to every logger that runs."""
        kept = Group(group.label, keep(group), group.missing, group.notes)
        self.records.append(kept)
        self.history.extend(kept)

    def stop(self) -> None:
        """Stop measuring, here and in the other processes. Does nothing the second time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
