"""``pytest --gpulog``: the tests ranked by what they needed; budgets and leaks. Without it, only its words.

Each phase of a test is measured: setup, call, teardown; and apart from it each fixture that tests share. The
records of a phase travel with its report, perhaps from another process, to where all reports arrive.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from .blocks.measure import Measure
    from .records import CellRecord
    from .storage.log import Log

    Steps = Generator[None, Any, Any]  # of a hook that encloses others

_MARKERS = {
    'memory_budget(ram="1GB", gpu="2GB")': "with --gpulog, fail a test that needs more",
    'no_leak("1MB", warmups=2)': "with --gpulog, run a test again, and fail it if each run grows by more",
}
_MOST_RUNS = 10  # of a test, after the warm-ups, to find out whether it grows
_SHOWN = 3  # sentences at the end


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
    for words, what in _MARKERS.items():
        config.addinivalue_line("markers", f"{words}: {what}")
    if config.getini("gpulog") or any(map(config.getoption, ("gpulog", "gpulog_log", "gpulog_peak"))):
        enclosing = (
            "runtest_setup",
            "runtest_call",
            "runtest_teardown",
            "fixture_setup",
            "runtest_makereport",
        )
        for name in enclosing:  # not as decorators, which older versions would refuse at every run of theirs
            pytest.hookimpl(wrapper=True, trylast=True)(getattr(_Tests, f"pytest_{name}"))
        pytest.hookimpl(tryfirst=True)(_Tests.pytest_runtestloop)
        config.pluginmanager.register(_Tests(config), "gpulog")


class _Tests:
    """The hooks. Nothing that fails in them fails a test; only a marker does."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._pid = config, os.getpid()
        self._is_worker = hasattr(config, "workerinput")  # of xdist
        self._log = None if self._is_worker else _log(config)
        self._setup: Measure | None = None  # while one is measured
        self._found: dict[str, CellRecord] = {}  # in the phase that runs: by phase, or the label of a fixture
        self._unknown: list[str] = []  # what could not be measured in it, and why
        self._arrived: dict[str | None, CellRecord] = {}  # by id: a test that runs again has its last figures
        self._said: list[str] = []

    def pytest_runtestloop(self, session: pytest.Session) -> None:
        from .engine.machine import machine
        from .engine.scope import measured_now

        with self._safely("the session", self._said):
            if self._log is not None and not session.config.option.collectonly:
                self._log.path.write_text("", encoding="utf-8")
            if self._is_worker or getattr(session.config.option, "dist", "no") == "no":
                machine().attach(self)
                measured_now()  # loads what the first test would otherwise load

    def pytest_unconfigure(self) -> None:
        from .engine.machine import machine

        with self._safely("the session", self._said):
            machine().detach(self)
            machine().close()

    def pytest_runtest_setup(self, item: pytest.Item) -> Steps:
        _asked(item, "memory_budget"), _asked(item, "no_leak")
        try:
            with self._measured("setup", f"{item.name}, setup", _place(item)) as self._setup:
                return (yield)
        finally:
            self._setup = None

    def pytest_runtest_call(self, item: pytest.Item) -> Steps:
        budget, verdict = _asked(item, "memory_budget"), ""
        if budget:
            _settle()  # or what earlier tests left would be used again, and not be needed
        peak = self._config.getoption("gpulog_peak") and budget and ("all" if "ram" in budget else True)
        with self._measured("call", item.name, _place(item), peak=peak or False):
            result = yield
        if not getattr(item, "_excinfo", None):  # how a `unittest.TestCase` fails
            with self._safely(item.name, self._unknown):
                verdict = self._over_budget(item, budget) or self._leak(item)
        if verdict:
            pytest.fail(verdict, pytrace=False)
        return result

    def pytest_runtest_teardown(self, item: pytest.Item) -> Steps:
        with self._measured("teardown", f"{item.name}, teardown", _place(item)):
            return (yield)

    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Steps:
        if fixturedef.scope == "function":
            return (yield)
        part = f"[{request.param_index}]" if fixturedef.params else ""
        label = f"{fixturedef.argname}{part} ({fixturedef.scope})"
        setup, self._setup = self._setup, None
        if setup is not None:  # it goes on after this
            setup.__exit__()
            self._keep("setup", setup, request.node.nodeid)
        try:
            with self._measured(label, label, fixturedef.baseid):
                return (yield)
        finally:
            if setup is not None:
                setup.__enter__()
            self._setup = setup

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> Steps:
        report = yield
        found, self._found, unknown, self._unknown = self._found, {}, self._unknown, []
        with self._safely(item.name, unknown):
            if report.failed and call.when in found and call.excinfo is not None:
                found[call.when] = replace(found[call.when], status="error", error=call.excinfo.typename)
            whole = self._config.getoption("gpulog_log") and "call"
            kept = {name: one.to_dict() for name, one in found.items() if name == whole or any(_need(one))}
            if kept or unknown:
                report.gpulog = json.dumps([kept, unknown])
        return report

    @contextmanager
    def _measured(self, phase: str, label: str, place: str, **how: Any) -> Iterator[Measure]:
        from .blocks.measure import Measure

        part = Measure(label, **how)
        part.warn = self._unknown.append
        try:
            with part:
                yield part
        finally:
            self._keep(phase, part, place)

    def _keep(self, phase: str, part: Measure, place: str) -> None:
        """Keep what a part used; of several, as where a fixture runs between, what needed the most."""
        from .analysis.ranking import by_need
        from .records import CellRecord, Measurement
        from .records.cell_record import TEST
        from .records.value import fields_of

        if part.last is not None:
            known: dict[str, Any] = {name: getattr(part.last, name) for name, _ in fields_of(Measurement)}
            known |= {"execution_count": None, "cell_id": f"{TEST}{place}::{part.label}", "source": place}
            record = CellRecord(**known, status="ok")
            self._found[phase] = max(record, self._found.get(phase, record), key=by_need)

    @contextmanager
    def _safely(self, what: str, unknown: list[str]) -> Iterator[None]:
        """Say what an error in our code leaves unknown, in place of raising it."""
        try:
            yield
        except Exception as error:
            unknown.append(f"{what} is not measured: {type(error).__name__}: {error}")

    def _over_budget(self, item: pytest.Item, budget: dict[str, int]) -> str:
        from .analysis.notable import overdrawn
        from .render import at_peak, text

        record = self._found.get("call")
        if record is None or not budget:
            return ""
        if "gpu" in budget and (unknown := [gpu.id for gpu in record.gpus if not gpu.attributed]):
            why = "per-process usage is unavailable"
            self._unknown.append(f"{item.name} has no known need on {', '.join(unknown)}: {why}")
        if not (over := overdrawn(record, budget.get("ram"), budget.get("gpu"))):
            return ""
        alive = [at_peak.text(record.at_peak, record.peak_times_s)] if record.at_peak else []
        return "\n".join([f"{item.name} {over}", text.report(record), *alive])

    def _leak(self, item: pytest.Item) -> str:
        """Run a test again until it is known whether it grows; return by how much if that is too much."""
        from .analysis.leaks import RUNS, growing_runs
        from .records.units import nonzero_text
        from .render.summary import suspect
        from .runtime.errors import named

        if not (asked := _asked(item, "no_leak")):
            return ""
        runs: list[CellRecord] = []
        steady = 0
        size_bytes, warmups = asked["size"], asked["warmups"]
        why = f"it grew in some of its last {_MOST_RUNS} runs only"
        for number in range(2, max(1, warmups) + _MOST_RUNS + 1):
            failed = ""
            with self._measured("run", item.name, _place(item)):
                try:
                    item.runtest()
                except Exception as error:
                    failed = named(error)
                _settle()
            record = self._found.pop("run")
            if failed or record.gen.precision_bytes > size_bytes:
                why = f"run {number} failed: {failed}" if failed else "RAM is counted too coarsely here"
                break
            if number > warmups:
                grew = growing_runs(runs := [*runs, record], size_bytes)
                steady = 0 if grew else steady + 1
                if len(grew) >= RUNS:
                    return f"Each run grew by more than {nonzero_text(size_bytes)}: {suspect(grew)}"
                if steady == RUNS:
                    return ""
        self._unknown.append(f"The growth of {item.name} is not known: {why}")
        return ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        from .storage.decode import record_from

        if self._is_worker or os.getpid() != self._pid:
            return
        with self._safely(report.nodeid, self._said):
            found, unknown = json.loads(getattr(report, "gpulog", "[{}, []]"))
            self._said += (
                unknown if report.when != "???" else [f"{report.nodeid} is not measured: it crashed"]
            )
            records = list(map(record_from, found.values()))
            self._arrived |= {record.cell_id: record for record in records if any(_need(record))}
            if self._log is not None and report.outcome != "rerun":
                self._log.append(*records)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        from .records.units import printable
        from .render.summary import summary

        with self._safely("the session", self._said):
            terminalreporter.section("memory that tests and shared fixtures needed, MB")
            most, width = max(1, self._config.getoption("gpulog_top")), shutil.get_terminal_size((100, 0))[0]
            records = list(self._arrived.values())
            table = summary(records, most=most, width=width).partition("\n")[2]
            terminalreporter.line(table or "none of them needed 1 MB")
        if self._said:
            more = f"; and {len(self._said) - _SHOWN} more" if len(self._said) > _SHOWN else ""
            terminalreporter.line(printable("; ".join(self._said[:_SHOWN]) + more))


