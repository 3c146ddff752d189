"""Tasks and actors of Ray: ``watch(ray)`` measures each call in its worker, and shows a row for each.

While it watches, ``ray.remote`` wraps what it declares (`ray_worker.measured`). So each task measures itself
with `measure`, and leaves its record in an actor, the mailbox. This needs nothing private
of Ray in the workers, and no argument of ``ray.init``; the state API knows no peaks.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from types import ModuleType
from typing import Any

from ..records.units import shortened
from ..runtime.errors import first_line, named
from ..runtime.wrappers import Wrappers
from .ray_worker import MARK, MOST_PENDING, mailbox_class, measured
from .watcher import Watch

MOST_RECORDS = 10_000  # that wait for the driver, of half a kilobyte usually
_LOOKS, _QUIET_LOOKS, _PAUSE_S = 10, 3, 0.005  # for what tasks of a cell sent: until nothing came so often
_CALL_S, _START_S = 10.0, 30.0  # at most, for an answer of the mailbox, and until it runs
_TRIES, _TRY_AGAIN_S = 200, 0.005


class RayWatch(Watch):
    """What `watch` returns for the module ``ray``; it ends with ``ray.shutdown()``.

    Raises:
        ValueError: Ray is not initialized.
    """

    def __init__(self, client: ModuleType, *, report: bool = True) -> None:
        super().__init__(client, report=report)
        if not self.client.is_initialized():
            raise ValueError("Ray is not initialized: call ray.init(), and then watch(ray)")
        self._lacking = False  # whether some worker lacks the package, which was said
        self._mailbox: Any = _mailbox(client)
        self._wrappers = Wrappers(lambda: client)
        self._wrappers.put_on({"remote": partial(_Remote, self)})
        self.started()
        self._report_declared_before()

    def leave(self) -> None:
        """Put Ray's own function back and end the mailbox."""
        self._wrappers.take_off()
        with suppress(Exception):  # Ray was shut down, or its head has died: so did the mailbox
            self.client.kill(self._mailbox)
        self._mailbox = None

    def take_arrived(self) -> None:
        """Take what has arrived, and for a moment what may be on its way."""
        quiet = 0
        for _ in range(_LOOKS):
            quiet = 0 if self._take() else quiet + 1
            if quiet == _QUIET_LOOKS:
                break
            time.sleep(_PAUSE_S)

    def _take(self) -> bool:
        """Take what has arrived; return whether that was anything."""
        if self._mailbox is None:
            return False
        try:
            found = None
            if self.client.is_initialized():  # if not, to ask the mailbox would start Ray
                found = self.client.get(self._mailbox.empty.remote(), timeout=_CALL_S)
            why = "it was shut down; after ray.init(), call watch(ray) again"
        except Exception as error:  # it was killed, as for lack of memory, or Ray does not answer
            found, why = None, first_line(error)
        if not found:
            if self.is_running:
                self.say_once(f"ipygpulogger measures the tasks of Ray no more: {why}")
                self.stop()
            return False
        records, lost, unable = found
        for payload in records:
            self.arrivals.take(payload)
        self.arrivals.unsent += lost
        if unable and not self._lacking:
            self._lacking = True
            cure = f"Install it there with: pip install ipygpulogger=={version('ipygpulogger')}"
            other = 'or start with: ray.init(runtime_env={"pip": ["ipygpulogger"]})'
            self.say_once(f"Tasks on {unable}. {cure}, {other}")
        return bool(records)

    def _report_declared_before(self) -> None:
        kinds = self.client.remote_function.RemoteFunction, self.client.actor.ActorClass
        users = {k: v for k, v in list(vars(sys.modules["__main__"]).items()) if not k.startswith("_")}
        found = [k for k, v in users.items() if issubclass(type(v), kinds) and MARK not in vars(v)]
        if found:
            names = shortened(", ".join(found))
            self.say_once(f"Declared before watch(ray), and so not measured: {names}. Run their cells again.")


def _mailbox(ray: Any) -> Any:
    """Return a new actor that holds records until they are collected, and takes no CPU of the cluster."""
    # It belongs to the driver: it ends with it, with ``ray.shutdown()`` and with `stop`. By this
    # name workers find it, also those of what was declared before it was made.
    name = f"ipygpulogger-{ray.get_runtime_context().get_job_id()}"
    options = {"num_cpus": 0, "max_restarts": 0, "name": name, "max_pending_calls": MOST_PENDING}
    actors = ray.remote(mailbox_class(MOST_RECORDS)).options(**options)
    for left in reversed(range(_TRIES)):  # the name of one that was just closed may be in use for a moment
        try:
            actor = actors.remote()
            break
        except ValueError:
            if not left:
                raise
            time.sleep(_TRY_AGAIN_S)
    ray.get(actor.hello.remote(), timeout=_START_S)
    return actor


class _Remote:
    """A ``ray.remote`` that measures what it declares; a task that uses it by name is sent Ray's own."""

    def __init__(self, watch: RayWatch, own: Callable[..., Any]) -> None:
        self._watch, self._own = watch, own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]):
            return self._declare(self._own, args[0])
        return partial(self._declare, self._own(*args, **kwargs))

    def _declare(self, declare: Callable[[Any], Any], declared: Any) -> Any:
        try:
            declared = measured(declared)
        except Exception as error:  # such as a metaclass that takes other arguments
            what = f"{getattr(declared, '__qualname__', declared)}, since it cannot wrap it: {named(error)}"
            self._watch.say_once(f"ipygpulogger does not measure {what}")
        remote = declare(declared)
        vars(remote)[MARK] = True
        return remote

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._watch.client, "remote")
