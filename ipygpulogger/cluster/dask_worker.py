"""What runs in Dask's workers: the measurement of each task.

``WorkerPlugin.transition`` is the public place where a worker tells that a task begins and ends. It is called
on the thread of the worker's event loop: just before it hands the task to a thread, and when the event loop
has heard that the task ended and has stored the result. So no peak of the task is missed, and the measurement
spans a little more than the task: the way to its thread and back, about a millisecond, and the reading of
inputs that were spilled to disk. What the event loop itself does meanwhile is in the figures too. A worker
with one thread hears of the end of a task before it begins the next.

Nothing here raises or waits. Records leave with ``Worker.log_event``, in few and small events, because the
scheduler keeps the last thousand of each topic.
"""

from __future__ import annotations

import os
import socket
import zlib
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..blocks.measure import Measure, measure
from ..records.note import Note, NoteKind
from ..records.process import Process, ProcessRecord
from ..runtime import clock
from .arrivals import MOST_BYTES, Largest, most_needed_bytes, packed

if TYPE_CHECKING:
    from contextvars import Context

    from ..records import Measurement
    from ..records.cell_record import Status

BATCH = 64  # records of one event
BATCH_BYTES = 1 << 14  # of one event, compressed: a thousand of them are 16 MB on the scheduler
EVERY_S = 0.05  # between two events of one worker, once it has sent so many:
AT_ONCE = 8
_WAITING = 512  # records that wait for the next event, or twice as many; the small ones are only counted
_NAME = 120  # characters of a task's name, and of its label

# A task that is cancelled runs on: its worker calls it "released" at once, and in the end takes it from
# "cancelled" to one of these.
_ENDS = frozenset(("memory", "error", "rescheduled", "forgotten"))


class _Task(NamedTuple):
    """A task that runs: its measurement, and the context variables in which that was entered."""

    measured: Measure
    context: Context


class _Ended(NamedTuple):
    """A task that ended, and has not been sent."""

    measurement: Measurement
    key: Any
    status: Status
    error: str | None


