"""`watch` for ipyparallel: a table after each cell that ran ``%px``, a row per engine.

Measured is what engines run as cells: ``%px``, ``%%px``, ``%autopx``, and ``view.execute`` with
``silent=False``. The records arrive with the output of the cell, see `engine_cells`. Which requests are under
way is known from a wrapper around the public method ``execute`` of views, which is there while a watch runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..analysis.group import Group, Missing
from ..records.process import ProcessRecord
from ..runtime import clock
from ..runtime.errors import why
from ..runtime.shell import first_line
from ..runtime.wrappers import Wrappers
from .arrivals import unpacked
from .engine_cells import KEY
from .watcher import Watch, label_here, running, watch_of

# What an engine runs silently. It binds no name there, and finds a package that was installed a moment ago.
_CALL = (
    "[m.invalidate_caches() or m.import_module('ipygpulogger')"
    " and m.import_module('ipygpulogger.cluster.engine_cells').{}() for m in [__import__('importlib')]]"
)
_PATIENCE_S = 1.0  # at the start and the stop, for engines that answer; busy ones do it when they come to it
_OUTPUT_S = 0.5  # after a cell, for output that is still on its way behind the result
_LACKS = "ipygpulogger is not installed there"
_CURE = "; to install it: %px %pip install ipygpulogger; then stop() this watch and begin another one"
_JOINED = "it joined later; to measure it, stop() this watch and begin another one"
_WRAPPERS = [
    Wrappers(lambda name=name: getattr(sys.modules.get("ipyparallel"), name, None))  # type: ignore[misc]
    for name in ("DirectView", "BroadcastView")
]


class IPyParallelWatch(Watch):
    """What `watch` returns for an ``ipyparallel.Client``: measures the engines that it finds."""

    def __init__(self, client: Any, *, report: bool = True) -> None:
        super().__init__(client, report=report)
        self._engines: dict[int, str] = {}  # by id: why it cannot be measured, empty if it can
        self._requests: list[_Request] = []  # whose records no group has
        self._begin()
        self.started()
        for wrappers in _WRAPPERS:
            wrappers.put_on({"execute": _noticed})

    @staticmethod
    def client_of(client: Any) -> Any:
        """Return the client itself, or that of a view; a TypeError for anything else of ipyparallel's."""
        found = getattr(client, "client", client)
        if not isinstance(found, sys.modules["ipyparallel"].Client):
            raise TypeError(f"watch() takes an ipyparallel.Client, not {client!r}")
        return found

    def leave(self) -> None:
        """Have the engines stop, busy ones when they come to it; requests that still run have no record."""
        if not any(isinstance(other, IPyParallelWatch) for other in running):
            for wrappers in _WRAPPERS:
                wrappers.take_off()
        self._requests.clear()
        with suppress(Exception):  # the client is closed: the engines measure nothing that others send
            here = self.client.ids
            _wait([self._send(engine, "end") for engine in self._engines if engine in here])

    # -- the engines -------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Have each engine measure; a busy one begins when it comes to it. Say which cannot be measured."""
        answers = {engine: self._send(engine, "begin") for engine in self.client.ids}
        self._engines.update(dict.fromkeys(answers, ""))
        _wait(answers.values())
        reasons: dict[str, list[int]] = {}
        for engine, answer in answers.items():
            try:
                if answer.ready():
                    answer.get(0)
                    answer.wait_for_output(_OUTPUT_S)
                    self.spare(*json.loads(answer.metadata["data"].get(KEY, b"[null, 0]")))
            except Exception as error:
                reason = self._engines[engine] = _why_not(error)
                reasons.setdefault(reason, []).append(engine)
        for reason, engines in reasons.items():
            names = f"engine{'s' * (len(engines) > 1)} {', '.join(map(str, engines))}"
            self.say_once(f"Not measured: {names}, as {reason}{_CURE if reason == _LACKS else ''}")

    def _send(self, engine: int, name: str) -> Any:
        """Call a function of `engine_cells` in an engine; return the pending answer."""
        # As text, which runs on any version of Python; a function needs the same version on both sides.
        return self.client[engine].execute(_CALL.format(name), silent=True, block=False)

    # -- the requests ------------------------------------------------------------------------------

    def expect(self, answer: Any, code: str) -> None:
        """Expect the records of a request, of which this is the ``AsyncResult``."""
        with self.lock:  # any thread may send a request
            self._requests.append(_Request(answer, code))

    def ended(self, label: str | None) -> Iterator[Group]:
        """Yield a group for each cell whose requests are all over; outside IPython, for each request."""
        with self.lock:
            cells: dict[str | int, list[_Request]] = {}
            for i, request in enumerate(self._requests):
                request.label = request.label or label
                cells.setdefault(request.label or i, []).append(request)
            until_s = clock.monotonic_s() + _OUTPUT_S
            over = [found for found in cells.values() if all(one.is_over(until_s) for one in found)]
            done = [request for found in over for request in found]
            self._requests = [request for request in self._requests if request not in done]
            groups = [self._group(requests) for requests in over]
            if getattr(self.client, "_closed", False):  # by the user, or by the `with` that opened it
                self.stop()
        yield from groups

    def _group(self, requests: list[_Request]) -> Group:
        label = requests[0].label or first_line(requests[0].code)
        records: list[ProcessRecord] = []
        missing: dict[int, str] = {}
        for request in requests:
            for engine, metadata in request.parts():
                payload = metadata["data"].get(KEY)
                record = unpacked(payload) if isinstance(payload, bytes) else None
                if record is None:
                    missing[engine] = self._why_missing(engine, metadata)
                else:
                    task = first_line(request.code) if len(requests) > 1 else None
                    process = replace(record.process, rank=engine, worker=f"engine {engine}", task=task)
                    records.append(replace(record, label=label, process=process))
        named = [Missing(f"engine {engine}", reason) for engine, reason in sorted(missing.items())]
        return Group(label, records, named)

    def _why_missing(self, engine: int, metadata: Any) -> str:
        if engine not in self.client.ids:
            return "it died, or left the cluster"
        if metadata["status"] == "aborted":
            return "it did not run this"
        return self._engines.get(engine, _JOINED) or "it sent no record"


