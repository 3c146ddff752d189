"""The tasks of one Dask worker, measured where they run: what the plugin of `dask` does on each worker.

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
from ..blocks.overlaps import overlaps_of
from ..records.measurement import SHARED
from ..records.process import Process, ProcessRecord
from ..runtime import clock
from .arrivals import MOST_BYTES, most_needed_bytes, packed

if TYPE_CHECKING:
    from contextvars import Context

    from ..records import Measurement
    from ..records.cell_record import Status

BATCH = 64  # records of one event
BATCH_BYTES = 1 << 14  # of one event, compressed: a thousand of them are 16 MB on the scheduler
EVERY_S = 0.05  # between two events of one worker, once it has sent so many:
AT_ONCE = 8
_HELD = 1024  # measurements that wait for the next event; beyond that the small ones are only counted
_NAME = 120  # characters of a task's name, and of its label

# A task that is cancelled runs on: its worker calls it "released" at once, and in the end takes it from
# "cancelled" to one of these.
_ENDS = frozenset(("memory", "error", "rescheduled", "forgotten"))

_running = overlaps_of("task")  # also of several workers that are threads of one process


class _Task(NamedTuple):
    """A task that runs: its measurement, and the context variables in which that was entered."""

    measured: Measure
    context: Context


class _Ended(NamedTuple):
    """A task that ended, and has not been sent."""

    needed_bytes: int
    measurement: Measurement
    key: Any
    status: Status
    error: str | None


class Tasks:
    """Measures the tasks of one worker. All of it runs on the thread of the worker's event loop."""

    def __init__(self, worker: Any, topic: str, notebook: tuple[str, int]) -> None:
        """Begin; the first measurement of a process, which imports and looks for much, is made here.

        Args:
            worker: The ``distributed.Worker``.
            topic: Under which its events are logged.
            notebook: The host and process id of the notebook.
        """
        self._worker, self._topic = worker, topic
        self._here = socket.gethostname(), os.getpid()
        self._notes: tuple[str, ...] = ()
        if self._here == notebook:
            self._notes = (f"{SHARED}the notebook: the worker is a thread of its process",)
        self.name = worker_name(str(worker.name))
        self._open: dict[Any, _Task] = {}
        self._ended: list[_Ended] = []
        self._more = self._more_bytes = self._unmeasured = 0
        self._at_once = float(AT_ONCE)
        self._counted_s = clock.monotonic_s()
        self._timer: object | None = None
        self._number = int(clock.utc_now().timestamp() * 1e6)  # those of a later plugin are higher
        with measure("warm up"):
            pass
        self._send({"host": self._here[0], "pid": self._here[1]})

    def transition(self, key: Any, start: str, finish: str) -> None:
        """Follow a task from one state to another."""
        if finish == "executing":
            if key not in self._open:
                self._begin(key)
        elif key in self._open and finish in _ENDS:
            self._end(key, finish, in_vain=start in ("cancelled", "released") or finish == "rescheduled")

    def _begin(self, key: Any) -> None:
        task = _Task(Measure(str(key)[:_NAME], among=_running), copy_context())
        self._open[key] = task
        # The context is the task's own: that of the event loop would remember each measurement it entered.
        task.context.run(task.measured.__enter__)

    def _end(self, key: Any, finish: str, *, in_vain: bool) -> None:
        task = self._open.pop(key)
        task.context.run(task.measured.__exit__, None, None, None)
        if (found := task.measured.last) is None:
            self._unmeasured += 1
        else:
            failed = finish == "error" and not in_vain
            status: Status = "interrupted" if in_vain else "error" if failed else "ok"
            error = self._error(key) if failed else None
            self._ended.append(_Ended(most_needed_bytes(found), found, key, status, error))
        if len(self._ended) >= _HELD:
            self._keep(_HELD // 2)
        self._send_soon()

    def _error(self, key: Any) -> str:
        """Return the name of the exception type that ended a task, from the text that the worker keeps."""
        task = self._worker.state.tasks.get(key)
        return (getattr(task, "exception_text", "") or "Exception").partition("(")[0][:_NAME]

    def _keep(self, most: int) -> None:
        """Keep those of the ended tasks that needed the most, and count the others."""
        self._ended.sort(key=lambda ended: -ended.needed_bytes)
        if left_out := self._ended[most:]:
            self._more += len(left_out)
            self._more_bytes = max(self._more_bytes, left_out[0].needed_bytes)
            del self._ended[most:]

    def _send_soon(self) -> None:
        """Send at once, so that it arrives before the task's result; of very many tasks, now and then."""
        self._refill()
        if self._at_once >= 1 and self._timer is None:
            self.send()
        elif self._timer is None:
            self._timer = self._worker.loop.call_later(EVERY_S, self._send_later)

    def _send_later(self) -> None:
        self._timer = None
        self._refill()
        self.send()

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
        follows = bool(self._ended) and self._at_once < 1
        self._keep(BATCH)
        payloads = [packed(self._record(ended)) for ended in self._ended]
        while len(records := compressed(payloads)) > BATCH_BYTES:
            self._keep(len(payloads) // 2)
            del payloads[len(self._ended) :]
        message = {"records": records, "more": self._more, "more_bytes": self._more_bytes}
        message |= {"unmeasured": self._unmeasured, "follows": follows}
        self._more = self._more_bytes = self._unmeasured = 0
        self._ended = []
        self._send(message)
        if follows and self._timer is None:
            self._timer = self._worker.loop.call_later(EVERY_S, self._send_later)

    def _record(self, ended: _Ended) -> ProcessRecord:
        host, pid = self._here
        process = Process(host, pid, worker=self.name, task=readable(ended.key))
        record = ProcessRecord.of(ended.measurement, process)
        notes = (*record.notes, *self._notes)
        return replace(record, status=ended.status, error=ended.error, notes=notes)

    def _send(self, message: dict[str, Any]) -> None:
        self._number += 1
        self._worker.log_event(self._topic, {"name": self.name, "number": self._number, **message})

    def close(self) -> None:
        """Stop measuring. A worker that closes interrupts what it runs; elsewhere that is not told."""
        timer, self._timer = self._timer, object()  # no event of a plugin that is removed follows
        if timer is not None:
            self._worker.loop.remove_timeout(timer)
        if getattr(getattr(self._worker, "status", None), "name", "") == "closing":
            for key in list(self._open):
                self._end(key, "forgotten", in_vain=True)
        if timer is not None or self._ended:
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
    """Return the packed records of an event.

    Raises:
        ValueError: They are not what `compressed` returns, or larger than it makes them.
    """
    most = BATCH * (MOST_BYTES + 1)
    unpacker = zlib.decompressobj()
    try:
        found = unpacker.decompress(records, most)
    except zlib.error as reason:
        raise ValueError(f"not compressed records: {reason}") from None
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError("more than the records of one event")
    return found.split(b"\n") if found else []