class Tasks:
    """Measures the tasks of one worker. All of it runs on the thread of the worker's event loop."""

    def __init__(self, worker: Any, topic: str, notebook: tuple[str, int]) -> None:
        """Begin; the first measurement of a process, which imports and looks for much, is made here.

        Events are logged under the topic. The notebook is its host and process id.
        """
        self._worker, self._topic = worker, topic
        self._here = socket.gethostname(), os.getpid()
        self._notes: tuple[str, ...] = ()
        if self._here == notebook:
            said = "shared with the notebook: the worker is a thread of its process"
            self._notes = (Note(NoteKind.SHARED_WITH_NOTEBOOK, said),)
        self.name = worker_name(str(worker.name))
        self._open: dict[Any, _Task] = {}
        self._begin_event()
        self._at_once = float(AT_ONCE)
        self._counted_s = clock.monotonic_s()
        self._timer: object | None = None
        self._number = int(clock.utc_now().timestamp() * 1e6)  # those of a later plugin are higher
        with measure("warm up"):
            pass
        self._log({"host": self._here[0], "pid": self._here[1]})

    def _begin_event(self) -> None:
        self._ended: Largest[_Ended] = Largest(_WAITING)
        self._unmeasured = 0

    def transition(self, key: Any, start: str, finish: str) -> None:
        """Follow a task from one state to another."""
        if finish == "executing" and key not in self._open:
            task = _Task(Measure(str(key)[:_NAME], among="task"), copy_context())
            self._open[key] = task
            # In a context of its own: that of the event loop would remember each measurement it entered.
            task.context.run(task.measured.__enter__)
        elif key in self._open and finish in _ENDS:
            cancelled = start in ("cancelled", "released") or finish == "rescheduled"
            self._end(key, "interrupted" if cancelled else "error" if finish == "error" else "ok")

    def _end(self, key: Any, status: Status) -> None:
        task = self._open.pop(key)
        task.context.run(task.measured.__exit__, None, None, None)
        if (measured := task.measured.last) is None:
            self._unmeasured += 1
        else:
            error = self._error(key) if status == "error" else None
            self._ended.add(most_needed_bytes(measured), _Ended(measured, key, status, error))
        self._refill()
        if self._at_once >= 1 and self._timer is None:  # so that it arrives before the task's result
            self.send()
        else:  # of very many tasks, now and then
            self._send_later()

    def _packed(self, ended: _Ended) -> bytes:
        host, pid = self._here
        process = Process(host, pid, worker=self.name, task=readable(ended.key))
        record = ProcessRecord.of(ended.measurement, process)
        notes = (*record.notes, *self._notes)
        return packed(replace(record, status=ended.status, error=ended.error, notes=notes))

    def _error(self, key: Any) -> str:
        """Return the name of the exception type that ended a task, from the text that the worker keeps."""
        task = self._worker.state.tasks.get(key)
        return (getattr(task, "exception_text", "") or "Exception").partition("(")[0][:_NAME]

    def _send_later(self) -> None:
        def fire() -> None:
            self._timer = None
            self._refill()
            self.send()

        if self._timer is None:
            self._timer = self._worker.loop.call_later(EVERY_S, fire)

    def _refill(self) -> None:
        now_s = clock.monotonic_s()
        self._at_once = min(AT_ONCE, self._at_once + (now_s - self._counted_s) / EVERY_S)
        self._counted_s = now_s

    def send(self) -> None:
        """Send the tasks that have ended since the last event, and say whether another event follows.

        One follows if the next task to end could not be sent at once. So a client that waits for a
        task need not guess for how long.
        """
        self._at_once -= 1
        kept = self._ended.keep(BATCH)
        follows = bool(kept) and self._at_once < 1
        while len(records := compressed(list(map(self._packed, kept)))) > BATCH_BYTES:
            kept = self._ended.keep(len(kept) // 2)
        message = {"records": records, "more": self._ended.more, "more_bytes": self._ended.more_bytes}
        message |= {"unmeasured": self._unmeasured, "follows": follows}
        self._begin_event()
        self._log(message)
        if follows:
            self._send_later()

    def _log(self, message: dict[str, Any]) -> None:
        self._number += 1
        self._worker.log_event(self._topic, {"name": self.name, "number": self._number, **message})

    def close(self) -> None:
        """Stop measuring. A worker that closes interrupts what it runs; elsewhere no record is sent of it."""
        timer, self._timer = self._timer, object()  # no event of a plugin that is removed follows
        if timer is not None:
            self._worker.loop.remove_timeout(timer)
        if getattr(getattr(self._worker, "status", None), "name", "") == "closing":
            for key in list(self._open):
                self._end(key, "interrupted")
        if timer is not None or len(self._ended):
            self.send()
        for key in list(self._open):
            task = self._open.pop(key)
            task.context.run(task.measured.__exit__, None, None, None)


def worker_name(name: str) -> str:
    """Return what a reader calls a worker: "worker 0" if its name is a number, else its name or address."""
    return f"worker {name}" if name.isdigit() else name[:_NAME]


def readable(key: Any) -> str:
    """Return what a reader calls a task: its key without the hash, with the numbers of its block."""
    from dask.utils import key_split

    name = str(key_split(key))
    if isinstance(key, tuple):
        name += f"[{', '.join(map(str, key[1:]))}]"
    return name[:_NAME]


def compressed(payloads: list[bytes]) -> bytes:
    """Return packed records as one."""
    return zlib.compress(b"\n".join(payloads))


def decompressed(records: bytes) -> list[bytes]:
    """Return the packed records of an event; a ValueError if they are invalid, or too large."""
    most = BATCH * (MOST_BYTES + 1)
    unpacker = zlib.decompressobj()
    try:
        found = unpacker.decompress(records, most)
    except zlib.error as reason:
        raise ValueError(f"not compressed records: {reason}") from None
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError("more than the records of one event")
    return found.split(b"\n") if found else []
