"""The command ``run`` with a script: run it in this process as Python does, and measure it like one cell.

Its streams, arguments, signals and exit status stay its own. All that we say goes to stderr.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from linecache import getline
from pathlib import Path
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
from .arguments import BadRequest, check
from .report import Results, write_page
from .run import judge
from .streams import aside

if TYPE_CHECKING:
    import argparse
    from importlib.machinery import ModuleSpec

    from ..records.cell_record import Status

_FOR_NOTEBOOKS = "output", "show_output", "allow_errors", "timeout", "kernel", "parameters", "parameters_file"


def run_script(options: argparse.Namespace) -> int | BaseException:
    """Run and measure a script; return the exception that ended it, else the exit status."""
    path, source = options.program, _source(options)
    page = options.html and options.html.absolute()  # the script may change the working directory
    results = Results(options.log and options.log.absolute(), log_source=options.log_source)
    results.started()
    file, pid = os.path.abspath(path), os.getpid()  # noqa: PTH100 - as Python does, links kept
    sys.argv = [str(path), *options.arguments]
    profiler = LineProfiler(lambda frame: frame.f_code.co_filename == file)
    recording = _recording(options.peak) if options.peak else None
    scope = Scope()
    if options.lines:
        profiler.start()
    if recording is not None:
        recording.begin()
    scope.open()
    ended = _run(source, file)
    if os.getpid() != pid:  # a child that it forked
        return 0 if ended is None else ended
    try:
        failed: Status = "interrupted" if isinstance(ended, KeyboardInterrupt) else "error"
        scope.close()
        profiler.stop()
        if recording is not None:
            recording.end()
        known: dict[str, Any] = {"execution_count": None, "cell_id": None, "source": path.name}
        known |= {"status": "ok"} if ended is None else {"status": failed, "error": type(ended).__name__}
        known["lines"] = profiler.result(lambda _: ("", 0))
        record = scope.result(CellRecord, path.name, **known)
        if recording is not None:
            record = recording.result(record)
        record = replace(record, notes=(*record.notes, *profiler.notes(lambda _: (path.name, 0))))
        results.keep([record], source.decode(errors="replace"))
        shown = record
        if isinstance(ended, SystemExit):
            status = ended.code if isinstance(ended.code, int) else 1
            shown = replace(record, error=f"SystemExit with status {status:d}")
        _report(shown, file)
        if options.log and not results.problems:
            aside(f"log: {options.log}")
        judge(results, options)
        if page:
            with results.failure(page):
                write_page(page, path.name, results.history, results.source, results.problems)
    except Exception as error:  # how the script ended comes first
        results.fail(f"{path} could not be reported: {named(error)}")
    return int(bool(results.problems)) if ended is None else ended


def _source(options: argparse.Namespace) -> bytes:
    path: Path = options.program
    for name in _FOR_NOTEBOOKS:
        if getattr(options, name):
            raise BadRequest(f"--{name.replace('_', '-')} is for notebooks, and {path} is a script")
    check({"the log": options.log, "the page": options.html}, path, "the script")
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {why(error)}") from error


def _recording(peak: bool | str) -> PeakRecording:
    of_ram = peak == "all" or not machine().nvml.devices()  # memray slows what runs on a GPU
    if of_ram and not installed() and machine().notes.is_new(ABSENT):  # said before the script has run
        aside(f"ipygpulogger: {ABSENT}")
    recording = PeakRecording(ram=of_ram)
    _when_torch_is_imported(recording.torch_imported)
    return recording


def _when_torch_is_imported(then: Callable[[], None]) -> None:
    """Call as the first import of torch ends."""

    def find(name: str, *_: object) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(finder)
        spec: Any = find_spec(name)  # of the other finders
        if spec is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                then()

            spec.loader.exec_module = exec_module
        return spec  # type: ignore[no-any-return]

    finder: Any = SimpleNamespace(find_spec=find)
    sys.meta_path.insert(0, finder)


def _run(source: bytes, file: str) -> BaseException | None:
    """Run a script as ``__main__``; return what it raised, which Python will then print as it would alone."""
    main = ModuleType("__main__")
    vars(main).update(__file__=file, __builtins__=builtins)
    sys.modules["__main__"] = main
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(file))  # noqa: PTH120
    try:
        exec(compile(source, file, "exec", dont_inherit=True), vars(main))  # noqa: S102
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            return None
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
        told.append(at_peak.text(record.at_peak, record.peak_times_s, record.timeline))
    aside(*"\n".join(told).split("\n"))