class _Request:
    """One request to some engines, until its records are in a group."""

    def __init__(self, answer: Any, code: str) -> None:
        self.label = label_here()  # if a thread sent it, later that of the next cell that ends
        self.code = code
        self._answer = answer

    def is_over(self, until_s: float) -> bool:
        """Return whether each engine has run it, failed or died; output may come until then."""
        if not self._answer.ready():
            return False
        self._answer.wait_for_output(max(0, until_s - clock.monotonic_s()))
        return True

    def parts(self) -> Iterator[tuple[int, Any]]:
        """Yield each engine that was to run it, and the metadata of its part."""
        found = self._answer.metadata
        many = found if isinstance(found, list) else [found]
        targets: Any = getattr(self._answer, "_targets", None)  # of a dead engine, the metadata lacks the id
        is_known = isinstance(targets, list) and len(targets) == len(many)
        ids = targets if is_known else [one["engine_id"] for one in many]
        yield from ((engine, one) for engine, one in zip(ids, many, strict=True) if isinstance(engine, int))


def _why_not(error: Exception) -> str:
    """Return why an engine cannot be measured, in the words of the error that it answered."""
    name, text = getattr(error, "ename", ""), str(getattr(error, "evalue", ""))
    if name == "ModuleNotFoundError" and "ipygpulogger" in text:
        return _LACKS
    return f"{name}: {text}" if name else why(error)


def _wait(answers: Iterable[Any]) -> None:
    """Wait for answers, but for none of them longer than `_PATIENCE_S` from now."""
    deadline_s = clock.monotonic_s() + _PATIENCE_S
    for answer in answers:
        answer.wait(max(0, deadline_s - clock.monotonic_s()))


# -- the wrapper -----------------------------------------------------------------------------------


def _noticed(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``execute`` of a view, so that the watch of its client expects the records of the request."""

    def execute(
        view: Any, code: str, silent: bool = True, targets: Any = None, block: Any = None, **more: Any
    ) -> Any:
        __tracebackhide__ = True  # the user's traceback shows the library's own frames
        watch = None if silent or not code.strip() else watch_of(view.client)
        if not isinstance(watch, IPyParallelWatch):
            return original(view, code, silent, targets, block, **more)
        answer = original(view, code, silent, targets, False, **more)
        watch.expect(answer, code)
        if view.block if block is None else block:
            with suppress(KeyboardInterrupt):  # as the original waits, which would raise without an answer
                answer.get()
                answer.wait_for_output()
        return answer

    return execute
