"""In a worker process of Ray: measure a task or actor method, and send its record to the driver's mailbox.

Nothing here makes a task fail or wait. Without a mailbox, which is so once the watch was stopped, tasks run
unmeasured.
"""

from __future__ import annotations

import os
import socket
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING

from ..blocks.measure import Measure
from ..blocks.overlaps import Overlapping, overlaps_of
from ..records.process import Process, ProcessRecord
from .arrivals import most_needed_bytes, packed
from .ray_outbox import outbox

if TYPE_CHECKING:
    from ..records.measurement import Measurement

_HOST = socket.gethostname()
_EXITS = ("SystemExit", "AsyncioActorExit")  # what `ray.actor.exit_actor()` raises


class Task:
    """A context around one task or method call; does nothing within another one of the same task."""

    def __init__(self, name: str, at_once: bool) -> None:
        """Prepare.

        Args:
            name: The function's, or "Actor.method".
            at_once: The process may end with the task.
        """
        self._name, self._at_once = name, at_once
        self._id: str | None = None  # while the task runs, unless another context is around it
        self._unmeasured: Overlapping | None = None
        self._measure: Measure | None = None

    def __enter__(self) -> None:
        try:
            self._begin()
        except Exception as error:  # the task is the user's, and runs on
            self._measure = None
            outbox.unable(error)
        except BaseException:  # interrupted: Python will not call `__exit__`
            self._end(None)
            raise

    def _begin(self) -> None:
        import ray

        if _inside.get() in _running:  # a method that another method of the same actor calls
            return
        if not ray.is_initialized():  # called outside Ray; to ask for the context would start Ray
            return
        context = ray.get_runtime_context()
        if context.worker.mode != ray.WORKER_MODE:  # the driver called the function itself
            return
        task = context.get_task_id()
        # In a thread that the user started in a task there is an id, but no name. Ray 2.9 tells no names.
        name = context.get_task_name() if hasattr(context, "get_task_name") else self._name
        if not task or not name or task in _running:
            return
        self._id = task
        _running.add(task)
        _inside.set(task)
        if not outbox.stands():
            self._unmeasured = Overlapping()  # of tasks beside it that are measured
            tasks.begin(self._unmeasured)
            return
        outbox.began(task, self._name)
        self._measure = Measure(name, among=tasks)
        self._measure.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._id is None:
            return
        try:
            if self._measure is not None:
                self._measure.__exit__(kind, error, trace)
        except Exception:  # as above
            self._measure = None
        finally:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        task = self._id
        if task is None:
            return
        try:
            if self._unmeasured is None:
                self._send(task, error)
            else:
                tasks.end(self._unmeasured)
        except Exception:  # the record is missing, and the task is not: it is the user's
            pass
        finally:  # also if it is cancelled just now, or later tasks would seem to run beside it
            self._id = None
            _running.discard(task)

    def _send(self, task: str, error: BaseException | None) -> None:
        measured = self._measure and self._measure.last
        at_once = self._at_once or type(error).__name__ in _EXITS
        if measured is None:
            outbox.ended(task, None, 0, at_once=at_once)
        else:
            record = self._packed(measured, error)
            outbox.ended(task, record, most_needed_bytes(measured), at_once=at_once)

    def _packed(self, measured: Measurement, error: BaseException | None) -> bytes:
        process = Process(_HOST, os.getpid(), worker=outbox.worker, task=self._name)
        record = ProcessRecord.of(measured, process)
        if isinstance(error, KeyboardInterrupt):
            record = replace(record, status="interrupted")
        elif error is not None and type(error).__name__ not in (*_EXITS, "GeneratorExit"):
            record = replace(record, status="error", error=type(error).__name__)
        return packed(record)


tasks = overlaps_of("task")
_running: set[str] = set()  # the ids of the tasks that run here
_inside: ContextVar[str] = ContextVar("the task that this thread or coroutine runs", default="")
