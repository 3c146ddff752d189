"""A long cell while it runs: how long, and what it consumed, peaked and uses so far.

What kernels and terminals really do (each has a test):

- what a thread publishes belongs to the cell that the kernel took in last, which on ipykernel 7 may be
  another one's, on a subshell: the context of the cell itself is kept, and published in;
- a cell may put another publisher in the place of the kernel's, as ``%%capture`` does; ours is the one
  that was there when the cell began;
- ``clear_output`` takes our display away too, and an update of what is no longer there is never seen:
  a cell that clears its output is not shown while it runs, and its report is a display of its own;
- any thread may clear, a task of an earlier cell clears that one's output, and an output widget its own:
  only what the kernel sends tells, so that is what is watched;
- ``clear_output(wait=True)`` clears when the next output comes; an update is none, a display is one;
- printed output of a notebook cannot be taken back, so only a rich report is live there;
- in a terminal nothing takes back words that have scrolled: ours stand in the cursor's line, at the right,
  while the cell has written nothing.
"""

from __future__ import annotations

import contextvars
import os
import shutil
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..engine.sampler import Sampler
from ..render import html, text
from ..runtime import clock
from ..runtime.signals import is_from_a_handler

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..engine.scope import Scope
    from ..records import Measurement
    from .cell_events import Cell

AFTER_S = 2.0  # a shorter cell is not shown while it runs
EVERY_S = 1.0
_OUTPUTS = ("stream", "display_data", "execute_result", "error")  # what sets off a clear that waits


class Place(Protocol):
    """Where a running cell is shown; each step may be done again, should it have been interrupted."""

    def begin(self) -> None:
        """From now on notice what else is written there."""

    def show(self, measurement: Measurement) -> None:
        """How it stands so far; called in a thread of ours."""

    def end(self) -> None:
        """From now on nothing is shown."""

    def settle(self, bundle: dict[str, Any]) -> bool:
        """Put the final report in the place of the last; False where there is none to replace."""

    def clear(self) -> None:
        """There will be no final report: take away what was shown."""


class _Tap:
    """Stands in for a method of one object and tells the ears of its calls, whichever thread calls.

    Ears hear before the call is made. With the last of them the method is as it was.
    """

    lock = threading.RLock()  # of all taps

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name
        self._was = vars(owner).get(name)  # None: the method of its class
        self.call = getattr(owner, name)
        self._ears: list[Callable[..., object]] = []

    @classmethod
    def of(cls, owner: Any, name: str) -> _Tap:
        """The one that is there, or a new one, which stands in for nothing before it is opened."""
        tap = vars(owner).get(name)
        return tap if isinstance(tap, cls) else cls(owner, name)

    def open(self, ear: Callable[..., object]) -> None:
        """Let one more ear hear."""
        with self.lock:
            self._ears.append(ear)
            if vars(self._owner).get(self._name) is not self:
                setattr(self._owner, self._name, self)

    def close(self, ear: Callable[..., object]) -> None:
        """One ear less."""
        with self.lock:
            if ear in self._ears:
                self._ears.remove(ear)
            if not self._ears and vars(self._owner).get(self._name) is self:
                if self._was is None:
                    delattr(self._owner, self._name)
                else:
                    setattr(self._owner, self._name, self._was)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for ear in tuple(self._ears):
            with suppress(Exception):  # the call is the user's
                ear(*args, **kwargs)
        return self.call(*args, **kwargs)


def _tap(owner: Any, name: str, ear: Callable[..., object], taps: list[_Tap]) -> None:
    """Let an ear hear; the tap is known to whoever will close it before it is open."""
    with _Tap.lock:
        tap = _Tap.of(owner, name)
        taps.append(tap)
        tap.open(ear)


def _untapped(owner: Any, name: str) -> Any:
    """The method that nobody hears being called."""
    method = getattr(owner, name)
    return method.call if isinstance(method, _Tap) else method


