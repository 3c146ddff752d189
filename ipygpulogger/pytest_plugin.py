"""``pytest --gpulog``: the tests ranked by what they needed; budgets and leaks. Without it, only its words.

Each phase of a test is measured: setup, call, teardown; and apart from it each fixture that tests share. The
records of a phase travel with its report, perhaps from another process, to where all reports arrive.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .blocks.measure import Measure
    from .records import CellRecord
    from .storage.log import Log

    Steps = Generator[None, Any, Any]  # of a hook that encloses others

_MARKERS = {
    "memory_budget": '(ram="1GB", gpu="2GB"): with --gpulog, fail a test that needs more',
    "no_leak": '(size="1MB", warmups=2): with --gpulog, run a test again, and fail it if it grows',
}
_SHOWN_BYTES = 2**19  # a need beyond this is shown as 1 MB
_MOST_RUNS = 10  # of a test, after the warm-ups, to find out whether it grows


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, and the key of the ini file."""
    group = parser.getgroup("gpulog", "memory of tests (ipygpulogger)")
    what = "rank the tests by what they needed of RAM and of each device, and obey the markers"
    group.addoption("--gpulog", action="store_true", help=f"{what} memory_budget and no_leak")
    group.addoption("--gpulog-top", type=int, default=20, metavar="N", help="show this many (default: 20)")
    group.addoption("--gpulog-log", metavar="FILE.jsonl", help="--gpulog, and write the records to this file")
    alive = "--gpulog, and list what was alive at the peak of a test that goes over its budget"
    group.addoption("--gpulog-peak", action="store_true", help=alive)
    parser.addini("gpulog", "whether to measure memory, as --gpulog does", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Add the markers; and measure, if asked to."""
    for name, what in _MARKERS.items():
        config.addinivalue_line("markers", f"{name}{what}")
    if config.getini("gpulog") or any(map(config.getoption, ("gpulog", "gpulog_log", "gpulog_peak"))):
        for hook in filter(inspect.isgeneratorfunction, vars(_Tests).values()):
            pytest.hookimpl(wrapper=True, trylast=True)(hook)
        pytest.hookimpl(tryfirst=True)(_Tests.pytest_runtestloop)
        pytest.hookimpl(wrapper=True)(_Tests.pytest_runtest_makereport)  # after what marks expected failures
        config.pluginmanager.register(_Tests(config), "gpulog")


class _Tests:
    """The hooks. Nothing that fails in them fails a test; only a marker does."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._pid = config, os.getpid()
        self._is_worker = hasattr(config, "workerinput")  # of xdist
        self._log = None if self._is_worker else _log(config.getoption("gpulog_log"))
        self._phase: Any = None  # while a setup or teardown is measured: what `_end` needs to know
        self._apart = ExitStack()  # the teardown of a fixture that tests share
        self._found: dict[str, CellRecord] = {}  # in the phase that runs: by phase, or the label of a fixture
        self._unknown: list[str] = []  # what could not be measured in it, and why
        self._arrived: dict[str | None, CellRecord] = {}  # by id: a test that runs again has its last figures
        self._said: list[str] = []
        self._reported, self._logs_calls = False, config.getoption("gpulog_log") is not None
        with self._safely("the session", self._said):
            from .engine import scope  # noqa: F401 - the peak of a process that has grown since is read faster

    def pytest_runtestloop(self, session: pytest.Session) -> None:
        from .engine.machine import machine
        from .engine.scope import measured_now
        from .runtime.errors import write_file

        with self._safely("the session", self._said):
            if self._log is not None and not session.config.option.collectonly:
                write_file(self._log.path, "")
            if self._is_worker or getattr(session.config.option, "dist", "no") == "no":
                machine().attach(self)
                self._config.add_cleanup(lambda: machine().detach(self))
                measured_now()  # loads what the first test would otherwise load

    def pytest_runtest_setup(self, item: pytest.Item) -> Steps:
        _asked(item, "memory_budget"), _asked(item, "no_leak")
        with self._measured("setup", f"{item.name}, setup", item.nodeid) as self._phase:
            return (yield)

    def pytest_runtest_call(self, item: pytest.Item) -> Steps:
        verdict, budget, growth = "", _asked(item, "memory_budget"), _asked(item, "no_leak")
        if budget:
            with self._safely(item.name, self._unknown):
                _settle()  # or it would use again what earlier tests left, and not need it
        peak = bool(budget) and self._config.getoption("gpulog_peak") and ("all" if "ram" in budget else True)
        always = bool(budget) or self._logs_calls
        with self._measured("call", item.name, item.nodeid, always=always, peak=peak):
            result = yield
        if (budget or growth) and not getattr(item, "_excinfo", None):  # how a `unittest.TestCase` fails
            with self._safely(item.name, self._unknown):
                verdict = self._over_budget(item, budget) or (self._leak(item, **growth) if growth else "")
        if verdict:
            pytest.fail(verdict, pytrace=False)
        return result

    def pytest_runtest_teardown(self, item: pytest.Item) -> Steps:
        with self._measured("teardown", f"{item.name}, teardown", item.nodeid) as self._phase:
            return (yield)

    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Steps:
        if fixturedef.scope == "function":
            return (yield)
        part = f"[{request.param_index}]" if fixturedef.params else ""
        label, place = f"{fixturedef.argname}{part} ({fixturedef.scope})", fixturedef.baseid
        with self._between(label, place):
            result = yield
        teardown = f"{label}, teardown"  # from its first finalizer, which is the last one added, on
        fixturedef.addfinalizer(lambda: self._apart.enter_context(self._between(teardown, place)))
        return result

    def pytest_fixture_post_finalizer(self) -> None:
        self._apart.close()

    @contextmanager
    def _between(self, label: str, place: str) -> Iterator[None]:
        """Measure a fixture that tests share, apart from the phase in which it is set up or torn down."""
        phase, self._phase = self._phase, None
        if phase:  # it goes on after this
            self._end(*phase)
        try:
            with self._measured(label, label, place):
                yield
        finally:
            if phase:
                with self._safely(label, self._unknown):
                    phase[1].__enter__()
            self._phase = phase

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> Steps:
        report, self._phase = (yield), None
        found, self._found, unknown, self._unknown = self._found, {}, self._unknown, []
        if not found and not unknown:
            return report
        with self._safely(item.name, unknown):
            if report.failed and call.when in found and call.excinfo is not None:
                found[call.when] = replace(found[call.when], status="error", error=call.excinfo.typename)
            whole = self._logs_calls and "call"
            kept = {name: one.to_dict() for name, one in found.items() if name == whole or _matters(one)}
            if kept or unknown:
                report.gpulog = json.dumps([kept, unknown])
        return report

    @contextmanager
    def _measured(
        self, phase: str, label: str, place: str, *, always: bool = False, **how: Any
    ) -> Iterator[Any]:
        from .blocks.measure import Measure

        part = Measure(label, **how)
        part.from_bytes, part.warn = 0 if always else _SHOWN_BYTES, self._unknown.append
        with self._safely(label, self._unknown):
            part.__enter__()
        try:
            yield phase, part, place
        finally:
            self._end(phase, part, place)

    def _end(self, phase: str, part: Measure, place: str) -> None:
        """Keep what a part used; of several, as where a fixture runs between, what needed the most."""
        with self._safely(part.label, self._unknown):
            part.__exit__()
            if part.last is not None:
                from .analysis.ranking import by_need
                from .records.cell_record import TEST, CellRecord

                known: dict[str, Any] = {one.name: getattr(part.last, one.name) for one in fields(part.last)}
                known |= {"execution_count": None, "cell_id": f"{TEST}{place}, {phase}"}
                record = CellRecord(**known, source=place.partition("::")[0], status="ok")
                self._found[phase] = max(record, self._found.get(phase, record), key=by_need)

    @contextmanager
    def _safely(self, what: str, unknown: list[str], done: str = "measured") -> Iterator[None]:
        """Say what an error in our code leaves unknown, in place of raising it."""
        try:
            yield
        except Exception as error:
            unknown.append(f"{what} is not {done}: {type(error).__name__}: {error}")

    def _over_budget(self, item: pytest.Item, budget: dict[str, int]) -> str:
        from .analysis.notable import overdrawn
        from .render import at_peak, text

        if not budget or (record := self._found.get("call")) is None:
            return ""
        over, self._unknown[:0] = overdrawn(record, budget.get("ram"), budget.get("gpu"))
        alive = [at_peak.text(record.at_peak, record.peak_times_s)] if record.at_peak else []
        said = [f"{item.name} {over}", text.report(replace(record, at_peak=())), *alive]
        return "\n".join(said) if over else ""

    def _leak(self, item: pytest.Item, size: int, warmups: int) -> str:
        """Run a test again until it is known whether it grows; return by how much if that is too much."""
        from .analysis.leaks import RUNS, growing_runs
        from .records.units import nonzero_text
        from .render.summary import suspect

        runs: list[CellRecord] = []
        steady = 0
        why = f"it grew in some of its last {_MOST_RUNS} runs only"
        for number in range(2, max(1, warmups) + _MOST_RUNS + 1):
            failed: BaseException | None = None
            with self._measured("run", item.name, item.nodeid, always=True):
                try:
                    item.runtest()
                except (Exception, SystemExit, pytest.fail.Exception, pytest.skip.Exception) as error:
                    failed = error
                _settle()
            if failed is not None or (record := self._found.pop("run", None)) is None:
                failure = f"failed: {type(failed).__name__}: {failed}" if failed else "is not measured"
                why = f"run {number} {failure}"
                break
            if number > warmups:
                grew = growing_runs(runs := [*runs, record], size)
                steady = 0 if grew else steady + 1
                if len(grew) >= RUNS:
                    return f"Each run grew by more than {nonzero_text(size)}: {suspect(grew)}"
                if steady == RUNS:
                    return ""
        self._unknown.append(f"The growth of {item.name} is not known: {why}")
        return ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if self._is_worker or os.getpid() != self._pid:
            return
        self._reported = True
        if report.when == "???":
            self._said.append(f"{report.nodeid} is not measured: it crashed")
        if not hasattr(report, "gpulog"):
            return
        with self._safely(report.nodeid, self._said):
            from .storage.decode import record_from

            found, unknown = json.loads(report.gpulog)
            self._said += unknown
            records = list(map(record_from, found.values()))
            self._arrived |= {record.cell_id: record for record in records if _matters(record)}
            if self._log is not None and report.outcome != "rerun":
                with self._safely(str(self._log.path), self._said, "written"):
                    self._log.append(*records)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        from .records.units import printable
        from .render.summary import summary

        if not (self._reported or self._said):
            return
        terminalreporter.section("memory that tests and shared fixtures needed, MB")
        with self._safely("the session", self._said):
            most, width = max(1, self._config.getoption("gpulog_top")), shutil.get_terminal_size((100, 0))[0]
            table = summary(list(self._arrived.values()), most=most, width=width).partition("\n")[2]
            terminalreporter.line(table or "none of them is known to have needed 1 MB")
        if said := list(dict.fromkeys(self._said)):
            more = f"; and {len(said) - 3} more" if len(said) > 3 else ""
            terminalreporter.line(printable("; ".join(said[:3]) + more))


def _matters(record: CellRecord) -> bool:
    return any(usage.needed_bytes > _SHOWN_BYTES for usage in record.memories().values())


def _settle() -> None:
    """Give back what only garbage holds, and what malloc keeps where it can."""
    import ctypes

    gc.collect()
    with suppress(AttributeError, OSError, TypeError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)


def _asked(item: pytest.Item, name: str) -> dict[str, int]:
    """Return what a marker asks for, nothing without it; fail the test if it is not written as it should."""
    if (marker := item.get_closest_marker(name)) is None:
        return {}
    from .records.units import parse_size

    known = ("ram", "gpu") if name == "memory_budget" else ("size", "warmups")
    given = {**dict(zip(("size", "warmups", "more"), marker.args, strict=False)), **marker.kwargs}
    asked, wrong = {} if "ram" in known else {"size": 2**20, "warmups": 2}, ""
    try:
        for word, value in given.items():
            asked[word] = int(value) if word == "warmups" else parse_size(value)
    except (TypeError, ValueError) as error:
        wrong = str(error)
    if not given.keys() <= set(known) or ("ram" in known and not given) or asked.get("warmups", 0) < 0:
        wrong = f"{name} takes {known[0]} and {known[1]}"
    if wrong:
        usage = _MARKERS[name].partition(": ")[0]
        pytest.fail(f"{wrong}; write it as @pytest.mark.{name}{usage}", pytrace=False)
    return asked


def _log(path: str | None) -> Log | None:
    """Return the log that was asked for; refuse a path as the command line does."""
    if path is None:
        return None
    from .storage.log import Log

    try:
        log = Log(path)
    except ValueError as error:
        raise pytest.UsageError(f"--gpulog-log: {error}") from None
    if log.path.suffix.lower() != ".jsonl":
        raise pytest.UsageError(f"--gpulog-log: the log {path} must be named .jsonl")
    return log
