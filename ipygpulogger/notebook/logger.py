"""IPyGPULogger: the cell, measured and reported."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from traitlets import Bool, Enum, Instance, TraitError, Tuple, Unicode, Union, validate
from traitlets.config import Configurable

from ..engine.machine import machine
from ..engine.scope import METRICS, Scope
from ..lines.tracing import spent
from ..owners.growth import Growth
from ..records import MIME, CellRecord, Data
from ..records.budget import excesses, parse
from ..records.embed import embedded
from ..records.history import History
from ..records.log import Log
from ..records.units import printable, rounded_mb, truncated_mb
from ..render import html, text
from ..render import lines as lines_table
from ..runtime.errors import why
from ..runtime.output import say
from ..runtime.signals import is_from_a_handler
from ..sources import Unavailable
from .between_cells import Gap
from .cell_events import CellEvents
from .cell_lines import CellLines
from .cell_options import Request, is_gpulog_only, request_of
from .live import Live, place_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..owners.oom_autopsy import Autopsy
    from ..records import LineUsage, Measurement, Owner
    from ..render.owners import Freed
    from .cell_events import Cell

_NOTHING_MEASURED = "ipygpulogger measures nothing for now"


class Magics(Protocol):
    """``%gpulog``, about one logger."""

    def offer(self) -> None:
        """It stands in the logger's shell from now on."""

    def withdraw(self) -> None:
        """It does no longer."""


