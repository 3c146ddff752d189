"""The command ``run`` with a script: run it in this process as Python does, and measure it like one cell.

Its streams, arguments, signals and exit status stay its own. All that we say goes to stderr.
"""

from __future__ import annotations

import builtins
import os
import sys
import threading
from dataclasses import fields, replace
from importlib.machinery import SourceFileLoader
from linecache import getline
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..blocks.measure import measure
from ..lines.line_profiler import LineProfiler
from ..records import CellRecord, Measurement
from ..render import at_peak, lines, text
from .arguments import BadRequest, check, check_log, read_bytes
from .report import Results, write_page
from .run import judge
from .streams import aside

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from ..blocks.measure import Measure

_FOR_NOTEBOOKS = "output", "show_output", "allow_errors", "timeout", "kernel", "parameters", "parameters_file"


def run_script(options: argparse.Namespace) -> int | BaseException:
    """Run and measure a script; return the exception that ended it, else the exit status."""
    path: Path = options.program
    for name in _FOR_NOTEBOOKS:
        if getattr(options, name):
            raise BadRequest(f"--{name.replace('_', '-')} is for notebooks, and {path} is a script")
    check({"the log": options.log, "the page": options.html}, path, "the script")
    check_log(options.log)
    source = read_bytes(path, "script")
    page = options.html and options.html.absolute()  # the script may change the working directory
    results = Results(options.log and options.log.absolute())
    results.started()
    file, pid = os.path.abspath(path), os.getpid()  # noqa: PTH100 - as Python does, links kept
    profiler = LineProfiler(lambda frame: frame.f_code.co_filename == file) if options.lines else None
    measured = measure(path.name, peak=options.peak or False)
    sys.argv = [str(path), *options.arguments]
    ended = _run(source, file, measured, profiler)
    if os.getpid() == pid:  # not a child that it forked
        if measured.last is None:  # for which a warning was shown
            return 2 if ended is None else ended
        record = _record(measured.last, ended, profiler)
        results.keep([record], source.decode(errors="replace"))
        _report(record, file)
        judge(results, options)
        if page:
            with results.failure(page):
                write_page(page, path.name, results.history, lambda _: results.sources[0], results.problems)
        if record.status == "ok" and results.problems:
            return 1
    return 0 if ended is None else ended


def _run(source: bytes, file: str, measured: Measure, profiler: LineProfiler | None) -> BaseException | None:
    """Run a script as ``__main__``; return what it raised, which Python will then print as it would alone."""
    main: Any = ModuleType("__main__")
    main.__file__, main.__builtins__, main.__cached__ = file, builtins, None
    main.__loader__ = SourceFileLoader("__main__", file)
    sys.modules["__main__"] = main
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(file))  # noqa: PTH120
    try:
        if profiler is not None:
            profiler.start()
        with measured:
            exec(compile(source, file, "exec", dont_inherit=True), vars(main))  # noqa: S102 - this is the command
    except BaseException as error:
        inner = error.__traceback__ and error.__traceback__.tb_next  # without the frame of this function
        hook = sys.excepthook
        sys.excepthook = lambda kind, raised, _: hook(kind, raised.with_traceback(inner), inner)
        return error
    finally:
        if profiler is not None:
            profiler.stop()
    return None


def _record(found: Measurement, ended: BaseException | None, profiler: LineProfiler | None) -> CellRecord:
    succeeded = ended is None or (isinstance(ended, SystemExit) and not ended.code)
    record = CellRecord(
        **{one.name: getattr(found, one.name) for one in fields(found)},
        execution_count=None,
        cell_id=None,
        source=found.label,
        status="ok" if succeeded else "interrupted" if isinstance(ended, KeyboardInterrupt) else "error",
        error=None if succeeded else type(ended).__name__,
    )
    notes = list(record.notes)
    if profiler is not None:
        record = replace(record, lines=profiler.result(lambda _: ("", 0)))
        notes += profiler.notes(lambda _: (found.label, 0))
    others = [one for one in threading.enumerate() if one is not threading.main_thread() and not one.daemon]
    if others:
        alive = "1 thread goes" if len(others) == 1 else f"{len(others)} threads go"
        notes.append(f"{alive} on after the script's end; what is used from then on is not measured")
    return replace(record, notes=tuple(notes))


def _report(record: CellRecord, file: str) -> None:
    told = [text.report(replace(record, at_peak=()), timelines=True)]
    if record.lines:
        told.append(lines.table([replace(one, source=getline(file, one.lineno)) for one in record.lines]))
    if record.at_peak:
        told.append(at_peak.text(record.at_peak, record.peak_times_s))
    aside(*"\n".join(told).split("\n"))
