"""The command ``run`` with a script: run it in this process as Python does, and measure it like one cell.

Its streams, arguments, signals and exit status stay its own. All that we say goes to stderr.
"""

from __future__ import annotations

import builtins
import os
import sys
import threading
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from linecache import getline
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..breakdown.recording import PeakRecording
from ..engine.machine import machine
from ..engine.scope import Scope
from ..lines.line_profiler import LineProfiler
from ..records import CellRecord
from ..render import at_peak, lines, text
from ..runtime.errors import named, why
from ..sources.system.memray import ABSENT, installed
from .arguments import BadRequest, check, check_suffix
from .report import Results, write_page
from .run import judge
from .streams import aside

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from pathlib import Path

_FOR_NOTEBOOKS = "output", "show_output", "allow_errors", "timeout", "kernel", "parameters", "parameters_file"


def run_script(options: argparse.Namespace) -> int | BaseException:
    """Run and measure a script; return the exception that ended it, else the exit status."""
    path: Path = options.program
    for name in _FOR_NOTEBOOKS:
        if getattr(options, name):
            raise BadRequest(f"--{name.replace('_', '-')} is for notebooks, and {path} is a script")
    check({"the log": options.log, "the page": options.html}, path, "the script")
    check_suffix("the log", options.log, ".jsonl")
    try:
        source = path.read_bytes()
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {why(error)}") from error
    page = options.html and options.html.absolute()  # the script may change the working directory
    results = Results(options.log and options.log.absolute())
    results.started()
    file, pid = os.path.abspath(path), os.getpid()  # noqa: PTH100 - as Python does, links kept
    sys.argv = [str(path), *options.arguments]
    measured = _Measured(file, with_lines=options.lines, peak=options.peak)
    measured.begin()
    ended = _run(source, file)
    if os.getpid() == pid:  # not a child that it forked
        try:
            record = measured.record(path.name, ended)
            results.keep([record], source.decode(errors="replace"))
            _report(record, file)
            judge(results, options)
            if page:
                with results.failure(page):
                    write_page(
                        page, path.name, results.history, lambda _: results.sources[0], results.problems
                    )
        except Exception as error:  # how the script ended comes first
            results.fail(f"{path} could not be reported: {named(error)}")
        if results.problems and _succeeded(ended):
            return 1
    return 0 if ended is None else ended


def _succeeded(ended: BaseException | None) -> bool:
    return ended is None or (isinstance(ended, SystemExit) and not ended.code)


class _Measured:
    """What measures one run of a script."""

    def __init__(self, file: str, *, with_lines: bool, peak: bool | str) -> None:
        self._scope, self._lines, self._recording = Scope(), None, None
        if with_lines:
            self._lines = LineProfiler(lambda frame: frame.f_code.co_filename == file)
        if peak:  # memray slows what runs on a GPU
            of_ram = peak == "all" or not machine().nvml.devices()
            self._recording = PeakRecording(ram=of_ram)
            if of_ram and not installed():  # said before the script has run, too
                aside(f"ipygpulogger: {ABSENT}")
            _when_imported("torch", self._recording.torch_imported)

    def begin(self) -> None:
        """Begin to measure."""
        if self._lines is not None:
            self._lines.start()
        if self._recording is not None:
            self._recording.begin()
        self._scope.open()

    def record(self, name: str, ended: BaseException | None) -> CellRecord:
        """Stop the clock, and return the record of the script, which has ended."""
        self._scope.close()
        if self._lines is not None:
            self._lines.stop()
        if self._recording is not None:
            self._recording.end()
        succeeded = _succeeded(ended)
        record = self._scope.result(
            CellRecord,
            name,
            execution_count=None,
            cell_id=None,
            source=name,
            status="ok" if succeeded else "interrupted" if isinstance(ended, KeyboardInterrupt) else "error",
            error=None if succeeded else type(ended).__name__,
        )
        if self._recording is not None:
            record = self._recording.result(record)
        notes = list(record.notes)
        if self._lines is not None:
            record = replace(record, lines=self._lines.result(lambda _: ("", 0)))
            notes += self._lines.notes(lambda _: (name, 0))
        mine = threading.main_thread()
        if others := sum(one is not mine and not one.daemon for one in threading.enumerate()):
            alive = "1 thread goes" if others == 1 else f"{others} threads go"
            notes.append(f"{alive} on after the script's end; what is used from then on is not measured")
        return replace(record, notes=tuple(notes))


def _when_imported(name: str, then: Callable[[], None]) -> None:
    """Call once a module has been imported."""

    def find(fullname: str, *_: object) -> ModuleSpec | None:
        if fullname != name:
            return None
        sys.meta_path.remove(finder)
        spec = find_spec(name)  # of the other finders
        if spec is not None and spec.loader is not None:
            loader = spec.loader

            def exec_module(module: ModuleType) -> None:
                del vars(loader)["exec_module"]
                loader.exec_module(module)
                then()

            vars(loader)["exec_module"] = exec_module
        return spec

    finder: Any = SimpleNamespace(find_spec=find)
    sys.meta_path.insert(0, finder)


def _run(source: bytes, file: str) -> BaseException | None:
    """Run a script as ``__main__``; return what it raised, which Python will then print as it would alone."""
    main: Any = ModuleType("__main__")
    main.__file__, main.__builtins__, main.__cached__ = file, builtins, None
    main.__loader__ = SourceFileLoader("__main__", file)
    sys.modules["__main__"] = main
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(file))  # noqa: PTH120
    try:
        exec(compile(source, file, "exec", dont_inherit=True), vars(main))  # noqa: S102
    except BaseException as error:
        inner = error.__traceback__ and error.__traceback__.tb_next  # without the frame of this function
        hook = sys.excepthook
        sys.excepthook = lambda kind, raised, _: hook(kind, raised.with_traceback(inner), inner)
        return error
    return None


def _report(record: CellRecord, file: str) -> None:
    told = [text.report(replace(record, at_peak=()))]
    if record.lines:
        told.append(lines.table([replace(one, source=getline(file, one.lineno)) for one in record.lines]))
    if record.at_peak:
        told.append(at_peak.text(record.at_peak, record.peak_times_s))
    aside(*"\n".join(told).split("\n"))
