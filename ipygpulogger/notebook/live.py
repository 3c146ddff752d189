"""The live display of a long cell: time, consumed, peaked and used so far.

It is renewed when a figure changed, at most once a second; where none did, the time is renewed every five.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..engine.machine import machine
from ..engine.sampler import Sampler
from ..render import text
from ..runtime import clock
from ..sources.system.ram_limit import least
from .enrichers import left_note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..engine.scope import Scope
    from ..records import Measurement
    from ..sources.system.ram_limit import MemoryLimit
    from .live_display import LiveDisplay

AFTER_S = 2.0  # a shorter cell is not shown while it runs
EVERY_S = 1.0
_TIME_ALONE = 5  # times as long: how often figures that are still the same are shown with the time
_RISES = 2  # little RAM is left if that would last for so many rises as since the figures were last shown


class Live:
    """The running cells of one logger; those that last are shown while they run, with the `remarks` on them.

    Its one thread sleeps between cells, and a short cell never wakes it.
    """

    def __init__(self, remarks: Callable[[Measurement], tuple[str, ...]]) -> None:
        self.remarks = remarks
        self._renew()

    def _renew(self) -> None:
        self._pid = os.getpid()
        self.running: dict[LiveCell, None] = {}  # in the order in which they began
        self.ticker = Sampler(partial(_tick, self.running), AFTER_S, EVERY_S, "ipygpulogger live")

    def cell(self, label: str, scope: Scope, place: LiveDisplay) -> LiveCell:
        """Prepare to show a cell, if it lasts; nothing happens before it begins."""
        if self._pid != os.getpid():  # in a fork's child: the thread is the parent's, and a lock may be taken
            self._renew()
        return LiveCell(self, label, scope, place)

    def close(self) -> None:
        """End the thread."""
        if self._pid == os.getpid():
            self.ticker.close()


def _tick(running: Iterable[LiveCell]) -> None:
    now_s = clock.monotonic_s()
    for cell in tuple(running):
        if cell.shows and now_s - cell.began_s >= AFTER_S:
            with suppress(Exception):  # closed meanwhile, or nowhere to write: the report will tell
                cell.show()


class LiveCell:
    """One running cell that is shown if it lasts; after an interrupt, every step may be called again."""

    def __init__(self, live: Live, label: str, scope: Scope, place: LiveDisplay) -> None:
        self._live, self._label, self._scope, self._place = live, label, scope, place
        self._pid = os.getpid()
        self._stopped = False
        self.shows = place.shows  # if not, it only follows the cell's output
        self.began_s = 0.0
        self.tightest: MemoryLimit | None = (
            None  # the limit with the least RAM left so far, if that was little
        )
        self._used_bytes: int | None = None  # of RAM, when it was last read
        self._shown, self._shown_s = "", 0.0  # the figures that stand at the place, and when they came

    def begin(self) -> None:
        """Begin; without a thread the cell is not shown."""
        self.began_s = clock.monotonic_s()
        self._live.running[self] = None
        self._place.begin()
        if self.shows and not self._live.ticker.start(self):
            self.drop()

    def show(self) -> None:
        """Show the figures so far; children that come and go within the cell are seen here."""
        if machine().process.has_children():
            machine().child_peaks.observe()
        so_far = self._scope.so_far(self._label)
        used_bytes, notes = so_far.gen.after_bytes, self._live.remarks(so_far)
        rise_bytes = 0 if self._used_bytes is None else used_bytes - self._used_bytes
        self._used_bytes = used_bytes
        limit = machine().limits.short(_RISES * rise_bytes, 0)
        if limit is not None:  # said before Linux kills the process, for afterwards nothing can be said
            if limit.is_scarce:
                self.tightest = least(filter(None, (self.tightest, limit)))
            notes += (left_note(limit),)
        so_far = replace(so_far, notes=notes)
        figures = text.so_far(replace(so_far, time_s=0.0))
        if figures != self._shown or so_far.time_s - self._shown_s >= _TIME_ALONE * EVERY_S:
            stays = self._place.show(so_far)
            self._shown, self._shown_s = figures if stays else "", so_far.time_s

    def end(self) -> None:
        """Stop showing figures, because the cell's code has ended."""
        self._stop(self._place.end)

    def drop(self) -> None:
        """Remove what was shown; if the cell still runs, it is shown no longer."""
        self._stop()
        if self._stopped:
            self._place.clear()
        self._stopped = False

    def _stop(self, *steps: Callable[[], None]) -> None:
        if self not in self._live.running:
            return
        if self._pid == os.getpid():
            self._stopped = True
            for step in steps:
                step()
            self._live.ticker.stop(self)
        self._live.running.pop(self, None)  # last: if this is interrupted, the next call ends it


def display_for(shell: Any, report: str) -> LiveDisplay | None:
    """Return what can show a running cell of this shell, with this kind of report; None outside a kernel."""
    if report == "none" or getattr(shell, "kernel", None) is None:
        return None
    from .live_display import LiveDisplay

    publisher = shell.display_pub
    seen = getattr(publisher, "session", None) is not None and hasattr(publisher, "parent_header")
    return LiveDisplay(publisher, shows=report == "rich") if seen else None
