"""The live display of a long cell: time, what is used, and the highest so far.

It is renewed when a figure changed, at most once a second; where none did, the time is renewed every five.

What kernels and front ends really do (each has a test):

- what a thread publishes belongs to the cell that the kernel started last, and a cell may replace the
  kernel's publisher: so the context and the publisher of our own cell's beginning are kept;
- no message removes a display. One whose only content is an empty ``text/html`` has no height;
- a display between two pieces of one printed line, such as a progress bar, would cut the line in two for
  good: so it waits until the cell's output ends with a whole line;
- ``clear_output`` removes our display too. Any thread may clear, and an output widget its own output: only
  the messages that the kernel sends tell which, so they are tapped. Such a cell is shown no more;
- ``clear_output(wait=True)`` clears when the next output comes. At the end of a cell that would be our
  report, printed or rich: so the message is withheld until the cell's own next output.
"""

from __future__ import annotations

import contextvars
import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..engine.machine import machine
from ..engine.sampler import DELAY_S, Sampler
from ..render import text
from ..runtime import clock
from ..runtime.errors import is_from_a_handler
from ..sources.system.ram_limit import MemoryLimit, least
from .enrichers import left_note
from .options import SILENT

if TYPE_CHECKING:
    from ..engine.scope import Scope
    from ..records import Measurement
    from .panel import Panel

AFTER_S = 2.0  # a shorter cell is not shown while it runs
EVERY_S = 1.0
_TIME_ALONE_S = 5.0  # how often figures that are still the same are shown with the time


class Live:
    """The running cells of one logger; those that last are shown while they run, with the `remarks` on them.

    Its one thread sleeps between cells, and samples RAM for those that last a tenth of a second.
    """

    def __init__(self, remarks: Callable[[Measurement], tuple[str, ...]]) -> None:
        self.remarks = remarks
        self.pid: int = os.getpid()
        self.running: dict[LiveCell, None] = {}  # in the order in which they began
        self.panel: Panel | None = None  # is told the figures, too
        tick, delay_s, period_s = partial(_tick, self.running), min(AFTER_S, DELAY_S), min(EVERY_S, DELAY_S)
        self.ticker: Sampler = Sampler(tick, delay_s, period_s, "ipygpulogger live")

    def cell(self, label: str, scope: Scope, place: LiveDisplay) -> LiveCell | None:
        """Prepare to show a cell, if it lasts; None in a forked child, whose parent has the thread."""
        return LiveCell(self, label, scope, place) if self.pid == os.getpid() else None

    def close(self) -> None:
        """End the thread."""
        if self.pid == os.getpid():
            self.ticker.close()


def _tick(running: Iterable[LiveCell]) -> None:
    for cell in tuple(running):
        if cell.shows:
            with suppress(Exception):  # closed meanwhile, or nowhere to write: the report will tell
                cell.tick(clock.monotonic_s())


class LiveCell:
    """One running cell that is shown if it lasts; after an interrupt, every step may be called again."""

    def __init__(self, live: Live, label: str, scope: Scope, place: LiveDisplay) -> None:
        self._live, self._label, self._scope, self._place = live, label, scope, place
        self._stopped = False
        self.shows: bool = place.shows or live.panel is not None  # if not, it only follows the cell's output
        self.began_s: float = 0.0
        self._due_s = 0.0  # when to show the figures next
        self.tightest: MemoryLimit | None = None  # that with the least RAM left so far, if it was little
        self._shown, self._shown_s = "", 0.0  # the figures that are displayed, and when they were

    def begin(self) -> None:
        """Begin; without a thread the cell is not shown."""
        self.began_s = clock.monotonic_s()
        self._live.running[self] = None
        self._place.begin()
        if self.shows and not self._live.ticker.start(self):
            self.drop()

    def tick(self, now_s: float) -> None:
        """Sample for the time series, and show the figures once a second, if the cell lasts."""
        if now_s - self.began_s >= AFTER_S and now_s >= self._due_s:
            self._due_s = now_s + EVERY_S
            self.show()
        else:
            self._scope.sample()

    def show(self) -> None:
        """Show the figures so far; children that come and go within the cell are seen here."""
        if machine().process.has_children():
            machine().child_peaks.observe()
        so_far = self._scope.so_far(self._label)
        notes, limit = self._live.remarks(so_far), machine().limits.short(0, 0)
        if limit is not None:  # said before Linux kills the process, for afterwards nothing can be said
            self.tightest = least(filter(None, (self.tightest, limit)))
            notes += (left_note(limit),)
        if self._live.panel is not None:
            self._live.panel.runs(so_far)
        if not self._place.shows:
            return
        so_far = replace(so_far, notes=notes)
        figures = text.so_far(replace(so_far, time_s=0.0))
        if figures != self._shown or so_far.time_s - self._shown_s >= _TIME_ALONE_S:
            is_there = self._place.show(so_far)
            self._shown, self._shown_s = figures if is_there else "", so_far.time_s

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
        if self._live.pid == os.getpid():
            self._stopped = True
            for step in steps:
                step()
            self._live.ticker.stop(self)
        self._live.running.pop(self, None)  # last: if this is interrupted, the next call ends it


def display_for(shell: Any, report: str) -> LiveDisplay | None:
    """Return what can show a running cell of this shell, with this kind of report; None where nothing can."""
    if report in SILENT or getattr(shell, "kernel", None) is None:
        return None
    publisher = shell.display_pub
    session = getattr(publisher, "session", None)
    if session is None or not hasattr(publisher, "parent_header"):
        return None
    return None if _is_taken(session) else LiveDisplay(publisher, shows=report == "rich")


