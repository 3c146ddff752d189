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

MOST_RECORDS = 10_000  # that wait for the driver: 20 MB; of more, they are only counted
BATCH_S = 0.02  # a worker that has sent something sends nothing more for so long
_CALL_S = 10.0
_TRIES, _TRY_AGAIN_S = 200, 0.005

Began = tuple[str, str, int, str]  # the id of a task, what it is called, its process id and its node


class Contents(NamedTuple):
    """What the driver takes out.

    Attributes:
        records: Packed records.
        running: By the id of each task that began and has not ended: what it is called, its process id and
            its node.
        died: The tasks that began again before they had ended: the process of the first attempt died.
        lost: How many records were left out, here or by the workers.
        unable: By host, why a worker cannot measure.
    """

    records: list[bytes]
    running: dict[str, tuple[str, int, str]]
    died: list[str]
    lost: int
    unable: dict[str, str]


def mailbox_name(job: str) -> str:
    """Return the name of the mailbox of a job."""
    return f"ipygpulogger-{job}"


def mailbox_class(most: int) -> type:  # noqa: C901 - one class, made here so that it is sent by value
    """Return the class of the actor, which Ray sends by value since it is made here; it imports nothing."""

    class Mailbox:
        def __init__(self) -> None:
            self.records: list[bytes] = []
            self.running: dict[str, tuple[Any, ...]] = {}
            self.died: list[str] = []
            self.unable: dict[str, str] = {}
            self.lost = 0

        def hello(self) -> None:
            pass

        def take(self, began: list[Began], ended: list[tuple[str, bytes | None]], lost: int) -> None:
            for task, *where in began:
                if task in self.running and len(self.died) < most:
                    self.died.append(self.running[task][0])
                if len(self.running) < most:
                    self.running[task] = tuple(where)
            for task, record in ended:
                self.running.pop(task, None)
                if record is not None and len(self.records) < most:
                    self.records.append(record)
                else:
                    self.lost += 1
            self.lost += lost

        def cannot(self, host: str, reason: str) -> None:
            if len(self.unable) < most:
                self.unable[host] = reason

        def empty(self) -> tuple[Any, ...]:
            found = self.records, dict(self.running), self.died, self.lost, self.unable
            self.records, self.died, self.lost, self.unable = [], [], 0, {}
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
