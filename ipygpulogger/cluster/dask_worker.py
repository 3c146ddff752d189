"""What runs in Dask's workers: the measurement of each task; and the plugin that brings it there.

``WorkerPlugin.transition`` is called just before the worker hands a task to a thread, and when it has stored
the result: no peak of the task is missed. Nothing here raises or waits. A record arrives before the result.
"""

from __future__ import annotations

import os
import socket
from contextvars import Context, copy_context
from dataclasses import replace
from typing import Any

from ..blocks.measure import Measure, measure
from ..records import Measurement
from ..records.cell_record import Status
from ..records.note import Note, NoteKind
from ..records.process import Process, ProcessRecord
from .arrivals import packed

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
        shared = "shared with the notebook: the worker is a thread of its process"
        self._notes = (Note(NoteKind.SHARED_WITH_NOTEBOOK, shared),) if self._here == notebook else ()
        name = str(worker.name)
        self._name = f"worker {name}" if name.isdigit() else name[:_NAME]  # as a reader calls it
        self._open: dict[Any, tuple[Measure, Context]] = {}  # the context in which each was entered
        with measure("the first measurement, whose imports no task should pay for"):
            pass
        worker.log_event(topic, {"host": self._here[0], "pid": self._here[1]})

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
        payload = b""
        if (measured := self._closed(key)) is not None:
            process = Process(*self._here, worker=self._name, task=readable(key))
            record = ProcessRecord.of(measured, process)
            # The text that the worker keeps of an exception begins with the name of its type.
            text = getattr(self._worker.state.tasks.get(key), "exception_text", "") or "Exception"
            error = text.partition("(")[0][:_NAME] if status == "error" else None
            payload = packed(replace(record, status=status, error=error, notes=record.notes + self._notes))
        self._worker.log_event(self._topic, {"record": payload})

    def close(self) -> None:
        """Stop measuring; no record is sent of a task that runs."""
        for key in list(self._open):
            self._closed(key)


def readable(key: Any) -> str:
    """Return what a reader calls a task: its key without the hash, with the numbers of its block."""
    from dask.utils import key_split

    name = str(key_split(key))
    if isinstance(key, tuple):
        name += f"[{', '.join(map(str, key[1:]))}]"
    return name[:_NAME]


# -- what is sent by value -----------------------------------------------------------------------------------
#
# The class is made within a function and uses no global name, so that Dask pickles it by value. Dask would
# not let a worker join that cannot load its plugin: without this package it joins, and says so.


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
                worker.log_event(self.topic, {"unable": str(reason)})

        def teardown(self, worker: Any) -> None:  # noqa: ARG002 - as Dask calls it
            tasks, self.tasks = self.tasks, None
            if tasks is not None:
                tasks.close()

        def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
            if self.tasks is not None:
                self.tasks.transition(key, start, finish)

    return MeasuredTasks(topic, (socket.gethostname(), os.getpid()))
