"""What runs in Ray's workers: the measurement of each task and method, and what sends its record.

Nothing here makes a task fail or wait. So the record of the last call of an actor may be missing if the actor
is dropped as soon as that call has answered: Ray ends its process, perhaps before the record has left it.
Without a mailbox, which is so once the watch was stopped, tasks run unmeasured.
"""

from __future__ import annotations

import functools
import inspect
import os
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..blocks.measure import Measure
from ..records.process import Process, ProcessRecord
from ..runtime import clock
from ..runtime.wrappers import around_calls
from .arrivals import most_needed_bytes, packed

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_MARK = "_ipygpulogger_measured"  # of what is wrapped already
_SPECIAL = frozenset(("__init__", "__call__"))  # those special methods that may be a task


def is_measured(declared: Any) -> bool:
    """Return whether a function or class is one that `measured` returned."""
    return _MARK in getattr(declared, "__dict__", ())


def measured(declared: Any, *, at_once: bool = False) -> Any:
    """Return a function or class like the given one whose calls as tasks of Ray are measured.

    Anything but a Python function or class is returned as it is; so is what belongs to Ray itself. With
    `at_once` each record is sent before its task ends.
    """
    module = getattr(declared, "__module__", None) or ""
    if is_measured(declared) or module.partition(".")[0] == "ray":
        return declared
    if inspect.isclass(declared):
        return _measured_class(declared)
    if inspect.isfunction(declared):
        return _measured_function(declared, declared.__name__, at_once=at_once)
    return declared