class Display:
    """One display under the cell in a notebook, rewritten.

    All that the kernel sends passes by here while the cell runs: what a hook took never does, and what
    does tells which cell it is for.
    """

    def __init__(self, publisher: Any) -> None:
        self._publish = publisher.publish
        self._context = contextvars.copy_context()  # knows the cell as the parent of what it publishes
        self._cell = _message_id(publisher.parent_header)
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._id = ""  # of the display, once it is there
        self._ended = self._cleared = False
        self._clears_next = False  # `clear_output(wait=True)`: the cell's next output clears
        self._redirects: set[Any] = set()  # the output widgets that take what the cell puts out
        self._session = publisher.session
        self._taps: list[_Tap] = []

    def begin(self) -> None:
        """Hear what is sent."""
        _tap(self._session, "send", self._hears, self._taps)

    def show(self, measurement: Measurement) -> None:
        """Display it, or update the display."""
        bundle = {"text/plain": text.so_far(measurement), "text/html": html.so_far(measurement)}
        with self._lock:
            if not (self._ended or self._cleared or self._clears_next or self._redirects):
                self._put(bundle)

    def end(self) -> None:
        """No update comes after this."""
        with self._lock:
            self._ended = True

    def settle(self, bundle: dict[str, Any]) -> bool:
        """Update the display with the final report, if it is still there."""
        if self._id and self._clears_next:  # printed words that still wait may be the output that clears
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):  # none, or a closed one
                    stream.flush()
        with self._lock:
            for tap in self._taps:
                tap.close(self._hears)
            if not self._id or self._cleared or self._redirects:  # a widget does not take updates
                return False
            self._put(bundle)
            self._id = ""
            return True

    def clear(self) -> None:
        """Leave an empty display: no message takes one away."""
        self.settle({"text/plain": ""})

    def _put(self, bundle: dict[str, Any]) -> None:
        update, name = bool(self._id), self._id or os.urandom(16).hex()
        self._context.run(self._publish, bundle, {}, transient={"display_id": name}, update=update)
        self._id = name

    def _hears(
        self, _: Any, message: Any, content: Any = None, parent: Any = None, *__: Any, **___: Any
    ) -> None:
        """The kernel sends this; a child that was forked sends nothing, and may find the lock taken."""
        if os.getpid() != self._pid:
            return
        if isinstance(message, str):
            kind = message
        else:
            kind, content, parent = message["msg_type"], message["content"], message["parent_header"]
        if kind in ("comm_open", "comm_msg"):
            state = content["data"].get("state", {})
            if "msg_id" in state:  # the output widget that begins or ends to take a cell's output
                with self._lock:
                    change = self._redirects.add if state["msg_id"] == self._cell else self._redirects.discard
                    change(content["comm_id"])
        elif kind not in ("clear_output", *_OUTPUTS) or self._redirects or _message_id(parent) != self._cell:
            return
        elif kind in _OUTPUTS:  # without the lock: who holds it may wait for just this to be sent
            self._cleared = self._cleared or self._clears_next
        else:
            with self._lock:
                if content.get("wait"):
                    self._clears_next = True
                else:
                    self._cleared = True


def _message_id(parent: Any) -> Any:
    """The id of the message that asked for a cell, by that message or by its header."""
    return parent.get("header", parent).get("msg_id") if parent else None


class Line:
    """The right end of the line in which the cursor of a terminal stands, rewritten.

    Once the cell writes, asks for input or starts a command with ``!``, it is wiped out for good.
    """

    def __init__(self, shell: Any) -> None:
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._column = 0  # where ours begins; 0: nowhere
        self._ended = False
        self._write, self._flush = _untapped(sys.stdout, "write"), _untapped(sys.stdout, "flush")
        self._tapped = (*product((sys.stdout, sys.stderr), ("write", "flush")), (shell, "system"))
        self._taps: list[_Tap] = []

    def begin(self) -> None:
        """Hear what is written."""
        for owner, name in self._tapped:
            if hasattr(owner, name):
                _tap(owner, name, self._hears, self._taps)

    def show(self, measurement: Measurement) -> None:
        """Write it over the last one."""
        columns = shutil.get_terminal_size().columns
        words = text.so_far(measurement)[: max(0, columns - 1)]
        with self._lock:
            if not self._ended:
                column = columns - len(words)
                self._put(f"\x1b[{min(column, self._column or column)}G\x1b[K\x1b[{column}G{words}")
                self._column = column

    def end(self) -> None:
        """Wipe it out."""
        with self._lock:
            self._ended = True
            for tap in self._taps:
                tap.close(self._hears)
            if self._column:
                column, self._column = self._column, 0
                self._put(f"\x1b[{column}G\x1b[K")

    def settle(self, _: dict[str, Any]) -> bool:
        """The report is printed as ever."""
        return False

    def clear(self) -> None:
        """Wiped out already."""

    def _put(self, words: str) -> None:
        with suppress(OSError, ValueError):  # the terminal is gone
            self._write(f"\x1b7{words}\x1b8")  # the cursor goes back to where the cell left it
            self._flush()

    def _hears(self, *_: object, **__: object) -> None:
        """Something may move the cursor now; in a child that was forked the lock may be taken."""
        if os.getpid() == self._pid:
            self.end()


