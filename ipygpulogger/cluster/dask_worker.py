"""What runs in Dask's workers: the measurement of each task; and the plugins that bring it there.

``WorkerPlugin.transition`` is called on the thread of the worker's event loop: just before it hands a task to
a thread, and when it has heard that the task ended and has stored the result. So no peak of the task is
missed, and the measurement spans a little more than the task: the way to its thread and back, about a
millisecond, the reading of inputs that were spilled to disk, and what the event loop itself does meanwhile. A
worker with one thread hears of the end of a task before it begins the next.

Nothing here raises or waits. Records leave with ``Worker.log_event``, in few and small events, because the
scheduler keeps the last thousand of each topic.
"""

from __future__ import annotations

import os
import socket
import zlib
from contextvars import Context, copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..blocks.measure import Measure, measure
from ..records.note import Note, NoteKind
from ..records.process import Process, ProcessRecord
from ..runtime import clock
from .arrivals import MOST_BYTES, Largest, most_needed_bytes, packed

if TYPE_CHECKING:
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


class Tasks:
    """Measures the tasks of one worker. All of it runs on the thread of the worker's event loop."""

    def __init__(self, worker: Any, topic: str, notebook: tuple[str, int]) -> None:
        """Begin to log events under the topic; the notebook is its host and process id."""
        self._worker, self._topic = worker, topic
        self._here = socket.gethostname(), os.getpid()
        self._notes: tuple[str, ...] = ()
        if self._here == notebook:
            said = "shared with the notebook: the worker is a thread of its process"
            self._notes = (Note(NoteKind.SHARED_WITH_NOTEBOOK, said),)
        self.name = worker_name(str(worker.name))
        self._open: dict[Any, tuple[Measure, Context]] = {}  # the context in which each was entered
        self._begin_event()
        self._at_once = float(AT_ONCE)  # how many events may be sent without a pause
        self._counted_s = clock.monotonic_s()
        self._timer: object | None = None
        self._number = int(clock.utc_now().timestamp() * 1e6)  # those of a later plugin are higher
        with measure("the first measurement, whose imports no task should pay for"):
            pass
        self._log({"host": self._here[0], "pid": self._here[1]})

    def _begin_event(self) -> None:
        self._ended: Largest[ProcessRecord] = Largest(_WAITING)  # and have not been sent
        self._unmeasured = 0

    def transition(self, key: Any, start: str, finish: str) -> None:
        """Follow a task from one state to another."""
        if finish == "executing" and key not in self._open:
            # In a context of its own: that of the event loop would remember each measurement it entered.
            running, context = self._open[key] = Measure(str(key)[:_NAME], of_task=True), copy_context()
            context.run(running.__enter__)
        elif key in self._open and finish in _ENDS:
            cancelled = start in ("cancelled", "released") or finish == "rescheduled"
            self._end(key, "interrupted" if cancelled else "error" if finish == "error" else "ok")

    def _closed(self, key: Any) -> Measurement | None:
        running, context = self._open.pop(key)
        context.run(running.__exit__, None, None, None)
        return running.last

    def _end(self, key: Any, status: Status) -> None:
        if (measured := self._closed(key)) is None:
            self._unmeasured += 1
        else:
            error = self._error(key) if status == "error" else None
            process = Process(*self._here, worker=self.name, task=readable(key))
            record = ProcessRecord.of(measured, process)
            record = replace(record, status=status, error=error, notes=(*record.notes, *self._notes))
            self._ended.add(most_needed_bytes(measured), record)
        self._refill()
        if self._at_once >= 1 and self._timer is None:  # so that it arrives before the task's result
            self.send()
        else:  # of very many tasks, now and then
            self._send_later()

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

        One follows if the next task to end could not be sent at once.
        """
        self._at_once -= 1
        kept = self._ended.keep(BATCH)
        follows = bool(kept) and self._at_once < 1
        while len(records := compressed(list(map(packed, kept)))) > BATCH_BYTES:
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
            self._closed(key)


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


# -- what is sent by value -----------------------------------------------------------------------------------
#
# These classes are made within a function and use no global name, so that Dask pickles them by value. Dask
# would not let a worker join that cannot load its plugin: without this package it joins, and says so.


def worker_plugin(topic: str) -> Any:
    """Return the plugin that measures the tasks of a worker, and logs its events under this topic."""
    from distributed import WorkerPlugin

    class MeasuredTasks(WorkerPlugin):  # type: ignore[misc]  # distributed has no types
        def __init__(self, topic: str, notebook: tuple[str, int]) -> None:
            self.topic, self.notebook = topic, notebook
            self.tasks: Any = None

        async def setup(self, worker: Any) -> None:
            import asyncio
            import importlib

            def begin() -> Any:  # beside the worker's event loop, for it imports much
                importlib.invalidate_caches()  # it may have been installed a moment ago
                from ipygpulogger.cluster.dask_worker import Tasks

                return Tasks(worker, self.topic, self.notebook)

            try:
                self.tasks = await asyncio.to_thread(begin)
            except Exception as reason:
                worker.log_event(self.topic, {"name": str(worker.name), "unable": str(reason)})

        def teardown(self, worker: Any) -> None:  # noqa: ARG002 - as Dask calls it
            tasks, self.tasks = self.tasks, None
            if tasks is not None:
                tasks.close()

        def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
            if self.tasks is not None:
                self.tasks.transition(key, start, finish)

    return MeasuredTasks(topic, (socket.gethostname(), os.getpid()))


def scheduler_plugin(topic: str, client: str) -> Any:
    """Return the plugin of the scheduler, which follows clients that leave and workers that are killed.

    It removes both plugins when the client leaves without `stop`: a kernel that is restarted says nothing,
    and the workers of a cluster that outlives it would go on measuring without a reader. It also announces
    which workers a nanny kills because they need too much memory.
    """
    from distributed import SchedulerPlugin

    class Departure(SchedulerPlugin):  # type: ignore[misc]  # as above
        def __init__(self, topic: str, client: str) -> None:
            self.topic, self.client = topic, client
            self.scheduler: Any = None

        async def start(self, scheduler: Any) -> None:
            self.scheduler = scheduler

        def log_event(self, topic: str, msg: Any) -> None:
            # Of this topic a client has one handler, perhaps the user's.
            if topic == "worker-restart-memory" and self.scheduler is not None:
                worker = self.scheduler.workers.get(msg["worker"])
                limit_bytes = int(getattr(worker, "memory_limit", 0))
                killed = {"killed": msg["worker"], "used_bytes": msg["rss"], "limit_bytes": limit_bytes}
                self.scheduler.log_event(self.topic, killed)

        def remove_client(self, scheduler: Any, client: str) -> None:
            if client == self.client:
                scheduler.loop.add_callback(self.remove, scheduler)

        async def remove(self, scheduler: Any) -> None:
            import contextlib

            with contextlib.suppress(Exception):  # `stop` has removed it
                scheduler.remove_plugin(name=self.topic)
            with contextlib.suppress(Exception):
                await scheduler.unregister_worker_plugin(comm=None, name=self.topic)

    return Departure(topic, client)
