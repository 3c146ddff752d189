"""The tasks of a Dask cluster, for a ``distributed.Client``: one table after each cell in which tasks ended.

`DaskWatch` registers a ``WorkerPlugin``. Dask installs it on every worker, also on those that join later or
are restarted. There it imports this package and hands each transition of a task to `dask_tasks.Tasks`. The
records come back as events of a topic of this watch, to which the client subscribes: ``Worker.log_event`` and
``Client.subscribe_topic``.

All tasks of these workers are measured, those of other clients too. To Dask the calls of an actor's methods
are not tasks: an actor is measured while it is created. ``measure`` within a method measures the method.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import uuid
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from ..engine.machine import machine
from ..records.group import Group, Missing
from ..records.units import shortened
from ..runtime import clock
from ..runtime.errors import why
from .after_cell import show_after_cells, show_no_more
from .arrivals import Arrivals
from .dask_plugins import departure_plugin, task_plugin
from .dask_tasks import EVERY_S, decompressed, worker_name
from .watcher import Watch, counted

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

_HEARD_WITHIN_S = 2.0
_FOLLOWS_WITHIN_S = 10 * EVERY_S
MOST = 1000  # records of one cell; of more tasks the small ones are only counted
_INSTALL = (
    'To install it there: client.register_plugin(distributed.PipInstall(["ipygpulogger"])), '
    "then watch(client) again"
)


_lock = threading.Lock()
_running: list[DaskWatch] = []


def watch_client(client: Any, *, report: bool = True) -> DaskWatch:
    """Watch the workers of a client. A client that is watched already keeps its watch.

    Args:
        client: A ``distributed.Client``.
        report: Show a table after each cell.

    Raises:
        TypeError: It is another object of Dask, such as a cluster.
        ValueError: The client is closed.
    """
    if not hasattr(client, "subscribe_topic"):
        raise TypeError(f"watch() takes a distributed.Client, such as Client(cluster), not {client!r}")
    known = next((one for one in _running if one._client is client), None)
    if known is None:
        return DaskWatch(client, report=report)
    known.shows = report
    if known.lacking:
        known.install()
    return known


class DaskWatch(Watch):
    """What `watch` returns for a ``distributed.Client``: measures every task, until it is stopped.

    Attributes:
        lacking: Whether a worker cannot measure.
    """

    def __init__(self, client: Any, *, report: bool = True) -> None:
        """Install the plugin on the workers.

        With an asynchronous client this happens as soon as the event loop runs; ``await`` the watch to wait
        until the workers have it.

        Args:
            client: The ``distributed.Client``.
            report: Show a table after each cell.

        Raises:
            ValueError: The client is closed.
        """
        if client.status in ("closing", "closed"):
            raise ValueError("watch() takes a client that is connected, and this one is closed")
        super().__init__(report=report)
        self._client = client
        self._topic = f"ipygpulogger-{uuid.uuid4().hex}"
        self._lock = threading.Lock()  # events arrive on the thread of the client's event loop
        self._arrivals = Arrivals(MOST)
        self._unmeasured = 0
        self._names: dict[str, str] = {}  # of the workers that are measured, by address
        self._heard: set[str] = set()  # the addresses of all that have said anything
        self._pids: dict[str, int] = {}  # of those that are other processes of this machine, by address
        self._following: dict[str, int] = {}  # workers that said that another event follows, and in which
        self._replaced: dict[str, bool] = {}  # workers that are restarted, and whether they say what they ran
        self._arrived = threading.Condition(self._lock)
        self._missing: list[Missing] = []
        self.lacking = self._stopped = self._has_run = False
        self._numbers: dict[str, int] = {}  # of the last event of each worker
        client.subscribe_topic(self._topic, self._event)
        try:
            self.install()
        except BaseException:
            self._uninstall()
            raise
        self._has_run = True
        with _lock:
            _running.append(self)
        show_after_cells(self)

    def install(self) -> None:
        """Have all workers measure, also those that could not before."""
        self.lacking = False
        self._heard.clear()
        self._installed = _soon(self._client.sync(self._install))

    async def _install(self) -> None:
        client, topic = self._client, self._topic
        with suppress(Exception):  # a scheduler that takes no plugins: "distributed.scheduler.pickle"
            await client.register_plugin(departure_plugin(topic, client.id), name=topic)
        workers = await client.register_plugin(task_plugin(topic), name=topic)
        # Each worker says once whether it can measure, perhaps before the scheduler knows who subscribes.
        deadline_s = clock.monotonic_s() + _HEARD_WITHIN_S
        while True:
            for event in await client.get_events(topic):
                self._event(event)
            if self._heard.issuperset(workers) or clock.monotonic_s() > deadline_s:
                return
            await asyncio.sleep(_HEARD_WITHIN_S / 100)

    def __await__(self) -> Generator[Any, None, DaskWatch]:
        """Wait until the workers have the plugin, with an asynchronous client."""
        if self._installed is not None:
            yield from self._installed.__await__()
        return self

    def ended(self, label: str | None) -> Iterable[Group]:
        """Return the tasks that ended since the last call as one group; nothing if there were none."""
        self._wait_for_what_follows()
        with self._lock:
            if not (self._arrivals or self._missing or self._unmeasured):
                return ()
            group = self._arrivals.group(label or "tasks")
            missing, self._missing = self._missing, []
            unmeasured, self._unmeasured = self._unmeasured, 0
        notes = [*group.notes]
        if unmeasured:
            notes.append(f"{unmeasured} could not be measured; the workers' logs say why")
        return (Group(group.label, group, [*group.missing, *missing], notes),)

    def stop(self) -> None:
        """Remove the plugin from the workers. Does nothing the second time, or if the client is closed."""
        with _lock:
            if self._stopped:
                return
            self._stopped = True
            if self in _running:
                _running.remove(self)
        machine().child_peaks.measure_again(list(self._pids.values()))
        show_no_more(self)
        if self._client.status not in ("closing", "closed"):
            self._uninstall()

    def _uninstall(self) -> None:
        try:
            for topic in (self._topic, *self._names):
                self._client.unsubscribe_topic(topic)
            self._removed = _soon(self._client.sync(self._remove))
        except Exception as reason:
            self._not_removed(reason)

    async def _remove(self) -> None:
        with suppress(Exception):  # the scheduler has none
            await self._client.unregister_scheduler_plugin(self._topic)
        try:
            await self._client.unregister_worker_plugin(self._topic)
        except Exception as reason:
            self._not_removed(reason)

    def _not_removed(self, reason: Exception) -> None:
        """Say that the plugin is still on the workers, unless it never was there."""
        if self._has_run:
            self.say_once(f"ipygpulogger could not be removed from the workers: {why(reason)}")

    def _state(self) -> str:
        """Return whether it measures, and how many workers."""
        return "stopped" if self._stopped else f"running, {counted(len(self._names), 'worker')}"

    def _wait_for_what_follows(self) -> None:
        """Wait for workers that end very many tasks, and tell of them twenty times a second.

        One further event of each is enough: it was sent after the last task that the notebook knows to have
        ended. A worker that keeps silent is not waited for again.
        """
        if not self._following or self._client.asynchronous:
            return
        with self._arrived:
            awaited = dict(self._following)

            def still() -> set[str]:
                return {one for one, number in awaited.items() if self._following.get(one) == number}

            if not self._arrived.wait_for(lambda: not still(), _FOLLOWS_WITHIN_S):
                for address in still():
                    del self._following[address]

    def _event(self, event: Any) -> None:
        """Take what a worker sent."""
        try:
            _, message = event
            if "restarted" in message:
                for address in self._names.keys() & set(message["restarted"]):
                    self._replaced.setdefault(address, False)
                return
            address, name = str(message["worker"]), shortened(str(message["name"]))
            self._heard.add(address)
            if "unable" in message:
                self._unable(worker_name(name), str(message["unable"]))
                return
            number = _count(message["number"])
            if number <= self._numbers.get(address, 0):
                return
            self._numbers[address] = number
            if address not in self._names and not self._stopped:
                self._names[address] = name
                self._client.subscribe_topic(address, partial(self._worker_event, address))
            if "records" in message:
                self._take(address, message)
            elif message["host"] == socket.gethostname() and message["pid"] != os.getpid():
                self._pids[address] = _count(message["pid"])
                machine().child_peaks.leave_alone(self._pids[address])
        except Exception:  # whatever it is, no worker of ours sent it
            with self._lock:
                self._arrivals.refuse()

    def _take(self, address: str, message: dict[str, Any]) -> None:
        payloads = decompressed(message["records"])
        more, more_bytes, unmeasured = (
            _count(message[name]) for name in ("more", "more_bytes", "unmeasured")
        )
        with self._lock:
            for payload in payloads:
                self._arrivals.take(payload)
            if more:
                self._arrivals.count_more(more, more_bytes)
            self._unmeasured += unmeasured
            if message["follows"]:
                self._following[address] = message["number"]
            else:
                self._following.pop(address, None)
            self._arrived.notify_all()

    def _worker_event(self, address: str, event: Any) -> None:
        """Note that a worker closes, or left the cluster: both are events of the worker's own topic."""
        try:
            _, message = event
            if message["action"] == "closing-worker" and "restart" in message["reason"]:
                self._replaced[address] = True
            if message["action"] != "remove-worker":
                return
            name = self._names.pop(address, address)
            self._heard.discard(address)
            self._numbers.pop(address, None)
            machine().child_peaks.measure_again([self._pids.pop(address, 0)])
            with self._lock:
                self._following.pop(address, None)
                self._arrived.notify_all()
            if not self._stopped:
                self._client.unsubscribe_topic(address)
            replaced = self._replaced.pop(address, None)
            if not message.get("expected", True) and not replaced:
                count = len(message.get("processing-tasks", ()))
                doing = (
                    f"while it had {count} task{'s' * (count != 1)} to run" if count else "while it was idle"
                )
                reason = (
                    f"died {doing}"
                    if replaced is None
                    else "stopped by a restart, perhaps while it ran a task"
                )
                with self._lock:
                    self._missing.append(Missing(name, reason))
        except Exception:  # an event of another kind, which others logged
            pass

    def _unable(self, name: str, reason: str) -> None:
        """Say once that a worker cannot measure."""
        if not self.lacking:
            self.lacking = True
            self.say_once(f"ipygpulogger cannot measure the tasks of {name}: {shortened(reason)}. {_INSTALL}")


def _soon(answer: Any) -> asyncio.Future[Any] | None:
    """Return what will have the answer of an asynchronous client; None where it has been waited for."""
    return asyncio.ensure_future(answer) if isawaitable(answer) else None


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"not a count: {value!r}")
    return value