class IPyGPULogger(Configurable):
    """Tells after every cell what it consumed, peaked and uses, and how long it took.

    Args:
        compact: Report on one line.
        gc_collect: Collect garbage before each snapshot.
        options: Any other trait below, by name.

    Raises:
        TypeError: An unknown option.
        ValueError: A value that the option does not take.
        RuntimeError: There is no IPython shell here.

    Example:
        ``il = IPyGPULogger().start()``; after some cells ``il.data``, ``il.record``, ``il.history``.
    """

    compact = Bool(False, help="Report on one line.").tag(config=True)
    gc_collect = Bool(True, help="Collect garbage before each snapshot.").tag(config=True)
    clear_cache = Bool(True, help="Empty torch's cache before each snapshot.").tag(config=True)
    preload = Bool(
        True, help="Create the GPU context before a cell runs, once torch is imported; not before forking."
    ).tag(config=True)
    report = Enum(
        ("text", "rich", "none"), "text", help="Print a table, display a rich one, or say nothing."
    ).tag(config=True)
    devices = Enum(
        ("used", "all"), "used", help="The devices that this process uses, or all of the machine."
    ).tag(config=True)
    metrics = Tuple(help="What else to tell of each GPU, all processes together: energy, utilization.").tag(
        config=True
    )
    lines = Bool(
        False, help="Measure each line of the cells, and of functions that earlier cells defined."
    ).tag(config=True)
    budget = Unicode(
        None,
        allow_none=True,
        help="What a cell may need, such as 10GB: on each GPU, or of RAM while the process uses no GPU.",
    ).tag(config=True)
    log = Union(
        (Unicode(), Instance(Path)),
        default_value=None,
        allow_none=True,
        help="A .jsonl file to which each cell's record is added as the cell ends.",
    ).tag(config=True)
    reset_peaks = Bool(
        True, help="Reset the kernel's peak counter, so that peaks are exact; lowers getrusage().ru_maxrss."
    ).tag(config=True)

    # Set by the package, for the magics stand above this file.
    magics_of: ClassVar[Callable[[Any, IPyGPULogger], Magics]]

    _log: Log | None = None

    def __init__(self, compact: bool | None = None, gc_collect: bool | None = None, **options: Any) -> None:
        given = {"compact": compact, "gc_collect": gc_collect}
        options |= {name: value for name, value in given.items() if value is not None}
        self.check(options)
        shell = _shell()
        if shell is None:
            raise RuntimeError(
                "IPyGPULogger works inside IPython; outside it, measure a block of code with"
                " ipygpulogger.measure."
            )
        super().__init__(parent=shell, **options)
        self._shell = shell
        self._magics = type(self).magics_of(shell, self)
        self._running = False
        self._machine = machine()
        self._history = History()
        self._scopes: dict[Cell, tuple[Scope, float]] = {}  # with what we cost it before it opened
        self._requests: dict[Cell, Request] = {}
        self._lines: dict[Cell, CellLines] = {}
        self._places: dict[str, tuple[str, int]] = {}  # of earlier cells' lines, by file name
        self._only: int | None = None  # the thread whose next cell is the only one to be measured
        self._autopsies: dict[Cell, Autopsy] = {}
        self._growth = Growth.of(shell)
        self._gap = Gap()  # since the last cell
        self._gaps: dict[Cell, Gap] = {}  # before each cell that runs, if no other ran beside it
        self._live = Live(self._over_budget)
        self._said: set[str] = set()

    @classmethod
    def check(cls, options: dict[str, Any]) -> None:
        """Refuse an unknown option with `TypeError`, a value it does not take with `ValueError`."""
        traits = cls.class_traits(config=True)
        for name, value in options.items():
            if name not in traits:
                raise cls._unknown(name)
            trait = traits[name]
            if name == "budget":
                if isinstance(value, str):
                    parse(value)
                elif value is not None:
                    raise ValueError(f"budget takes a size such as '10GB', or None, not {value!r}")
                continue
            if name == "log":
                _log_at(value)
                continue
            if name == "metrics":
                if not isinstance(value, (tuple, list)) or any(name not in list(METRICS) for name in value):
                    raise ValueError(f"metrics takes any of {', '.join(map(repr, METRICS))}, not {value!r}")
                continue
            valid: tuple[Any, ...] = tuple(trait.values or ()) if isinstance(trait, Enum) else (True, False)
            if value not in valid or (isinstance(trait, Bool) and not isinstance(value, bool)):
                raise ValueError(f"{name} takes {' or '.join(map(repr, valid))}, not {value!r}")

    @classmethod
    def _unknown(cls, name: str) -> TypeError:
        """The refusal of an option that does not exist, with the nearest that does."""
        from difflib import get_close_matches

        known = sorted(cls.class_traits(config=True))
        near = "".join(f" (did you mean {one!r}?)" for one in get_close_matches(name, known, 1))
        return TypeError(f"{cls.__name__} has no option {name!r}{near}; it has {', '.join(known)}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an option; an attribute that no class declares is a mistyped one, and refused.

        Raises:
            TypeError: There is no such option.
        """
        if not name.startswith("_") and not hasattr(type(self), name):
            raise self._unknown(name)
        super().__setattr__(name, value)

    @validate("budget", "metrics")
    def _check_value(self, proposal: Any) -> Any:
        value = proposal["value"]
        try:
            self.check({proposal["trait"].name: value})
        except ValueError as error:
            raise TraitError(str(error)) from error
        return value

    @validate("log")
    def _check_log(self, proposal: Any) -> Any:
        try:
            self._log = _log_at(proposal["value"])
        except ValueError as error:
            raise TraitError(str(error)) from error
        return proposal["value"]

    # -- what users call -----------------------------------------------------------------------

    def start(self) -> IPyGPULogger:
        """Report from now on, the rest of the running cell included; calling it again changes nothing.

        ``%gpulog`` is then about this logger, unless the extension is loaded: that has one of its own.
        """
        if not self._running:
            try:
                self._say_what_is_missing()
                self._magics.offer()
                self._preload()
                self._settle()
                self._listen(running=True)
            except BaseException:  # interrupted half way
                self.stop()
                raise
        self._only = None
        return self

    def expect(self) -> None:
        """If stopped: measure the one cell that comes next on this thread, if it begins with ``%%gpulog``."""
        if not self._running:
            try:
                self._listen(running=False)
                self._only = threading.get_ident()
            except Exception as error:  # the cell runs all the same
                self._failed(error)
                self._halt()

    def _listen(self, *, running: bool) -> None:
        self._machine = machine()  # a child that a fork makes lets go of this one, its parent's
        self._machine.attach(self)
        if self not in self._shell.configurables:
            self._shell.configurables.append(self)  # so that %config finds it
        self._running = True
        CellEvents.of(self._shell).subscribe(self, running=running)

    def stop(self) -> None:
        """Report no longer, not even this cell; prints nothing, and calling it again changes nothing.

        No thread, hook or handle of ours remains, nor ``%gpulog``, unless the extension is loaded. The one
        thing that may: while taking our wrapper off would make ``torch.cuda.max_memory_allocated()`` forget
        a peak of the time before, the wrapper stays, until your next ``reset_peak_memory_stats()``. Should
        you interrupt it, call it again.
        """
        self._magics.withdraw()
        self._halt()

    def _halt(self) -> None:
        """Measure no longer; ``%gpulog`` stays."""
        self._running = False
        for cell in tuple(self._requests):
            self._drop(cell)
        if self in self._shell.configurables:
            self._shell.configurables.remove(self)
        self._live.close()
        self._growth.close()
        self._gap = Gap()
        self._machine.detach(self)
        self._machine.close()
        CellEvents.of(self._shell).unsubscribe(self)  # last: until then the next cell does it again

    @property
    def running(self) -> bool:
        """Whether cells are being reported."""
        return self._running

    @property
    def magics(self) -> Magics:
        """``%gpulog``, about this logger; in the shell once it was started."""
        return self._magics

    @property
    def record(self) -> CellRecord | None:
        """The last finished cell, in bytes and seconds; None before the first."""
        return self._history[-1] if self._history else None

    @property
    def data(self) -> Data:
        """The last finished cell, in whole MB and seconds; before the first, only the RAM in use now."""
        if self.record is not None:
            return self.record.data()
        rss_bytes = machine().ram.look().readings[0].current_bytes
        return Data(0, 0, truncated_mb(rss_bytes), 0, 0, 0, 0.0)

    @property
    def history(self) -> History:
        """The records of all finished cells."""
        return self._history

    def owners(self) -> tuple[Owner, ...]:
        """Who holds memory now, by name and device, the largest first: as ``%gpulog vars`` shows it."""
        from ..owners.roots import all_holdings, owners_in

        return owners_in(self._shell, all_holdings()).owners

    def free(self) -> Freed:
        """Give back what the last traceback and ``Out`` still hold, as ``%gpulog free`` does.

        ``%debug`` has nothing to go into afterwards.

        Returns:
            What was dropped and how many bytes came back by device; printed, it says so.
        """
        from ..owners.release import give_back
        from ..render.owners import Freed

        return Freed(*give_back(self._shell, reset_peaks=self.reset_peaks))

    @property
    def lifetime_peak_bytes(self) -> int:
        """The highest resident memory of this process, which ``getrusage().ru_maxrss`` no longer tells."""
        return machine().ram.lifetime_peak_bytes()

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise TypeError("a logger belongs to its shell and cannot be copied or pickled; its history can")

    def __repr__(self) -> str:
        state = "running" if self._running else "stopped"
        return f"<{type(self).__name__}: {state}, {len(self._history)} cells>"

    # -- what the cell events call --------------------------------------------------------------

    def _preload(self) -> None:
        """Create the GPU context before the cell could, if so wished."""
        with self._gap.own_work():
            if self.preload:
                self._gap.preload()
            with self._explaining():
                self._growth.refresh()

    def _settle(self) -> None:
        """Bring memory to rest, as far as the options say."""
        machine().settling.settle(gc_collect=self.gc_collect, clear_cache=self.clear_cache)

    def _begin(self, cell: Cell) -> None:
        """Begin to measure a cell."""
        if not self._running:  # somebody interrupted `stop`
            self._halt()
            return
        request = request_of(cell.raw)
        if self._only is not None and request is None:
            if not self._scopes and self._only == threading.get_ident():
                self._halt()  # another cell came than the one that is to be measured
            return
        if not (cell.nested or self._scopes):
            self._gaps[cell] = self._gap
        self._gap = Gap()
        self._requests[cell] = request = request or Request()
        with self._explaining():
            self._growth.begin(cell)
        scope = Scope(
            reset_peaks=self.reset_peaks,
            all_devices=self.devices == "all",
            metrics=self.metrics,
        )
        self._scopes[cell] = scope, _ours_s(cell)
        place = None if cell.nested else place_for(self._shell, self.report)
        if place is not None:
            self._live.begin(cell, scope, place)
        if self.lines or request.lines:
            lines = CellLines(self._shell, cell, self._places, reset_peaks=self.reset_peaks)
            self._lines[cell] = lines
            lines.start()
        scope.open()

    def _end(self, cell: Cell) -> None:
        """The cell has ended: stop the clock and fix the peaks."""
        if cell in self._scopes:
            scope, ours_s = self._scopes[cell]
            scope.close()
            scope.time_s = max(0.0, scope.time_s - (_ours_s(cell) - ours_s))
            if cell in self._lines:
                self._lines[cell].stop()
            self._live.end(cell)

    def _died(self, cell: Cell) -> None:
        """See what an out-of-memory error left behind."""
        if cell not in self._scopes:
            return
        from ..owners.oom_autopsy import examine  # 10 ms of loading, which few cells need

        try:
            autopsy = examine(cell.exception, self._shell, machine().frameworks.imported())
        except Exception as error:  # the cell's numbers are worth more than their explanation
            self._say_once(f"ipygpulogger could not explain an error: {why(error)}")
        else:
            if autopsy is not None:
                self._autopsies[cell] = autopsy

    def _finish(self, cell: Cell) -> None:
        """Keep the record and show it."""
        if cell not in self._scopes:
            return
        (scope, _), request, autopsy = self._scopes[cell], self._requests[cell], self._autopsies.get(cell)
        record = scope.result(
            CellRecord,
            request.label or cell.label,
            execution_count=cell.execution_count,
            cell_id=cell.cell_id,
            source=cell.source,
            status=cell.status,
            error=cell.error,
            current_gpu=machine().frameworks.current_index(),
            gpulog_only=is_gpulog_only(cell.raw),
        )
        gap = self._gaps.get(cell)
        if gap is not None:
            between = gap.moved(scope, record.gen.before_bytes)
            record = replace(record, between=between, notes=(*gap.notes(scope), *record.notes))
        if autopsy is not None:
            late = () if autopsy.complete else ("There was no time to find all who hold memory.",)
            verdict = autopsy.verdict(record.gpus)
            record = replace(record, out_of_memory=verdict, notes=(*record.notes, *late))
        lines = self._lines.get(cell)
        if lines is not None:
            with self._explaining("what each line used"):
                record = replace(record, lines=lines.result(), notes=(*record.notes, *lines.notes))
        with self._explaining():
            record = self._growth.end(cell, record, collected=self.gc_collect)
            record = self._history.marked(record)
        record = replace(record, notes=(*record.notes, *self._over_budget(record)))
        self._history.append(record)
        self._keep(record)
        self._show(record, cell)
        if lines is not None and request.lines:
            self._show_lines(lines.indented(record.lines))
        self._drop(cell)
        if self._running and not self._scopes:
            self._gap = Gap(after=scope)

    @contextmanager
    def _explaining(self, what: str = "who holds memory") -> Iterator[None]:
        """What may fail in any way and costs no cell its record."""
        try:
            yield
        except Unavailable:  # the measuring itself says so
            pass
        except Exception as error:
            self._say_once(f"ipygpulogger could not tell {what}: {why(error)}")

    def _rest(self) -> None:
        """The one cell to be measured is over."""
        if self._running and self._only is not None and not self._scopes:
            self._halt()

    def _keep(self, record: CellRecord) -> None:
        """Add the record to the log, if there is one; a log that cannot be written hurts no cell."""
        log = self._log
        if log is None:
            return
        try:
            lost = log.append(record)
        except Exception as error:  # the report is worth more than the log
            self._say_once(f"ipygpulogger cannot write {log.path} and goes on trying: {why(error)}")
        else:
            if lost:
                cells = "1 cell is" if lost == 1 else f"{lost} cells are"
                self._say_once(f"ipygpulogger writes {log.path} again; {cells} missing in it.")

    def _drop(self, cell: Cell) -> None:
        """Nothing more is told of the cell: whatever of it still goes on ends.

        It is forgotten last, so that whoever is interrupted can drop it again.
        """
        if cell not in self._requests:
            return
        failure = None
        try:
            if cell in self._lines:
                self._lines[cell].stop()
            if cell in self._scopes:
                self._scopes[cell][0].close()
        except Exception as error:  # it would fail again
            if is_from_a_handler(error):
                raise
            failure = error
        self._live.drop(cell)
        self._growth.drop(cell)
        for known in (self._autopsies, self._gaps, self._lines, self._scopes, self._requests):
            known.pop(cell, None)
        self._rest()
        if failure is not None:
            raise failure

    def _failed(self, error: BaseException, cell: Cell | None = None) -> None:
        """Say once what kept us from measuring; the user's cell goes on."""
        if cell is not None:
            try:
                self._drop(cell)
            except BaseException:  # it could not be opened, or not be closed
                pass
        if isinstance(error, Unavailable):
            self._say_once(f"{_NOTHING_MEASURED}: {error}")
            return
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else why(error)
        self._say_once(f"ipygpulogger could not measure a cell: {reason}")

    # -- how it speaks -------------------------------------------------------------------------

    def _over_budget(self, measurement: Measurement) -> tuple[str, ...]:
        """Where it went over the budget, a sentence each."""
        if not self.budget:
            return ()
        allowed_bytes = parse(self.budget)
        on_gpu = any(gpu.peak.lo_bytes for gpu in measurement.gpus)
        found = excesses(
            measurement,
            ram_bytes=None if on_gpu else allowed_bytes,
            gpu_bytes=allowed_bytes if on_gpu else None,
        )
        return tuple(
            f"Over budget on {over.name}: peak {'at least ' if over.at_least else ''}"
            f"{rounded_mb(over.peak_bytes)} of {rounded_mb(over.budget_bytes)} MB"
            for over in found
        )

    def _show(self, record: CellRecord, cell: Cell) -> None:
        if self.report == "none":
            return
        plain = text.report(record, compact=self.compact, course=html.course)
        if self.report == "text":
            self._print(plain)
        else:
            bundle = {"text/plain": plain, "text/html": html.report(record), MIME: embedded(record)}
            if not self._live.settle(cell, bundle):
                self._display(bundle)

    def _show_lines(self, lines: Sequence[LineUsage]) -> None:
        """The whole table; its notes stand in the report."""
        if self.report == "text":
            self._print(lines_table.table(lines))
        elif self.report == "rich":
            self._display({"text/plain": lines_table.table(lines), "text/html": lines_table.html(lines)})

    def _print(self, report: str) -> None:
        if reason := say(report):
            self._cannot_show(reason)

    def _display(self, bundle: dict[str, Any]) -> None:
        from IPython.display import display

        try:
            display(bundle, raw=True)  # type: ignore[no-untyped-call, unused-ignore]
        except Exception as error:
            if is_from_a_handler(error):
                raise
            self._cannot_show(why(error))

    def _cannot_show(self, reason: str) -> None:
        """The record is kept all the same."""
        self._say_once(f"ipygpulogger cannot show its reports and goes on measuring: {reason}")

    def _say_what_is_missing(self) -> None:
        """One sentence where no cell can be measured, or where there is no GPU."""
        try:
            machine().ram.look()
        except Unavailable as reason:
            self._say_once(f"{_NOTHING_MEASURED}: {reason}")
        else:
            self._say_if_no_gpu()

    def _say_if_no_gpu(self) -> None:
        seen = machine().nvml.devices()  # always: loading NVML's library is no work for the first hook
        if self.report == "none" or machine().frameworks.current_index() is not None:
            return
        if not seen:
            say(printable(f"No GPU here ({machine().nvml.diagnose().says}): general RAM only."))
        elif machine().devices.all_hidden() and self.devices != "all":
            say("No GPU here (CUDA_VISIBLE_DEVICES hides them all): general RAM only.")

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            say(printable(sentence), aside=True)


def _ours_s(cell: Cell) -> float:
    """What of a cell's time so far is ours: the hooks of cells nested in it, the tracing of lines."""
    return cell.hooks_s + spent().s


def _log_at(path: Any) -> Log | None:
    """The log of this name, if any; `ValueError` where there can be none that `History.load` reads."""
    if path is None:
        return None
    if not isinstance(path, (str, Path)):
        raise ValueError(f"log takes the path of a .jsonl file, or None, not {path!r}")  # noqa: TRY004
    if Path(path).suffix.lower() != ".jsonl":
        raise ValueError(f"log takes the path of a .jsonl file, not {str(path)!r}")
    return Log(path)


def _shell() -> Any:
    """The IPython shell of this process, or None; IPython itself is not imported to find out."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module else None
