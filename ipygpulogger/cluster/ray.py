"""Tasks and actors of Ray: ``watch(ray)`` measures each call in its worker, and shows a row for each.

While it watches, ``ray.remote`` wraps what it declares (`ray_wrapped`). So each task measures itself with
`measure`, and leaves its record in an actor beside the driver (`ray_mailbox`). Of the ways to measure tasks
this is the one that needs nothing private of Ray in the workers:

- A ``worker_process_setup_hook`` of the runtime environment reaches functions that were declared before. But
  it runs once in each new worker and is told of no task: to measure tasks it would have to replace private
  functions of Ray. It must be given to ``ray.init``, where the user may have one already, and a worker that
  cannot run it does not start.
- Ray's tracing hook wraps every task. But it must be given to ``ray.init`` too, needs OpenTelemetry on every
  node, adds an argument to each call, and leaves out generators.
- The state API tells of tasks, but neither their peaks nor, without the dashboard, anything at all.

What the wrapper does not reach, and what helps: functions and actors declared before `watch` (run their cell
again, or `RayWatch.wrap`), actors that live already (create them again), ``from ray import remote`` before
`watch`, what tasks declare themselves, and the tasks of Ray's own libraries.

The scope of a record is the call of the function. Reading the arguments before it and storing the result
after it belong to Ray. General RAM is that of the whole worker process, so tasks that run in it at the same
time (async and threaded actors) share their peak, and their records say so.
"""

from __future__ import annotations

import math
import sys
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from ..records.group import Group, Missing
from ..records.units import shortened
from ..runtime import clock
from ..runtime.errors import first_line, named
from ..runtime.shell import current_shell
from ..runtime.wrappers import Wrappers
from .after_cell import show_after_cells, show_no_more
from .arrivals import Arrivals
from .ray_mailbox import BATCH_S, Mailbox
from .ray_wrapped import is_measured, measured
from .watcher import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

MOST_ROWS = 1000  # of one table; of more tasks, those that needed the least are only counted
_PAUSES_S = (0.0, 0.003, 0.01, 0.015, 0.02, 0.03, 0.04)  # before each look for what tasks of a cell sent
_PAUSE_S = 30.0  # after Ray did not answer
_MOST_NAMES = 5  # in a sentence


_running: list[RayWatch] = []  # one at most: it wraps `ray.remote`


def watch_ray(ray: ModuleType, *, report: bool = True) -> RayWatch:
    """Watch Ray. If it is watched already, the same watch goes on.

    Args:
        ray: The module.
        report: Show a table after each cell in which tasks ended.
    """
    for known in _running:
        known.shows = report
        return known
    return RayWatch(ray, report=report)


