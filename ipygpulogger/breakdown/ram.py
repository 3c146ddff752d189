"""General RAM at its peak: what was asked for since the beginning, by the line that asked."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..engine.machine import importing, machine
from ..owners.mapped_memory import page_table_bytes
from ..records.units import MB, rounded_mb
from ..runtime.collector import undisturbed
from ..runtime.errors import named
from ..runtime.shell import current_shell
from ..runtime.signals import is_from_a_handler
from ..sources import Unavailable
from ..sources.memray import Window, calls_of_memray
from ..sources.memray_tracker import ABSENT, UNKNOWN
from .ram_events import ARENA_BYTES, peak_of
from .ram_pages import Pages
from .ram_rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..records import AtPeak, Measurement
    from .ram_events import Mapping

_MOST_OF_IT = 0.9  # meanwhile other memory may be given back
_UNSEEN_BYTES, _UNSEEN = (
    32 * MB,
    0.25,
)  # of the rise: from here on it is said; memray itself takes up to 16 MB


class RamRecording:
    """What was alive when most general RAM was asked for, for one measurement.

    None of its methods raises: what cannot be told is a note. Recordings nest and overlap in any order,
    across threads.

    Attributes:
        notes: What is not known, and why.
    """

    def __init__(self, shell: Any = None) -> None:
        """Prepare; nothing is recorded before `begin`.

        Args:
            shell: IPython's, whose cells are named; by default the one of this process.
        """
        self._shell = shell
        self._window: Window | None = None
        self._pages: Pages | None = None
        self.notes: list[str] = []

    def begin(self) -> None:
        """Begin to record."""
        try:
            with undisturbed(), importing():
                self._pages = Pages(machine().process.heap())
                self._window = Window()
        except Unavailable as reason:
            sentence = str(reason)
            if sentence != ABSENT or machine().notes.is_new(sentence):
                self.notes.append(sentence)
        except Exception as reason:
            self._failed(reason)

    def end(self) -> None:
        """End the recording; what it found is read by `result`."""
        try:
            if self._window is not None:
                with undisturbed():
                    self._window.end()
        except Exception as reason:
            self._failed(reason)

    def result(self, measurement: Measurement) -> tuple[AtPeak, ...]:
        """Return the rows of "cpu", the largest first; none where nothing is known.

        Args:
            measurement: Of the scope.
        """
        try:
            if self._window is None:
                return ()
            with undisturbed():
                self._window.end()
                peak = measurement.gen.peak
                rise_bytes = peak.lo_bytes - measurement.gen.before_bytes
                most_bytes = rise_bytes + peak.precision_bytes
                found = peak_of(self._window.events, calls_of_memray(), lambda one: _counts(one, most_bytes))
                shell = current_shell() if self._shell is None else self._shell
                rows = rows_of(found, self._pages, shell)
                self.notes += _unseen(rows, rise_bytes)
                return rows
        except Unavailable as reason:
            self.notes.append(str(reason))
        except Exception as reason:
            self._failed(reason)
        finally:
            self.drop()
        return ()

    def drop(self) -> None:
        """End the recording without a result. Idempotent."""
        window, self._window, self._pages = self._window, None, None
        with suppress(Exception):
            if window is not None:
                with undisturbed():
                    window.drop()

    def _failed(self, reason: Exception) -> None:
        if is_from_a_handler(reason):
            self.drop()
            raise reason
        self.notes.append(f"{UNKNOWN}: {named(reason)}.")


def _counts(mapping: Mapping, rise_bytes: int) -> int:
    """Return for how much a mapping counts: for what is resident of it.

    Where that is unknown, as it is of one that was unmapped, for what was asked for, unless resident memory
    rose by clearly less.

    Args:
        mapping: The mapping.
        rise_bytes: The most by which resident memory may have risen.
    """
    if mapping.size_bytes == ARENA_BYTES:  # small objects use all of it
        return mapping.size_bytes
    if mapping.ranges and sys.platform == "linux":
        return page_table_bytes(mapping.ranges)
    return mapping.size_bytes if _MOST_OF_IT * mapping.size_bytes <= rise_bytes else 0


def _unseen(rows: Sequence[AtPeak], rise_bytes: int) -> list[str]:
    """Return a sentence if general RAM rose by clearly more than the rows have."""
    seen_bytes = sum(row.size_bytes if row.resident_bytes is None else row.resident_bytes for row in rows)
    unseen_bytes = rise_bytes - seen_bytes
    if unseen_bytes < max(_UNSEEN_BYTES, _UNSEEN * rise_bytes):
        return []
    rise, unseen = (f"{rounded_mb(size_bytes)} MB" for size_bytes in (rise_bytes, unseen_bytes))
    sentence = (
        f"Of the {rise} by which general RAM rose to its peak, {unseen} are not in the table: memray does not"
        " see the code of libraries, nor what ctypes allocates."
    )
    return [sentence]
