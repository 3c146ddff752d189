"""Who keeps the records of other processes: every running `IPyGPULogger`.

From `start` to `stop` a logger is attached to the machine of its process, which holds it weakly. That is the
registry, so a session without other processes imports nothing for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from .machine import machine

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..records.group import Group
    from ..records.process import ProcessRecord


class Recorder(Protocol):
    """Keeps records: a running logger."""

    def _keep(self, records: Sequence[ProcessRecord]) -> Sequence[ProcessRecord]:
        """Keep records of other processes; return them with what is to be said of them as notes."""

    def _reports(self, group: Group) -> bool:
        """Return whether the option ``quiet`` leaves such records a table, as it leaves cells a report."""


def keep(records: Iterable[ProcessRecord]) -> list[ProcessRecord]:
    """Hand the records of other processes to every running logger: to its history, log and budget.

    ``il.record`` and ``il.data`` stay those of the kernel's own last cell.

    Args:
        records: In the order in which they are to be kept.

    Returns:
        The same records, with the notes of a logger, such as that a budget was exceeded.
    """
    given = list(records)
    found = list(given)
    for recorder in _recorders():
        kept = recorder._keep(given)
        found = [max(pair, key=lambda record: len(record.notes)) for pair in zip(found, kept, strict=True)]
    return found


def is_reported(group: Group) -> bool:
    """Return whether a table of kept records is to be shown: if a running logger says so, or none runs."""
    found = _recorders()
    return not found or any(recorder._reports(group) for recorder in found)


def _recorders() -> tuple[Recorder, ...]:
    return cast("tuple[Recorder, ...]", tuple(machine().scopes.loggers))