class RayWatch(Watch):
    """What `watch` returns for the module ``ray``, which may be initialized before or after."""

    def __init__(self, ray: ModuleType, *, report: bool = True) -> None:
        """Wrap ``ray.remote``, and place the mailbox if Ray is initialized.

        Args:
            ray: The module.
            report: Show a table after each cell in which tasks ended.
        """
        super().__init__(report=report)
        self._ray: Any = ray
        self._mailbox: Mailbox | None = None
        self._arrivals = Arrivals(most=MOST_ROWS)
        self._missing: list[Missing] = []
        self._known: set[str] = set()  # the tasks that ran at the end of the last cell
        self._lost = 0
        self._said_unable = False
        self._try_again_s = 0.0  # when to ask a mailbox again that did not answer
        _running.append(self)
        self._wrappers = Wrappers(lambda: ray)
        makers = {"remote": self._remote, "init": self._init, "shutdown": self._shutdown}
        self._wrappers.put_on({name: _sent_as_rays_own(ray, name, maker) for name, maker in makers.items()})
        self._join()
        self._say_what_was_declared_before()
        show_after_cells(self)

    def wrap(self, declared: Any) -> Any:
        """Return a remote function or actor class that is measured, with the options of the given one.

        Args:
            declared: What ``ray.remote`` returned before `watch`, or a plain function or class for it.

        Raises:
            TypeError: It is none of these, or this version of Ray does not tell what it was declared with.
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
        if not (len(self._arrivals) or self._missing or self._lost):
            return ()
        group = self._arrivals.group(label or "tasks")
        notes = list(group.notes)
        if self._lost:
            notes.append(f"{self._lost} more tasks ended, whose records did not arrive")
        missing, self._missing, self._lost = self._missing, [], 0
        return (Group(group.label, group, missing, notes),)

    def stop(self) -> None:
        """Put Ray's own functions back and end the mailbox; what has arrived is kept."""
        if self not in _running:
            return
        self._wrappers.take_off()
        show_no_more(self)
        shell = current_shell()
        self.collect(f"In [{shell.execution_count}]" if shell else None)
        _running.remove(self)
        self._leave()

    def _state(self) -> str:
        """Return whether it measures."""
        return "running" if self in _running else "stopped"

    # -- Ray's functions, wrapped --------------------------------------------------------------------

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
        """Place the mailbox, if Ray is initialized and there is none."""
        if self not in _running or self._mailbox is not None or not self._ray.is_initialized():
            return
        try:
            self._mailbox = Mailbox(self._ray, self._wrappers.own("remote"))
        except Exception as error:
            self.say_once(f"ipygpulogger cannot measure the tasks of Ray: {first_line(error)}")

    def _leave(self) -> None:
        mailbox, self._mailbox = self._mailbox, None
        if mailbox is not None:
            try:
                mailbox.close()
            except Exception:  # Ray was shut down, or its head has died: so did the mailbox
                pass

    def _empty(self) -> None:
        """Take what has arrived, and for a moment what may be on its way."""
        quiet_s = math.inf  # since something arrived
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            running, news = self._take()
            quiet_s = 0.0 if news else quiet_s + pause_s
            # A task that seems to run may have ended; a worker that has just sent may have more to send.
            if pause_s and quiet_s > BATCH_S and not running - self._known:
                break
        self._known = running

    def _take(self) -> tuple[set[str], bool]:
        """Take what has arrived; return the ids of the tasks that run, and whether something arrived."""
        if self._mailbox is None or not self._ray.is_initialized():
            self._mailbox = None  # it ended with Ray
            self._join()
            return set(), False
        if clock.monotonic_s() < self._try_again_s:
            return set(), False
        try:
            contents = self._mailbox.empty()
        except self._ray.exceptions.RayActorError as error:  # killed, or for lack of memory: another one
            self.say_once(f"ipygpulogger lost records of tasks of Ray: {first_line(error)}")
            self._mailbox = None
            self._join()
            return set(), False
        except Exception as error:  # Ray does not answer: no cell is to wait for it again soon
            self.say_once(f"ipygpulogger waits for records of tasks of Ray: {first_line(error)}")
            self._try_again_s = clock.monotonic_s() + _PAUSE_S
            return set(), False
        for payload in contents.records:
            self._arrivals.take(payload)
        if contents.more:
            self._arrivals.count_more(contents.more, contents.more_bytes)
        self._lost += contents.lost
        if contents.unable:
            self._say_unable(*next(iter(contents.unable.items())))
        node = self._mailbox.node
        gone = [task for task, (_, pid, where) in contents.running.items() if where == node and _gone(pid)]
        self._mailbox.forget(gone)
        died = [*contents.died, *(contents.running[task][0] for task in gone)]
        self._missing += (
            Missing(shortened(who), "its process died before the task had ended") for who in died
        )
        return set(contents.running) - set(gone), bool(contents.records)

    # -- what is said once ---------------------------------------------------------------------------

    def _say_unable(self, host: str, reason: str) -> None:
        if self._said_unable:
            return
        self._said_unable = True
        self.say_once(
            f"Tasks on {host} run unmeasured, for its workers cannot use ipygpulogger ({reason}). "
            f"Install it there with: pip install ipygpulogger=={version('ipygpulogger')}, "
            'or start with: ray.init(runtime_env={"pip": ["ipygpulogger"]})'
        )

    def _say_what_was_declared_before(self) -> None:
        known = vars(sys.modules["__main__"]) if "__main__" in sys.modules else {}
        found = [
            name
            for name, value in list(known.items())
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


class _SentAsRaysOwn:
    """A function in place of one of Ray's; a task that uses it by name is sent Ray's own."""

    def __init__(self, ray: ModuleType, name: str, function: Callable[..., Any]) -> None:
        self._ray, self._name, self._function = ray, name, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._ray, self._name)


def _sent_as_rays_own(
    ray: ModuleType, name: str, maker: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[[Any], Callable[..., Any]]:
    return lambda original: _SentAsRaysOwn(ray, name, maker(original))


def _declaration(declared: Any) -> tuple[Any, dict[str, Any]]:
    """Return the function or class that was declared, and with which options; None if Ray does not tell.

    This is the only place that reads private attributes of Ray, of 2.60: the public ones do not tell.
    """
    options = dict(getattr(declared, "_default_options", None) or {})
    metadata = getattr(declared, "__ray_metadata__", None)
    if metadata is None:
        return getattr(declared, "_function", None), options
    return getattr(getattr(metadata, "modified_class", None), "__ray_actor_class__", None), options


def _gone(pid: int) -> bool:
    import psutil

    return not psutil.pid_exists(pid)
