"""Tasks and actors of Ray: ``watch(ray)`` measures each call in its worker, and shows a row for each.

While it watches, ``ray.remote`` wraps what it declares (`ray_worker.measured`). So each task measures itself
with `measure`, and leaves its record in an actor beside the driver, the mailbox. This needs nothing private
of Ray in the workers, and no argument of ``ray.init``; the state API knows no peaks.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from ..runtime import clock
from ..runtime.errors import first_line, named
from ..runtime.wrappers import Wrappers
from .arrivals import Arrivals
from .ray_worker import BATCH_S, MOST_PENDING, is_measured, mailbox_class, measured
from .watcher import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from ..analysis.group import Group

MOST_ROWS = 1000  # of one table; of more tasks, those that needed the least are only counted
MOST_RECORDS = 5000  # that wait for the driver, of half a kilobyte usually
_PAUSES_S = (0.0, 0.003, 0.01, 0.015, 0.02, 0.03, 0.04)  # before each look for what tasks of a cell sent
_PAUSE_S = 30.0  # after Ray did not answer
_CALL_S = 10.0
_TRIES, _TRY_AGAIN_S = 200, 0.005
_MOST_NAMES = 5  # in a sentence


class RayWatch(Watch):
    """What `watch` returns for the module ``ray``, which may be initialized before or after."""

    def __init__(self, client: ModuleType, *, report: bool = True) -> None:
        super().__init__(client, report=report)
        self._ray: Any = client
        self._mailbox: Any = None
        self._arrivals = Arrivals(MOST_ROWS)
        self._lacks_package = False  # some worker does, which was said
        self._try_again_s = 0.0  # when to ask a mailbox again that did not answer
        self._wrappers = Wrappers(lambda: client)
        makers = {"remote": self._remote, "init": self._init, "shutdown": self._shutdown}
        self._wrappers.put_on({name: partial(self._wrapped, name, maker) for name, maker in makers.items()})
        self.started()
        self._join()
        self._report_declared_before()

    def wrap(self, declared: Any) -> Any:
        """Return a remote function or actor class that is measured, with the options of the given one.

        It is what ``ray.remote`` returned before `watch`, or a plain function or class for it.

        Raises:
            TypeError: It is none of these, or this version of Ray does not say what it was declared with.
        """
        if callable(declared) and not self._is_remote(declared):
            return measured(declared)
        original, options = _declaration(declared)
        if original is None:
            raise TypeError(f"wrap() takes a remote function or an actor class of Ray, not {declared!r}")
        ours = measured(original, at_once=bool(options.get("max_calls")))
        remote = self._wrappers.own("remote")
        return remote(**options)(ours) if options else remote(ours)

    def ended(self, label: str | None) -> Iterable[Group]:
        """Return the tasks that ended since the last call, as one group; none if no task did."""
        self._empty()
        if not self._arrivals:
            return ()
        arrived, self._arrivals = self._arrivals, Arrivals(MOST_ROWS)
        return (arrived.group(label or "tasks"),)

    def leave(self) -> None:
        """Put Ray's own functions back and end the mailbox."""
        self._wrappers.take_off()
        mailbox, self._mailbox = self._mailbox, None
        if mailbox is not None:
            with suppress(Exception):  # Ray was shut down, or its head has died: so did the mailbox
                self._ray.kill(mailbox)
                for _ in range(_TRIES):  # until Ray no longer knows it
                    self._ray.get_actor(_name(self._ray))
                    time.sleep(_TRY_AGAIN_S)

    # -- Ray's functions, wrapped --------------------------------------------------------------------

    def _wrapped(self, name: str, maker: Callable[..., Any], original: Any) -> Callable[..., Any]:
        return _SentAsRaysOwn(self._ray, name, maker(original))

    def _remote(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def remote(*args: Any, **kwargs: Any) -> Any:
            if len(args) == 1 and not kwargs and callable(args[0]):
                return original(self._measured(args[0]))
            declare = original(*args, **kwargs)
            return lambda declared: declare(self._measured(declared, at_once=bool(kwargs.get("max_calls"))))

        return remote

    def _measured(self, declared: Any, *, at_once: bool = False) -> Any:
        try:
            return measured(declared, at_once=at_once)
        except Exception as error:  # such as a metaclass that takes other arguments
            name = getattr(declared, "__qualname__", declared)
            self.say_once(f"ipygpulogger does not measure {name}, since it cannot wrap it: {named(error)}")
            return declared

    def _init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init(*args: Any, **kwargs: Any) -> Any:
            context = original(*args, **kwargs)
            self._join()
            return context

        return init

    def _shutdown(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def shutdown(*args: Any, **kwargs: Any) -> Any:
            self._empty()
            self._mailbox = None
            return original(*args, **kwargs)

        return shutdown

    # -- the mailbox ---------------------------------------------------------------------------------

    def _join(self) -> None:
        """Place a mailbox, if Ray is initialized and there is none."""
        if self._ray.is_initialized() and self._mailbox is None and self.is_running:
            try:
                self._mailbox = _mailbox(self._ray, self._wrappers.own("remote"))
            except Exception as error:
                self.say_once(f"ipygpulogger cannot measure the tasks of Ray: {first_line(error)}")

    def _empty(self) -> None:
        """Take what has arrived, and for a moment what may be on its way."""
        quiet_s = BATCH_S / 2  # a worker that has just sent something may have more to send
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            quiet_s = 0.0 if self._take() else quiet_s + pause_s
            if quiet_s > BATCH_S:
                break

    def _take(self) -> bool:
        """Take what has arrived; return whether that was anything."""
        if self._mailbox is None or not self._ray.is_initialized():
            self._mailbox = None  # it ended with Ray
            self._join()
            return False
        if clock.monotonic_s() < self._try_again_s:
            return False
        try:
            contents = self._ray.get(self._mailbox.empty.remote(), timeout=_CALL_S)
        except Exception as error:
            if isinstance(error, self._ray.exceptions.RayActorError):  # killed, or for lack of memory
                self.say_once(f"ipygpulogger lost records of tasks of Ray: {first_line(error)}")
                self._mailbox = None
                self._join()
            else:  # Ray does not answer: no cell is to wait for it again soon
                self.say_once(f"ipygpulogger waits for records of tasks of Ray: {first_line(error)}")
                self._try_again_s = clock.monotonic_s() + _PAUSE_S
            return False
        for _, payload in contents["records"]:
            self._arrivals.take(payload)
        self._arrivals.records.count(contents["more"], contents["more_bytes"])
        self._arrivals.unsent += contents["lost"]
        for host, reason in contents["unable"].items():
            if not self._lacks_package:
                self._lacks_package = True
                self.say_once(
                    f"Tasks on {host} run unmeasured, for its workers cannot use ipygpulogger ({reason}). "
                    f"Install it there with: pip install ipygpulogger=={version('ipygpulogger')}, "
                    'or start with: ray.init(runtime_env={"pip": ["ipygpulogger"]})'
                )
        return bool(contents["records"])

    # -- what is said once ---------------------------------------------------------------------------

    def _report_declared_before(self) -> None:
        found = [
            name
            for name, value in list(vars(sys.modules["__main__"]).items())
            if not name.startswith("_") and self._is_remote(value) and not is_measured(_declaration(value)[0])
        ]
        if found:
            names = ", ".join(found[:_MOST_NAMES]) + (" and others" if len(found) > _MOST_NAMES else "")
            self.say_once(
                f"Declared before watch(ray), and so not measured: {names}. Run their cells again, or use "
                f"what wrap() of the watch returns: {found[0]} = watching.wrap({found[0]})"
            )

    def _is_remote(self, value: Any) -> bool:
        try:
            return isinstance(value, (self._ray.remote_function.RemoteFunction, self._ray.actor.ActorClass))
        except Exception:  # a class that answers `isinstance` itself
            return False


def _name(ray: Any) -> str:
    """Return the name of this job's mailbox, by which also what was declared before it was made finds it."""
    return f"ipygpulogger-{ray.get_runtime_context().get_job_id()}"


def _mailbox(ray: Any, remote: Callable[..., Any]) -> Any:
    """Return a new actor that holds records until they are collected, and takes no CPU of the cluster.

    It belongs to the driver: it ends with it, with ``ray.shutdown()`` and with `stop`.
    """
    options = {"num_cpus": 0, "max_restarts": 0, "name": _name(ray), "max_pending_calls": MOST_PENDING}
    node = ray.get_runtime_context().get_node_id()
    if node:  # here, so that it lives as long as the driver; a client of ray:// has no node
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True)
    actors = remote(mailbox_class(MOST_RECORDS)).options(**options)
    for left in reversed(range(_TRIES)):  # the name of one that was just closed may be in use for a moment
        try:
            actor = actors.remote()
            break
        except ValueError:
            if not left:
                raise
            time.sleep(_TRY_AGAIN_S)
    ray.get(actor.hello.remote(), timeout=_CALL_S)
    return actor


class _SentAsRaysOwn:
    """A function in place of one of Ray's; a task that uses it by name is sent Ray's own."""

    def __init__(self, ray: ModuleType, name: str, function: Callable[..., Any]) -> None:
        self._ray, self._name, self._function = ray, name, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._ray, self._name)


def _declaration(declared: Any) -> tuple[Any, dict[str, Any]]:
    """Return the function or class that was declared, and with which options; None if Ray does not say.

    This is the only place that reads private attributes of Ray, of 2.60: the public ones do not say.
    """
    options = dict(getattr(declared, "_default_options", None) or {})
    metadata = getattr(declared, "__ray_metadata__", None)
    if metadata is None:
        return getattr(declared, "_function", None), options
    return getattr(getattr(metadata, "modified_class", None), "__ray_actor_class__", None), options