def _need(record: CellRecord) -> list[int]:
    """Return what a record needed of each memory, and in child processes, in whole megabytes."""
    from .records.units import rounded_mb

    usages = [*record.memories().values(), *([record.children] if record.children else [])]
    return [rounded_mb(usage.needed_bytes) for usage in usages]


def _place(item: pytest.Item) -> str:
    return item.nodeid.removesuffix(f"::{item.name}")


def _settle() -> None:
    """Give back what only garbage holds, and what malloc keeps."""
    from .sources.system.linux import trim

    gc.collect()
    trim()


def _asked(item: pytest.Item, name: str) -> dict[str, int]:
    """Return what a marker asks for, nothing without it; fail the test if it asks for what does not exist."""
    if (marker := item.get_closest_marker(name)) is None:
        return {}
    try:
        asked = memory_budget if name == "memory_budget" else no_leak
        return asked(*marker.args, **marker.kwargs)
    except (TypeError, ValueError) as error:
        wrong = str(error)  # the test shall fail with this sentence alone, outside of the handler
    usage = next(words for words in _MARKERS if words.startswith(name))
    pytest.fail(f"{wrong}; the marker is written @pytest.mark.{usage}", pytrace=False)


def memory_budget(*, ram: str | None = None, gpu: str | None = None) -> dict[str, int]:
    """Return the budgets of the marker of this name, in bytes."""
    from .records.units import parse_size

    sizes = {"ram": ram, "gpu": gpu}
    if not any(sizes.values()):
        raise ValueError("memory_budget() has no size")
    return {name: parse_size(size) for name, size in sizes.items() if size is not None}


def no_leak(size: str = "1MB", warmups: int = 2) -> dict[str, int]:
    """Return what the marker of this name allows a run to grow by, in bytes, and after how many runs."""
    from .records.units import parse_size

    if type(warmups) is not int or warmups < 0:
        raise ValueError(f"no_leak() has warmups={warmups!r}, which is no number of runs")
    return {"size": parse_size(size), "warmups": warmups}


def _log(config: pytest.Config) -> Log | None:
    """Return the log that was asked for; refuse a path as the command line does."""
    if not (path := config.getoption("gpulog_log")):
        return None
    from .cli.arguments import BadRequest, check
    from .storage.log import Log

    try:
        log = Log(path)
        check({"the log": log.path}, config.rootpath, "the folder of the tests")
    except (BadRequest, OSError, ValueError) as error:
        raise pytest.UsageError(f"--gpulog-log: {error}") from None
    return log
