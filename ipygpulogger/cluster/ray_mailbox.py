"""The mailbox: an actor of Ray beside the driver, in which the workers leave their records.

Workers find it by its name, which is that of their job. So the measured functions hold no handle, and those
declared under an earlier `watch` or ``ray.init`` reach a later mailbox. It belongs to the driver: it ends
with it, with ``ray.shutdown()`` and with `stop`. It takes no CPU of the cluster, and imports nothing.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_RECORDS = 5000  # that wait for the driver, 10 MB at most; the others are counted
BATCH_S = 0.02  # a worker that has sent something sends nothing more for so long
_CALL_S = 10.0
_TRIES, _TRY_AGAIN_S = 200, 0.005

Ended = tuple[str, bytes | None, int]  # the id, the packed record, and what it says that the task needed
Began = tuple[str, str]  # the id of a task, and what it is called


class Contents(NamedTuple):
    """What the driver takes out.

    Attributes:
        records: Packed records.
        running: By the id of each task that began and has not ended: what it is called, its process id and
            its node.
        died: What the tasks are called that another process tried again, for the first one died.
        more: How many records were left out here, which are those that say of the least memory.
        more_bytes: The most that one of these needed.
        lost: How many records the workers could not send.
        unable: By host, why a worker cannot measure.
    """

    records: list[bytes]
    running: dict[str, tuple[str, int, str]]
    died: list[str]
    more: int
    more_bytes: int
    lost: int
    unable: dict[str, str]


def mailbox_name(job: str) -> str:
    """Return the name of the mailbox of a job."""
    return f"ipygpulogger-{job}"


def mailbox_class(most: int) -> type:  # noqa: C901 - one class, made here so that it is sent by value
    """Return the class of the actor, which Ray sends by value since it is made here; it imports nothing."""

    class Mailbox:
        def __init__(self) -> None:
            self.records: list[tuple[int, bytes]] = []
            self.running: dict[str, tuple[str, int, str]] = {}
            self.died: list[str] = []
            self.unable: dict[str, str] = {}
            self.more = self.more_bytes = self.lost = 0

        def hello(self) -> None:
            pass

        def take(self, pid: int, node: str, began: list[Began], ended: list[Ended], lost: int) -> None:
            for task, called in began:
                self.leave(task, pid, node)
                if len(self.running) < most:
                    self.running[task] = called, pid, node
            for task, record, needed_bytes in ended:
                self.leave(task, pid, node)
                if record is None:
                    self.lost += 1
                else:
                    self.records.append((needed_bytes, record))
            self.lost += lost
            if len(self.records) >= 2 * most:
                self.keep()

        def leave(self, task: str, pid: int, node: str) -> None:
            called, *where = self.running.pop(task, ("", pid, node))
            if where != [pid, node] and len(self.died) < most:  # this is another attempt
                self.died.append(called)

        def keep(self) -> None:
            self.records.sort(key=lambda record: -record[0])
            for needed_bytes, _ in self.records[most:]:
                self.more += 1
                self.more_bytes = max(self.more_bytes, needed_bytes)
            del self.records[most:]

        def cannot(self, host: str, reason: str) -> None:
            if len(self.unable) < most:
                self.unable[host] = reason

        def empty(self) -> tuple[Any, ...]:
            self.keep()
            records = [record for _, record in self.records]
            more = self.more, self.more_bytes, self.lost
            found = records, dict(self.running), self.died, *more, self.unable
            self.records, self.died, self.unable = [], [], {}
            self.more = self.more_bytes = self.lost = 0
            return found

        def forget(self, tasks: list[str]) -> None:
            for task in tasks:
                self.running.pop(task, None)

    return Mailbox


class Mailbox:
    """The driver's handle of it."""

    def __init__(self, ray: Any, remote: Callable[..., Any]) -> None:
        """Create the actor and wait until it answers.

        Args:
            ray: The module.
            remote: Ray's own ``ray.remote``.
        """
        self._ray = ray
        context = ray.get_runtime_context()
        self._name, self.node = mailbox_name(context.get_job_id()), context.get_node_id()
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "name": self._name}
        if self.node:  # here, so that it lives as long as the driver; a client of ray:// has no node
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(self.node, soft=True)
        actors = remote(mailbox_class(MOST_RECORDS)).options(**options)
        for _ in range(_TRIES):  # the name of one that was just closed may be in use for a moment
            try:
                self._actor = actors.remote()
                break
            except ValueError as error:
                taken = error
                time.sleep(_TRY_AGAIN_S)
        else:
            raise taken
        self._get(self._actor.hello.remote())

    def empty(self) -> Contents:
        """Take out what has arrived."""
        return Contents(*self._get(self._actor.empty.remote()))

    def forget(self, tasks: list[str]) -> None:
        """No longer count these tasks as running."""
        self._actor.forget.remote(tasks)

    def close(self) -> None:
        """End the actor, and wait until Ray no longer knows it."""
        self._ray.kill(self._actor)
        with suppress(ValueError):
            for _ in range(_TRIES):
                self._ray.get_actor(self._name)
                time.sleep(_TRY_AGAIN_S)

    def _get(self, reference: Any) -> Any:
        return self._ray.get(reference, timeout=_CALL_S)
