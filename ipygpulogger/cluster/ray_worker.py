"""What runs in Ray's workers: the measurement of each task and method, and what sends its record.

Nothing here makes a task fail or wait. So the record of the last call of an actor may be missing if the actor
is dropped as soon as that call has answered: Ray ends its process, perhaps before the record has left it.
Without a mailbox, which is so once the watch was stopped, tasks run unmeasured.
"""

from __future__ import annotations

import inspect
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

from ..blocks.measure import Measure
from ..records.process import Process, ProcessRecord
from ..runtime import clock
from ..runtime.wrappers import around_calls
from .arrivals import packed

MARK = "_ipygpulogger_measured"  # of what is wrapped already, and of what Ray makes of it
_SPECIAL = frozenset(("__init__", "__call__"))  # those special methods that may be a task
_HOST = socket.gethostname()
_EXITS = ("SystemExit", "AsyncioActorExit")  # what `ray.actor.exit_actor()` raises
MOST_PENDING = 1000  # calls of the mailbox that are not answered; further records are counted as lost
_RECHECK_S = 0.25  # how long it holds that there is a mailbox, or none: the driver may watch anew
_ANSWER_S = 5.0  # for which the first answer of the mailbox is waited for
_running: set[str] = set()  # the ids of the tasks that run here


def measured(declared: Any) -> Any:
    """Return a function or class like the given one whose calls as tasks of Ray are measured."""
    # Returned as it is: what is neither, what belongs to Ray itself, an asynchronous generator function.
    module = getattr(declared, "__module__", None) or ""
    if MARK in getattr(declared, "__dict__", ()) or module.partition(".")[0] == "ray":
        return declared
    if inspect.isclass(declared):
        return _measured_class(declared)
    if not _can_be_measured(declared):
        return declared
    wrapper = around_calls(declared, task_context(declared.__name__), "watch")
    setattr(wrapper, MARK, True)
    return wrapper


def _can_be_measured(function: Any) -> bool:
    return inspect.isfunction(function) and not inspect.isasyncgenfunction(function)


