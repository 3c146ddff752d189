"""What Ray and Dask send by value to processes that may lack this package: it imports nothing of it.

Functions and classes are pickled by value if they were made within a function. Those here therefore use no
global name; where they use this package, in a worker, they import it and say if it is missing. Without it
the user's tasks run unmeasured. Dask would not let a worker join that cannot load its plugin.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

# -- Ray -----------------------------------------------------------------------------------------------------


def task_context(name: str, at_once: bool) -> Callable[[], AbstractContextManager[Any]]:
    """Return what makes the context around each call of a measured function; see `ray_worker.Task`."""
    reported: list[bool] = []

    def context() -> Any:
        try:
            from ipygpulogger.cluster.ray_worker import Task

            return Task(name, at_once).begun()
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


# -- Dask ----------------------------------------------------------------------------------------------------


def worker_plugin(topic: str) -> Any:
    """Return the plugin that measures the tasks of a worker, and logs its events under this topic."""
    from distributed import WorkerPlugin

    class MeasuredTasks(WorkerPlugin):  # type: ignore[misc]  # distributed is untyped where it is not installed
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
