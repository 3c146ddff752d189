"""The magic ``%gpulog``. Each command imports what it shows when it is called."""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from IPython.core.magic import no_var_expand
from IPython.display import display

from ..engine.machine import importing, machine
from ..records.units import printable
from ..runtime.errors import did_you_mean, put
from ..runtime.shell import cells_behind, current_shell
from ..sources import Unavailable
from . import completion
from .cell import options_of, request_in, split_words
from .completion import cell_and_size_in, not_taken, options_in, path_in, rank_in, refusal
from .measured_cell import measured_statement
from .options import ASKS_FOR_HELP, COMMANDS, FAILED, HELP, UnknownOption

if TYPE_CHECKING:
    from ..records import DeviceUsage
    from ..storage.history import History
    from .logger import IPyGPULogger


class GpulogMagics:
    """``%gpulog`` for a line and ``%%gpulog`` for a cell of one shell; `of` returns the shell's own.

    Of several loggers, which it keeps alive, it controls the one that was started last; once the extension
    is loaded, the extension's.
    """

    _by_shell: ClassVar[weakref.WeakKeyDictionary[Any, GpulogMagics]] = weakref.WeakKeyDictionary()

    def __init__(self, shell: Any) -> None:
        self._shell = weakref.ref(shell)
        self._offered: list[IPyGPULogger] = []
        self.extension: IPyGPULogger | None = None  # the extension's logger

    @classmethod
    def of(cls, shell: Any) -> GpulogMagics:
        """Return the one of this shell."""
        return cls._by_shell.setdefault(shell, cls(shell))

    @property
    def shell(self) -> Any:
        """The shell."""
        return self._shell()

    @property
    def logger(self) -> IPyGPULogger:
        """The logger that it controls."""
        return self.extension or self._offered[-1]

    def offer(self, logger: IPyGPULogger) -> None:
        """Control this logger, and be in the shell."""
        self._offered = [*(one for one in self._offered if one is not logger), logger]
        for kind in ("line", "cell"):
            self.shell.magics_manager.magics[kind]["gpulog"] = self.gpulog
        completion.put_in(self.shell)
        transforms = self.shell.input_transformer_manager.line_transforms
        if self.first_line not in transforms:  # it sees each cell before IPython makes it a cell magic
            transforms.insert(0, self.first_line)

    def withdraw(self, logger: IPyGPULogger) -> None:
        """Control this logger no more, unless it is the extension's; after an interrupt, do it again."""
        if logger is self.extension:
            return
        if self._offered == [logger]:
            transforms = self.shell.input_transformer_manager.line_transforms
            transforms[:] = [one for one in transforms if one != self.first_line]
            completion.take_out(self.shell)
            for kind in ("line", "cell"):
                self.shell.magics_manager.magics[kind].pop("gpulog", None)
        self._offered = [one for one in self._offered if one is not logger]

    def first_line(self, lines: list[str]) -> list[str]:
        """Remove ``%%gpulog`` from a cell, which then runs as any other; the logger sees the original."""
        first, *body = lines or [""]
        options = options_of(first) if "%%gpulog" in first else None
        if options is None or any(cells_behind(sys._getframe())):  # of a cell within a cell
            return lines
        filled = next((i for i, line in enumerate(body) if line.strip()), None)
        if filled is None:  # the magic refuses it; without the empty line IPython would
            return [first.rstrip("\n") + "\n", "\n"]
        try:
            self._understand(options)
        except ValueError:  # the magic will say so
            return lines
        self.logger.expect()
        return body[filled:] if body[filled].startswith("%%") else ["\n", *body]

    # So that IPython skips it when it asks whether a cell is complete.
    first_line.has_side_effects = True  # type: ignore[attr-defined]

    @no_var_expand  # of a statement; else as IPython does it
    def gpulog(self, line: str, cell: str | None = None) -> Any:
        """Run a command of ``%gpulog``, or the cell below ``%%gpulog``."""
        __tracebackhide__ = True
        if cell is not None:
            return self._cell(line, cell)
        command, _, statement = line.strip().partition(" ")
        if command == "measure" and statement.strip() not in ASKS_FOR_HELP:
            return self._measure(statement.strip())
        line = self.shell.var_expand(line, 2)
        try:
            command, *words = split_words(line) or ["status"]
        except ValueError as error:
            raise refusal(f"%gpulog: {error}: {line}") from error
        if command in ASKS_FOR_HELP or any(word in ASKS_FOR_HELP for word in words):
            return self._help()
        if command not in COMMANDS:
            near = did_you_mean(command, COMMANDS)
            raise refusal(f"%gpulog has no {command!r}{near}; it has {', '.join(COMMANDS)}")
        if words and not COMMANDS[command]:
            raise refusal(f"%gpulog {command} takes no options")
        try:
            return getattr(self, f"_{command}")(*words)
        except (Unavailable, ImportError, ValueError, UnknownOption) as reason:
            raise refusal(f"%gpulog {command}: {reason}") from reason
        except OSError as error:
            if command not in ("save", "load", "snapshot"):
                raise
            verb = "read" if command == "load" else "write"
            said = f"cannot {verb} {words[-1]}: {error.strerror or error}"
            raise refusal(f"%gpulog {command}: {said}") from error

    gpulog.__doc__ = HELP  # `%gpulog?` shows it

    def _cell(self, line: str, cell: str) -> None:
        """Refuse a cell without code, with wrong options, or below another magic."""
        if any(word in ASKS_FOR_HELP for word in line.split()):
            self._help()
            return
        if not cell.strip():
            raise refusal("%%gpulog has nothing to measure: write the cell's code below this line")
        try:
            self._understand(line)
        except ValueError as error:
            raise refusal(f"%%gpulog: {error}") from error
        raise refusal("%%gpulog: write it in the first line of the cell, above other magics")

    def _understand(self, options: str) -> None:
        """Raise a `ValueError` for options of a cell that make no sense here."""
        request = request_in(options)
        if not isinstance(request.lines, bool):
            with importing():
                from .cell_lines import chosen
            chosen(request, self.shell.user_ns)

    def _start(self, *options: str) -> None:
        logger, given = self.logger, options_in(options)
        logger.check(given)
        changed = [f"{name}={value!r}" for name, value in given.items() if getattr(logger, name) != value]
        for name, value in given.items():
            setattr(logger, name, value)
        if logger.running and changed:
            logger._reporter.say_that(f"goes on with {', '.join(changed)}")
        logger.start()

    def _stop(self) -> None:
        logger = self.logger  # which may have no other holder than the offer, withdrawn now
        if not logger.running:
            logger._reporter.say_that("is stopped already")
        logger.stop()
        self.offer(logger)  # for `%gpulog start`

    def _status(self) -> None:
        logger = self.logger
        state = f"{'running' if logger.running else 'stopped'}, {logger.history.counted()} recorded"
        for name, option in sorted(logger.traits(config=True).items()):
            value = getattr(logger, name)
            if value not in (option.default(), "rich"):  # which the extension has
                state += f", {name}={value!r}"
        with importing():
            from ..engine.scope import measured_now
            from ..render import growth
        found = machine().diagnose()
        gpus: Sequence[DeviceUsage] = ()
        with suppress(Unavailable):  # the diagnoses say so
            gpus = measured_now(reset_peaks=logger.reset_peaks).gpus
        put(growth.status(state, found, gpus))

    def _summary(self, *words: str) -> None:
        by = rank_in(words)
        with importing():
            from ..render import summary
        history = self.logger.history
        self._show(summary.summary(history, by), summary.html(history, by))

    def _plot(self) -> Any:
        with importing():
            from ..render import plot, plot_data
        history = self.logger.history
        if hasattr(self.shell, "kernel"):
            return plot.figure(history)
        return plot.in_terminal(history, partial(put, f"\n{plot_data.drawing(history)}"))

    def _panel(self) -> None:
        if not hasattr(self.shell, "kernel"):
            raise Unavailable("it needs a notebook; in a terminal, %gpulog plot draws the same")
        with importing():
            from .panel import panel_of

            panel = panel_of(self.logger)
        panel.show()

    def _fit(self, *words: str) -> None:
        count, name = cell_and_size_in(words)
        with importing():
            from ..analysis.fit import RAM, Headroom, fit_of
            from ..engine.scope import measured_now
            from ..render import fit
            from ..sources.system.ram_limit import least
        now = measured_now(reset_peaks=self.logger.reset_peaks)
        left: dict[Hashable, Headroom] = {
            gpu.key: Headroom(gpu.after_bytes, gpu.headroom_bytes) for gpu in now.gpus if gpu.attributed
        }
        limit = least(one for one in machine().limits.all() if one.memory == "RAM")
        left[RAM] = Headroom(now.gen.after_bytes, None if limit is None else limit.left_bytes)
        found = fit_of(self.logger.history, left, count, name)
        put(fit.report(found))

    def _save(self, *words: str) -> None:
        path, history = path_in("save", words), self.logger.history
        history.save(path, log_source=self.logger.log_source)
        put(printable(f"{history.counted()} written to {path}"))

    def _load(self, *words: str) -> History:
        with importing():
            from ..render import summary
            from ..storage.history import History
        history = History.load(path_in("load", words))
        if not history:
            raise ValueError(f"{words[0]} holds no record of a cell")
        self._show(summary.summary(history), summary.html(history))
        return history

    def _measure(self, statement: str) -> None:
        """Run a statement, and print what it used."""
        __tracebackhide__ = True
        if not statement:
            raise not_taken("measure", ())
        put(measured_statement(self.shell, statement, reset_peaks=self.logger.reset_peaks))

    def _snapshot(self, *words: str) -> None:
        """Write torch's snapshot as it is now, or of the last recorded cell in which an allocation failed."""
        of_failure = words[:1] == (FAILED,)
        path, kept = path_in("snapshot", words[of_failure:]), machine().failed_snapshot
        with importing():
            from ..runtime.errors import write_file
            from ..sources.torch.snapshot import snapshot_file
        if of_failure and kept is None:
            raise Unavailable(
                f"{FAILED} is for the last recorded cell in which a GPU ran out of memory, and there is none:"
                " run it under %%gpulog --peak"
            )
        found = kept if of_failure and kept is not None else snapshot_file()
        write_file(path, found.content)
        content = f"{found.blocks:,} block{'s' * (found.blocks != 1)}"
        if found.events is not None:
            content += f" and {found.events:,} event{'s' * (found.events != 1)} of torch's memory history"
        error = "" if kept is None else f"The out-of-memory error in {kept.where}: "
        written = f"{content} written to {path}, for https://pytorch.org/memory_viz."
        put(printable(f"{error}{written}" if of_failure else written))
        if error and not of_failure:
            put(printable(f"That is the present. {error}%gpulog snapshot {FAILED} PATH"))

    def _vars(self) -> None:
        with importing():
            from ..engine.scope import measured_now
            from ..owners.memory_blocks import array_readers
            from ..owners.roots import owners_in
            from ..records import held_bytes
            from ..render import owners

        found = owners_in(self.shell, array_readers())
        used = held_bytes(measured_now(reset_peaks=self.logger.reset_peaks))
        put(owners.holders(found.owners, used, complete=found.complete, uncounted=found.uncounted))

    def _free(self) -> None:
        put(str(self.logger.free()))

    def _doctor(self) -> None:
        with importing():
            from ..render import growth
        put(growth.diagnoses(machine().diagnose()))

    def _show(self, plain: str, markup: str) -> None:
        """Display a page as HTML where cells have rich reports, else print it."""
        if self.logger.report == "rich":
            display({"text/plain": plain, "text/html": markup}, raw=True)  # type: ignore[no-untyped-call, unused-ignore]
        else:
            put(plain)

    def _help(self) -> None:
        put(HELP)


# -- the extension, and what ``ipygpulogger run`` asks it in a kernel ---------------------------------------


def unload(shell: Any) -> None:
    """Undo all that `load` did."""
    magics = GpulogMagics.of(shell)
    logger, magics.extension = magics.extension, None
    if logger is not None:
        logger._stop()
        if logger._panel is not None:
            logger._panel.close()
        if shell.user_ns.get("il") is logger:
            del shell.user_ns["il"]


def _logger() -> IPyGPULogger:
    logger = GpulogMagics.of(current_shell()).extension
    if logger is None:
        raise KeyError("the extension is not loaded")
    return logger


def last_record() -> str:
    """Return the last record of the extension, or null, and the kind of its report; ``run`` asks, in JSON."""
    logger = _logger()
    return json.dumps([logger.record and logger.record.to_dict(), logger.report])


def process_records(since: int) -> str:
    """Return the length of the history, and the records of other processes in it from there on, as JSON."""
    from ..records.cell_record import process_of
    from ..storage.embed import embedded

    history = _logger().history
    return json.dumps([len(history), [embedded(one) for one in history[since:] if process_of(one)]])