class _Running(NamedTuple):
    label: str
    scope: Scope
    place: Place
    began_s: float


class Live:
    """The running cells of one logger; those that last are shown while they run.

    Its one thread sleeps between cells, and a short cell never wakes it.
    """

    def __init__(self, remarks: Callable[[Measurement], tuple[str, ...]]) -> None:
        """Prepare; no thread is made before a cell begins.

        Args:
            remarks: What there is to say of a cell that stands so.
        """
        self._remarks = remarks
        self._renew()

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._running: dict[Cell, _Running] = {}
        self._ended: dict[Cell, Place] = {}
        self._ticker = Sampler(self._tick, AFTER_S, EVERY_S, "ipygpulogger live")

    def begin(self, cell: Cell, scope: Scope, place: Place) -> None:
        """A cell begins.

        Args:
            cell: The cell.
            scope: What measures it, which may open later.
            place: Where it is shown, if it lasts.
        """
        if self._pid != os.getpid():  # a fork's child: its parent's thread is not there, nor let go of a lock
            self._renew()
        label = "The cell" if cell.execution_count is None else f"In [{cell.execution_count}]"
        self._running[cell] = _Running(label, scope, place, clock.monotonic_s())
        try:
            place.begin()
        except Exception as error:  # a stream that cannot be watched
            if is_from_a_handler(error):
                raise
            self.drop(cell)
        else:
            if not self._ticker.start(cell):
                self.drop(cell)

    def end(self, cell: Cell) -> None:
        """The cell has ended: nothing is shown any longer."""
        running = self._running.get(cell)
        if running is None:
            return
        if self._pid == os.getpid():
            self._ended[cell] = running.place
            running.place.end()
            self._ticker.stop(cell)
        self._running.pop(cell, None)  # last: until then whoever asks ends it again

    def settle(self, cell: Cell, bundle: dict[str, Any]) -> bool:
        """Put the report in the place of what was shown; False where nothing was, or it is gone."""
        place = self._ended.get(cell)
        return place is not None and place.settle(bundle)

    def drop(self, cell: Cell) -> None:
        """Forget the cell; what was shown and did not settle is taken away."""
        self.end(cell)
        place = self._ended.get(cell)
        if place is not None:
            place.clear()
        self._ended.pop(cell, None)

    def close(self) -> None:
        """Forget every cell, and end the thread."""
        for cell in (*self._running, *self._ended):
            self.drop(cell)
        if self._pid == os.getpid():
            self._ticker.close()

    def _tick(self) -> None:
        now_s = clock.monotonic_s()
        for running in tuple(self._running.values()):
            if now_s - running.began_s >= AFTER_S:
                with suppress(Exception):  # closed meanwhile, or nowhere to write: the report will tell
                    so_far = running.scope.so_far(running.label)
                    running.place.show(replace(so_far, notes=self._remarks(so_far)))


def place_for(shell: Any, report: str) -> Place | None:
    """Where this shell can show a running cell, with this kind of report; None: nowhere."""
    if report == "none":
        return None
    if getattr(shell, "kernel", None) is not None:
        publisher = shell.display_pub
        seen = getattr(publisher, "session", None) is not None and hasattr(publisher, "parent_header")
        return Display(publisher) if seen and report == "rich" else None
    try:
        can_rewrite = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        return Line(shell) if can_rewrite else None
    except Exception as error:  # no stream, a closed or broken one
        if is_from_a_handler(error):
            raise
        return None
