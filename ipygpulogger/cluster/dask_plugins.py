"""What Dask installs for a watch: a plugin of each worker, and one of the scheduler.

The classes are made inside functions, so that they are sent by value: only then can a process without this
package load them. Dask would not let a worker join that cannot load a plugin.
"""

from __future__ import annotations

import os
import socket
from typing import Any


def task_plugin(topic: str) -> Any:
    """Return the plugin that measures the tasks of a worker.

    Args:
        topic: Under which its events are logged; the name of both plugins.
    """
    from distributed import WorkerPlugin

    class MeasuredTasks(WorkerPlugin):  # type: ignore[misc]  # distributed is untyped where it is not installed
        """Measures the tasks of a worker that has ipygpulogger."""

        def __init__(self, topic: str, notebook: tuple[str, int]) -> None:
            self.topic, self.notebook = topic, notebook
            self.tasks: Any = None

        async def setup(self, worker: Any) -> None:
            """Import ipygpulogger beside the worker's event loop; where that fails, the client says so."""
            import asyncio
            import importlib

            def begin() -> Any:
                importlib.invalidate_caches()  # it may have been installed a moment ago
                from .dask_tasks import Tasks

                return Tasks(worker, self.topic, self.notebook)

            try:
                self.tasks = await asyncio.to_thread(begin)
            except Exception as reason:
                worker.log_event(self.topic, {"name": str(worker.name), "unable": str(reason)})

        def teardown(self, worker: Any) -> None:  # noqa: ARG002 - as Dask calls it
            """Stop measuring."""
            tasks, self.tasks = self.tasks, None
            if tasks is not None:
                tasks.close()

        def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
            """Measure from "executing" to what the task comes to."""
            if self.tasks is not None:
                self.tasks.transition(key, start, finish)

    return MeasuredTasks(topic, (socket.gethostname(), os.getpid()))


def departure_plugin(topic: str, client: str) -> Any:
    """Return the plugin of the scheduler, which tells workers that leave apart, and clients that left.

    It removes both plugins when the client leaves without `stop`: a kernel that is restarted says nothing,
    and the workers of a cluster that outlives it would go on measuring without a reader. It also announces
    which workers a restart is about to replace, because the scheduler then removes them as if they had died.

    Args:
        topic: The name of both plugins.
        client: The id of the client.
    """
    from distributed import SchedulerPlugin

    class Departure(SchedulerPlugin):  # type: ignore[misc]  # as above
        """Announces restarts, and removes what a watch has installed, when its client leaves."""

        def __init__(self, topic: str, client: str) -> None:
            self.topic, self.client = topic, client

        def restart(self, scheduler: Any) -> None:
            """Say which workers are to be replaced."""
            scheduler.log_event(self.topic, {"restarted": list(scheduler.workers)})

        def remove_client(self, scheduler: Any, client: str) -> None:
            """Notice that a client leaves."""
            if client == self.client:
                scheduler.loop.add_callback(self.remove, scheduler)

        async def remove(self, scheduler: Any) -> None:
            """Remove the plugin of the workers, and this one."""
            import contextlib

            with contextlib.suppress(Exception):  # `stop` has removed it
                scheduler.remove_plugin(name=self.topic)
            with contextlib.suppress(Exception):
                await scheduler.unregister_worker_plugin(comm=None, name=self.topic)

    return Departure(topic, client)