def _measured_class(declared: type) -> type:
    """Return a subclass with every method wrapped; the class itself may be in use elsewhere."""
    methods = {}
    for name, _ in inspect.getmembers(declared, inspect.isroutine):
        method = inspect.getattr_static(declared, name)
        function = getattr(method, "__func__", method)  # of a class or static method
        if _can_be_measured(function) and (name in _SPECIAL or not name.startswith("__")):
            wrapped = around_calls(function, task_context(f"{declared.__name__}.{name}"), "watch")
            methods[name] = wrapped if function is method else type(method)(wrapped)
    kept = {name: getattr(declared, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(declared)(declared.__name__, (declared,), {**methods, **kept, MARK: True})


class Task:
    """A context around one task or method call; it measures from when it is made."""

    # It does nothing within another one of the same task.
    def __init__(self, name: str) -> None:
        self._name = name
        self._id, label = _new_task(name)
        if self._id:
            self._measure = Measure(label, of_task=True)
            _running.add(self._id)
            try:
                self._measure.__enter__()
            except BaseException:  # also an interrupt: then no context is entered
                self.__exit__(*sys.exc_info())
                raise

    def __enter__(self) -> None:
        """Begin the call."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not self._id:
            return
        try:
            with suppress(Exception):  # the record is missing, and the task is not: it is the user's
                self._measure.__exit__(kind, error, trace)
                record = None
                if (found := self._measure.last) is not None:
                    process = Process(_HOST, os.getpid(), worker=outbox.worker, task=self._name)
                    record = packed(_with_outcome(ProcessRecord.of(found, process), error))
                outbox.send(record)
        finally:  # also if it is cancelled just now, or later tasks would seem to run beside it
            _running.discard(self._id)


def _new_task(name: str) -> tuple[str, str]:
    """Return the id and the label of the task that begins; an empty id where none does, or no watch runs."""
    import ray

    if not ray.is_initialized():  # called outside Ray; to ask for the context would start Ray
        return "", ""
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:  # the driver called the function itself
        return "", ""
    task = context.get_task_id()
    # In a thread that the user started in a task there is an id, but no name. Ray 2.9 has no names.
    label = context.get_task_name() if hasattr(context, "get_task_name") else name
    begins = task and label and task not in _running and outbox.has_mailbox()
    return (task, label) if begins else ("", "")


def _with_outcome(record: ProcessRecord, error: BaseException | None) -> ProcessRecord:
    if isinstance(error, KeyboardInterrupt):
        return replace(record, status="interrupted")
    if error is None or type(error).__name__ in (*_EXITS, "GeneratorExit"):
        return record
    return replace(record, status="error", error=type(error).__name__)


class Outbox:
    """Sends to the mailbox what the tasks of this process used, without waiting for an answer."""

    def __init__(self) -> None:
        self.worker: str = ""  # what this process is called: "worker" and the beginning of its id in Ray
        self._mailbox: Any = None
        self._checked_s = -_RECHECK_S
        self._lost = 0  # records, since the last call
        self._lock = threading.RLock()  # a generator may end when garbage is collected while it is held

    def has_mailbox(self) -> bool:
        """Return whether a watch runs: Ray is asked for its mailbox if that was not done a moment ago."""
        with self._lock:  # threads that call it meanwhile wait, or their tasks would run unmeasured
            if clock.monotonic_s() - self._checked_s >= _RECHECK_S:
                self._find_mailbox()
                self._checked_s = clock.monotonic_s()
            return self._mailbox is not None

    def _find_mailbox(self) -> None:
        import ray

        context = ray.get_runtime_context()
        try:
            self._mailbox = ray.get_actor(f"ipygpulogger-{context.get_job_id()}")
        except ValueError:  # no watch is running
            self._mailbox = None
            return
        if not self.worker:
            # So that the connection stands, whose 14 MB would be in a task's figures. Not `ray.get`, which
            # would free this task's CPU for others, and complains in async actors.
            with suppress(Exception):
                self._mailbox.hello.remote().future().result(_ANSWER_S)
            self.worker = f"worker {context.get_worker_id()[:8]}"

    def send(self, record: bytes | None) -> None:
        """Send the packed record of a task that ended; None if it was not measured."""
        with self._lock:
            mailbox = self._mailbox
            if mailbox is None:
                return
            lost = self._lost + (record is None)
            try:
                answer = mailbox.take.remote(record, lost)
                self._lost = 0
            except Exception:  # too many calls are not answered, or Ray ends in this process
                self._lost = lost + (record is not None)
                return

        def answered(future: Any) -> None:
            if future.exception() is not None and self._mailbox is mailbox:
                self._checked_s = -_RECHECK_S  # it was stopped: perhaps there is another one

        answer.future().add_done_callback(answered)


outbox: Outbox = Outbox()


# -- what is sent by value -----------------------------------------------------------------------------------
#
# Ray sends a function to its workers by value if its name leads to something else, as of a decorated one. So
# what wraps a function uses no global name: where it needs this package, in a worker, it imports it, and says
# if it is missing. Without it the user's tasks run unmeasured.


def task_context(name: str) -> Callable[[], AbstractContextManager[Any]]:
    """Return what makes the context around each call of a measured function."""
    reported: list[bool] = []

    def context() -> Any:
        try:
            from ipygpulogger.cluster.ray_worker import Task

            return Task(name)
        except Exception as error:  # also where the package there is of an older version
            from contextlib import nullcontext, suppress

            if not reported:
                reported.append(True)
                with suppress(Exception):
                    import platform

                    import ray

                    mailbox = ray.get_actor(f"ipygpulogger-{ray.get_runtime_context().get_job_id()}")
                    mailbox.cannot.remote(platform.node(), f"{type(error).__name__}: {error}"[:200])
            return nullcontext()

    return context


def mailbox_class(most: int) -> type:
    """Return the class of the actor that holds up to so many records until they are collected."""

    class Mailbox:
        def __init__(self) -> None:
            self.records: list[bytes] = []
            self.lost = 0
            self.unable = ""  # where and why tasks run unmeasured

        def hello(self) -> None:
            pass

        def take(self, record: bytes | None, lost: int) -> None:
            if record is not None and len(self.records) < most:
                self.records.append(record)
            else:
                lost += record is not None
            self.lost += lost

        def cannot(self, host: str, reason: str) -> None:
            self.unable = f"{host} run unmeasured, for its workers cannot use ipygpulogger ({reason})"

        def empty(self) -> tuple[list[bytes], int, str]:
            contents = self.records, self.lost, self.unable
            self.__init__()  # type: ignore[misc]
            return contents

    return Mailbox
