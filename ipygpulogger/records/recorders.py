"""Who keeps records in this process: every running `IPyGPULogger`.

From `start` to `stop` a logger is attached to the machine of its process, which holds it weakly. That is the
registry, so a session without other processes imports nothing for it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .process import ProcessRecord

_MACHINE = "ipygpulogger.engine.machine"  # by name, as `records` imports nothing above it


class Recorder(Protocol):
    """Keeps records: a running logger."""

    def _keep(self, records: Sequence[ProcessRecord]) -> Sequence[ProcessRecord]:
        """Keep records of other processes; return them with what is to be said of them as notes."""


def recorders() -> Iterator[Recorder]:
    """Yield those that keep records now."""
    machines: Any = sys.modules.get(_MACHINE)
    if machines is not None:  # otherwise no logger was ever started
        yield from machines.machine().scopes.loggers


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
    for recorder in recorders():
        kept = recorder._keep(given)
        found = [max(pair, key=lambda record: len(record.notes)) for pair in zip(found, kept, strict=True)]
    return found
