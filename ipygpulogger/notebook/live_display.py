"""A running cell in a notebook: one display under the cell, rewritten.

What kernels really do (each has a test):

- what a thread publishes belongs to the cell that the kernel started last. On ipykernel 7 that may be another
  cell, on a subshell: so the context of our own cell is kept, and we publish in it;
- a cell may replace the kernel's publisher, as ``%%capture`` does; we keep the one that was there when the
  cell began;
- ``clear_output`` removes our display too, and an update of a display that is gone is never seen: a cell that
  clears its output is not shown while it runs, and its report is a display of its own;
- any thread may clear, a task of an earlier cell clears that cell's output, and an output widget its own.
  Only the messages that the kernel sends tell which, so they are tapped;
- ``clear_output(wait=True)`` clears when the next output comes: a new display counts, an update does not;
- printed output of a notebook cannot be taken back, so only a rich report is live there.
"""

from __future__ import annotations

import contextvars
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..render import html, text
from .tap import Taps

if TYPE_CHECKING:
    from ..records import Measurement

_OUTPUTS = ("stream", "display_data", "execute_result", "error")  # what sets off a clear that waits


class LiveDisplay:
    """One display, and what the kernel's messages say about it while the cell runs.

    A message that a hook took never reaches the session's `send`, and one that does names its cell.

    Args:
        publisher: The kernel's.
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
        self._redirects: set[Any] = set()  # the output widgets that capture the cell's output
        self._session = publisher.session
        self._taps = Taps()

    def begin(self) -> None:
        """Follow what is sent from now on."""
        self._taps.open(self._session, "send", self._sent)

    def show(self, measurement: Measurement) -> None:
        """Display the figures so far, or update the display with them."""
        bundle = {"text/plain": text.so_far(measurement), "text/html": html.so_far(measurement)}
        with self._lock:
            if not (self._ended or self._cleared or self._clears_next or self._redirects):
                self._put(bundle)

    def end(self) -> None:
        """Send no update after this."""
        with self._lock:
            self._ended = True

    def settle(self, bundle: dict[str, Any]) -> bool:
        """Update the display with the final report; return whether it was still there."""
        if (
            self._id and self._clears_next
        ):  # printed text that is still buffered may be the output that clears
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):  # none, or a closed one
                    stream.flush()
        with self._lock:
            self._taps.close()
            if not self._id or self._cleared or self._redirects:  # a widget does not take updates
                return False
            self._put(bundle)
            self._id = ""
            return True

    def clear(self) -> None:
        """Empty the display, because there is no message that removes one."""
        self.settle({"text/plain": ""})

    def _put(self, bundle: dict[str, Any]) -> None:
        update, name = bool(self._id), self._id or os.urandom(16).hex()
        self._context.run(self._publish, bundle, {}, transient={"display_id": name}, update=update)
        self._id = name

    def _sent(
        self, _: Any, message: Any, content: Any = None, parent: Any = None, *__: Any, **___: Any
    ) -> None:
        """Note what a message of the kernel's does to the display.

        A child that was forked sends nothing, and may find the lock taken.
        """
        if os.getpid() != self._pid:
            return
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
            return
        elif kind in _OUTPUTS:  # without the lock: the thread that has it may wait for just this message
            self._cleared = self._cleared or self._clears_next
        else:
            with self._lock:
                if content.get("wait"):
                    self._clears_next = True
                else:
                    self._cleared = True


def _message_id(parent: Any) -> Any:
    """Return the id of the message that asked for a cell, from that message or from its header."""
    return parent.get("header", parent).get("msg_id") if parent else None