def _is_taken(session: Any) -> bool:
    """Return whether the display of another logger, or of a cell on another thread, follows what is sent."""
    return isinstance(getattr(vars(session).get("send"), "__self__", None), LiveDisplay)


_OUTPUTS = ("stream", "display_data", "execute_result", "error")  # what sets off a clear that waits
_EMPTY = {"text/html": ""}
_beginning = threading.Lock()  # of two cells that begin at the same time, the second one has no display


class LiveDisplay:
    """One display, and what the kernel's messages say about it while the cell runs.

    Where it does not show figures, it only keeps a clear that waits from the report.
    """

    def __init__(self, publisher: Any, *, shows: bool = True) -> None:
        self.shows = shows
        self._publish = publisher.publish
        self._context = contextvars.copy_context()  # knows the cell as the parent of what it publishes
        self._cell, self._pid = _message_id(publisher.parent_header), os.getpid()
        self._lock, self._id = threading.RLock(), "ipygpulogger-" + os.urandom(16).hex()
        self._is_there = False
        self._ended = self._cleared = False
        self._within_line = False  # the cell's last output is text without a newline at its end
        self._clears: list[tuple[tuple[Any, ...], dict[str, Any]]] = []  # the withheld clear, as it was sent
        self._clearing = threading.RLock()
        self._redirects: set[Any] = set()  # the output widgets that capture the cell's output
        self._session = publisher.session
        self._other_send: Any = None  # the `send` that another tool has patched into the session
        self._send_on: Callable[..., Any] = publisher.session.send

    def begin(self) -> None:
        """Follow what is sent from now on."""
        with _beginning:
            self._ended = _is_taken(self._session)
            if not self._ended:
                self._other_send, self._send_on = vars(self._session).get("send"), self._session.send
                # The bound method is not kept: without a reference cycle the context goes with the cell.
                self._session.send = self._send

    def show(self, measurement: Measurement) -> bool:
        """Display the figures so far, or update the display with them; return whether they are there."""
        from ..render import html  # a rich report has loaded it

        bundle = {"text/plain": text.so_far(measurement), "text/html": html.so_far(measurement)}
        with self._lock:
            if self._ended or self._cleared or self._clears or self._redirects:
                return False
            self._put(bundle)
            return self._is_there

    def end(self) -> None:
        """Send no update after this; a clear that still waits when all is printed will clear nothing."""
        if self._clears:  # printed text that is still buffered may be the output that clears
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):  # none, or a closed one
                    stream.flush()
        with self._lock, self._clearing:
            self._ended = True
            self._clears.clear()

    def clear(self) -> None:
        """Empty the display; send the clear that waits, if the cell goes on."""
        with self._lock:
            self._ended = True
            try:
                if self._is_there and not self._cleared and not self._redirects:  # a widget takes no updates
                    self._put(_EMPTY)
            except Exception as error:  # the report will tell whether anything can be displayed
                if is_from_a_handler(error):
                    raise
            self._is_there = False
            self._send_clear()
            if getattr(vars(self._session).get("send"), "__self__", None) is self:
                if self._other_send is None:
                    del self._session.send
                else:
                    self._session.send = self._other_send

    def _put(self, bundle: dict[str, Any]) -> None:
        transient, update = {"display_id": self._id}, self._is_there
        self._context.run(self._publish, bundle, {}, transient=transient, update=update)

    def _send(self, *args: Any, **kwargs: Any) -> Any:
        """Take the place of the session's method: send a message, unless it must wait."""
        withheld = False
        with suppress(Exception):  # the call is the user's
            withheld = self._sent(*args, **kwargs)
        return None if withheld else self._send_on(*args, **kwargs)

    def _sent(
        self, stream: Any, message: Any, content: Any = None, parent: Any = None, *more: Any, **named: Any
    ) -> bool:
        """Note what a message of the kernel's does to the display; return whether it must not be sent."""
        if os.getpid() != self._pid:  # a forked child sends nothing, and may find a lock taken
            return False
        sent = (stream, message, content, parent, *more), named
        if isinstance(message, str):
            kind = message
        else:
            kind, content, parent = message["msg_type"], message["content"], message["parent_header"]
        if kind in ("comm_open", "comm_msg"):
            state = content["data"].get("state", {})
            if "msg_id" in state:  # an output widget begins, or ends, to capture a cell's output
                with self._lock:
                    change = self._redirects.add if state["msg_id"] == self._cell else self._redirects.discard
                    change(content["comm_id"])
        elif kind not in ("clear_output", *_OUTPUTS) or self._redirects or _message_id(parent) != self._cell:
            return False
        elif kind in _OUTPUTS:
            return self._output(kind, content)
        elif not content.get("wait"):
            self._cleared = True
            self._clears.clear()
        else:
            with self._clearing:
                if not self._ended:
                    self._clears[:] = [sent]
                    return True
        return False

    def _output(self, kind: str, content: Any) -> bool:
        """Note an output of the cell; return whether it must not be sent.

        Not under the lock of `show`: the thread that has it may wait for just this output to be sent.
        """
        name = content.get("transient", {}).get("display_id") or ""
        if name == self._id:  # ours, for the first time
            self._is_there = not self._within_line
            return self._within_line
        self._send_clear()
        self._within_line = kind == "stream" and content["text"][-1:] not in ("", "\n")
        return False

    def _send_clear(self) -> None:
        """Send the clear that waits; no output overtakes it."""
        with self._clearing:
            while self._clears:
                self._cleared = True
                sent, named = self._clears.pop()
                self._send_on(*sent, **named)


def _message_id(parent: Any) -> Any:
    """Return the id of the message that asked for a cell, from that message or from its header."""
    return parent.get("header", parent).get("msg_id") if parent else None