def _measured_class(declared: type) -> type:
    """Return a subclass with every method wrapped; the class itself may be in use elsewhere."""
    methods = {}
    for name, _ in inspect.getmembers(declared, inspect.isroutine):
        method = inspect.getattr_static(declared, name)
        function = getattr(method, "__func__", method)  # of a class or static method
        if not inspect.isfunction(function) or (name.startswith("__") and name not in _SPECIAL):
            continue
        wrapped = _measured_function(function, f"{declared.__name__}.{name}")
        methods[name] = wrapped if function is method else type(method)(wrapped)
    kept = {name: getattr(declared, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(declared)(declared.__name__, (declared,), {**methods, **kept, _MARK: True})


def _measured_function(function: Any, name: str, *, at_once: bool = False) -> Any:
    context = task_context(name, at_once)
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with context():
                items = function(*args, **kwargs)
                try:
                    async for item in items:
                        yield item
                finally:
                    await items.aclose()

    else:
        wrapper = around_calls(function, context, "watch")
    setattr(wrapper, _MARK, True)
    return wrapper


_HOST = socket.gethostname()
_EXITS = ("SystemExit", "AsyncioActorExit")  # what `ray.actor.exit_actor()` raises
_running: set[str] = set()  # the ids of the tasks that run here
_inside: ContextVar[str] = ContextVar("the task that this thread or coroutine runs", default="")


class Task:
    """A context around one task or method call; it measures from when it is made.

    It does nothing within another one of the same task.
    """

    def __init__(self, name: str, at_once: bool) -> None:
        self._name, self._at_once = name, at_once
        self._id: str | None = None  # while the task runs, unless another context is around it
        self._measure: Measure | None = None
        try:
            self._begin()
        except BaseException:  # also an interrupt: then no context is entered
            self._measure = None
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
        # In a thread that the user started in a task there is an id, but no name. Ray 2.9 has no names.
        name = context.get_task_name() if hasattr(context, "get_task_name") else self._name
        if not task or not name or task in _running or not outbox.has_mailbox():
            return
        self._id = task
        _running.add(task)
        _inside.set(task)
        self._measure = Measure(name, of_task=True)
        self._measure.__enter__()

    def __enter__(self) -> None:
        """Begin the call."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._id is None:
            return
        try:
            if self._measure is not None:
                self._measure.__exit__(kind, error, trace)
        except Exception:  # the task is the user's, and goes on
            self._measure = None
        finally:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        task = self._id
        if task is None:
            return
        try:
            if (found := self._measure and self._measure.last) is None:
                outbox.ended(None, 0, at_once=self._at_once)
            else:
                at_once = self._at_once or type(error).__name__ in _EXITS
                process = Process(_HOST, os.getpid(), worker=outbox.worker, task=self._name)
                record = packed(_with_outcome(ProcessRecord.of(found, process), error))
                outbox.ended(record, most_needed_bytes(found), at_once=at_once)
        except Exception:  # the record is missing, and the task is not: it is the user's
            pass
        finally:  # also if it is cancelled just now, or later tasks would seem to run beside it
            self._id = None
            _running.discard(task)


def _with_outcome(record: ProcessRecord, error: BaseException | None) -> ProcessRecord:
    if isinstance(error, KeyboardInterrupt):
        return replace(record, status="interrupted")
    if error is None or type(error).__name__ in (*_EXITS, "GeneratorExit"):
        return record
    return replace(record, status="error", error=type(error).__name__)


# -- sending -------------------------------------------------------------------------------------------------

BATCH_S = 0.02  # a worker that has sent something sends nothing more for so long
MOST_PENDING = 20  # calls of the mailbox that are not answered; further records wait
_RECHECK_S = 0.25  # how long it holds that there is a mailbox, or none: the driver may watch anew
_ANSWER_S = 5.0  # for which the first answer of the mailbox is waited for
_MOST_WAITING = 5000  # records, of half a kilobyte usually; further ones are counted as lost


class Outbox:
    """Sends to the mailbox what the tasks of this process used.

    A call of the mailbox costs as much as a short task. So a record is sent at once only if none was sent
    shortly before, else with the next ones, by a thread. No answer is waited for.
    """

    def __init__(self) -> None:
        self.worker = ""  # what this process is called: "worker" and the beginning of its id in Ray
        self._mailbox: Any = None
        self._checked_s = self._sent_s = -_RECHECK_S
        self._lost = 0  # records, since the last call
        self._ended: deque[tuple[int, bytes]] = deque()  # what a task needed, and its packed record
        self._lock = threading.RLock()  # a generator may end when garbage is collected while it is held
        self._something = threading.Event()
        self._thread: threading.Thread | None = None

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
        if self._thread is None:
            # So that the connection stands, whose 14 MB would be in a task's figures. Not `ray.get`, which
            # would free this task's CPU for others, and complains in async actors.
            with suppress(Exception):
                self._mailbox.hello.remote().future().result(_ANSWER_S)
            self.worker = f"worker {context.get_worker_id()[:8]}"
            self._thread = threading.Thread(target=self._send_later, name="ipygpulogger-ray", daemon=True)
            self._thread.start()

    def ended(self, record: bytes | None, needed_bytes: int, *, at_once: bool) -> None:
        """Send the packed record of a task that ended, now or with the next ones; None was not measured."""
        if record is not None and len(self._ended) < _MOST_WAITING:
            self._ended.append((needed_bytes, record))
        else:
            self._lost += 1
        if at_once or clock.monotonic_s() - self._sent_s >= BATCH_S:
            self._send()
        self._something.set()  # also if it was sent: more may have come meanwhile

    def _send_later(self) -> None:
        while True:
            self._something.wait()
            self._something.clear()
            while self._ended or self._lost:
                time.sleep(BATCH_S)
                self._send()

    def _send(self) -> None:
        with self._lock:
            mailbox = self._mailbox
            if mailbox is None:
                self._ended.clear()
                self._lost = 0
                return
            ended = [self._ended.popleft() for _ in range(len(self._ended))]
            lost, self._lost = self._lost, 0
            if not (ended or lost):
                return
            self._sent_s = clock.monotonic_s()
            try:
                answer = mailbox.take.remote(ended, lost)
            except Exception:  # too many calls are not answered, or Ray ends in this process
                self._ended.extendleft(reversed(ended))
                self._lost = lost
                return

        def answered(future: Any) -> None:
            if future.exception() is not None and self._mailbox is mailbox:
                self._checked_s = -_RECHECK_S  # it was stopped: perhaps there is another one

        answer.future().add_done_callback(answered)


outbox = Outbox()


# -- what is sent by value -----------------------------------------------------------------------------------
#
# Ray sends a function to its workers by value if its name leads to something else, as of a decorated one. So
# what wraps a function uses no global name: where it needs this package, in a worker, it imports it, and says
# if it is missing. Without it the user's tasks run unmeasured.


def task_context(name: str, at_once: bool) -> Callable[[], AbstractContextManager[Any]]:
    """Return what makes the context around each call of a measured function."""
    reported: list[bool] = []

    def context() -> Any:
        try:
            from ipygpulogger.cluster.ray_worker import Task

            return Task(name, at_once)
        except Exception as error:  # also where the package there is of an older version
            from contextlib import nullcontext

            if not reported:
                reported.append(True)
                try:
                    import platform

                    import ray

                    mailbox = ray.get_actor(f"ipygpulogger-{ray.get_runtime_context().get_job_id()}")
                    mailbox.cannot.remote(platform.node(), f"{type(error).__name__}: {error}"[:200])
                except Exception:
                    pass
            return nullcontext()

    return context


def mailbox_class(most: int) -> type:  # noqa: C901 - one class, made here so that it is sent by value
    """Return the class of the actor beside the driver that holds records until they are collected.

    Of more than `most` records, those that needed the least are only counted.
    """

    class Mailbox:
        def __init__(self) -> None:
            self.begin()

        def begin(self) -> None:
            self.records: list[tuple[int, bytes]] = []  # what a task needed, and its packed record
            self.unable: dict[str, str] = {}
            self.more = self.more_bytes = self.lost = 0

        def hello(self) -> None:
            pass

        def take(self, ended: Any, lost: int) -> None:
            self.records += ended
            self.lost += lost
            if len(self.records) >= 2 * most:
                self.keep()

        def keep(self) -> None:
            self.records.sort(key=lambda record: -record[0])
            for needed_bytes, _ in self.records[most:]:
                self.more += 1
                self.more_bytes = max(self.more_bytes, needed_bytes)
            del self.records[most:]

        def cannot(self, host: str, reason: str) -> None:
            if len(self.unable) < most:
                self.unable[host] = reason

        def empty(self) -> dict[str, Any]:
            self.keep()
            contents = dict(vars(self))
            self.begin()
            return contents

    return Mailbox
