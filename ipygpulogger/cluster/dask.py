"""The tasks of a Dask cluster, for a ``distributed.Client``: one table after each cell in which tasks ended.

A ``WorkerPlugin`` on every worker, also on one that joins later, hands each transition of a task to
`dask_worker.Tasks`. The records come back as events of a topic. Tasks of other clients are measured too.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Any

from ..records.units import shortened
from ..runtime.errors import why
from .dask_worker import worker_plugin
from .watcher import Watch

_INSTALL = 'To install it there: client.register_plugin(distributed.PipInstall(["ipygpulogger"]))'


class DaskWatch(Watch):
    """What `watch` returns for a ``distributed.Client``: measures every task, until it is stopped.

    Raises:
        TypeError: It is another object of Dask, such as a cluster.
        ValueError: The client is closed, or asynchronous.
    """

    def __init__(self, client: Any, *, report: bool = True) -> None:
        if not hasattr(client, "subscribe_topic"):
            raise TypeError(f"watch() takes a distributed.Client, such as Client(cluster), not {client!r}")
        if client.asynchronous or client.status in ("closing", "closed"):
            raise ValueError("watch() takes a client that is connected and not asynchronous")
        super().__init__(client, report=report)
        self._topic = f"ipygpulogger-{uuid.uuid4().hex}"
        client.subscribe_topic(self._topic, self._event)
        try:
            client.sync(self._install)
        except BaseException:
            with suppress(Exception):  # what could not be installed is the user's to see
                self._uninstall()
            raise
        self.started()

    async def _install(self) -> None:
        client, topic = self.client, self._topic
        await client.register_plugin(worker_plugin(topic), name=topic)
        for event in await client.get_events(topic):  # those from before the scheduler knew who subscribes
            if "record" not in event[1]:
                self._event(event)

    def leave(self) -> None:
        """Remove the plugin from the workers, unless the client is closed."""
        if self.client.status not in ("closing", "closed"):
            try:
                self._uninstall()
            except Exception as reason:
                self.say_once(f"ipygpulogger could not be removed from the workers: {why(reason)}")

    def _uninstall(self) -> None:
        self.client.unsubscribe_topic(self._topic)
        self.client.sync(self.client.unregister_worker_plugin, self._topic)

    def _event(self, event: Any) -> None:
        """Take what a worker sent, on the thread of the client's event loop: its process, or a record."""
        with self.lock:
            try:
                _, message = event
                if "unable" in message:
                    cure = f"{_INSTALL}; then stop() this watch and begin another one"
                    reason = f"{shortened(str(message['unable']))}. {cure}"
                    self.say_once(f"ipygpulogger cannot measure the tasks of some workers: {reason}")
                elif "record" not in message:
                    self.spare(message["host"], int(message["pid"]))
                elif message["record"]:
                    self.arrivals.take(message["record"])
                else:
                    self.arrivals.unsent += 1
            except Exception:  # whatever it is, no worker of ours sent it
                self.arrivals.refused += 1
