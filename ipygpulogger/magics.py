"""%gpulog, and what loading the extension does."""

from __future__ import annotations

import gc
import shlex
import weakref
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class

from .logger import IPyGPULogger
from .machine import machine
from .records import Measurement, came_back
from .render import text
from .scope import Scope

_SUBCOMMANDS = ("start", "stop", "status", "free", "doctor")


@magics_class
class GpulogMagics(Magics):
    """The extension's one line magic."""

    def __init__(self, shell: Any, logger: IPyGPULogger) -> None:
        super().__init__(shell)
        self.logger = logger

    @line_magic  # type: ignore[untyped-decorator, unused-ignore]
    def gpulog(self, line: str) -> None:
        """Control the report that follows every cell.

        %gpulog start [OPTION=VALUE ...]   report from now on; the options are those of IPyGPULogger,
                                           such as compact=True or report=text
        %gpulog stop                       report no longer
        %gpulog status                     whether it runs, with which options, what is exact here, and
                                           where each device's memory is
        %gpulog free                       give back what the last traceback and Out still hold
        %gpulog doctor                     the sources found, and what to do about each lack
        """
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise UsageError(f"%gpulog: {error}: {line}") from error
        command, options = (words[0], words[1:]) if words else ("status", [])
        if command not in _SUBCOMMANDS:
            raise UsageError(f"%gpulog has no {command!r}; it has {', '.join(_SUBCOMMANDS)}")
        if options and command != "start":
            raise UsageError(f"%gpulog {command} takes no options")
        getattr(self, f"_{command}")(*options)

    def _start(self, *options: str) -> None:
        try:
            given = dict(_option(word) for word in options)
            IPyGPULogger.check(given)
        except (TypeError, ValueError) as error:
            raise UsageError(f"%gpulog start: {error}") from error
        for name, value in given.items():
            setattr(self.logger, name, value)
        self.logger.start()

    def _stop(self) -> None:
        self.logger.stop()

    def _status(self) -> None:
        logger = self.logger
        options = ", ".join(
            f"{name}={getattr(logger, name)!r}" for name in sorted(logger.class_trait_names(config=True))
        )
        print(
            f"{'running' if logger.running else 'stopped'}, {len(logger.history)} cells reported; {options}"
        )
        for diagnosis in machine().diagnose():
            print(f"{diagnosis.source}: {diagnosis.state}: {diagnosis.says}")
        if gpus := self._now().gpus:
            print(text.devices(gpus))

    def _free(self) -> None:
        from .owners import let_go, owners_in

        found = owners_in(self.shell, [framework.holding for framework in machine().frameworks])
        hidden = [owner for owner in found.owners if owner.kind in ("traceback", "output")]
        before = self._now()
        let_go(self.shell)
        gc.collect()
        machine().settle(gc_collect=True, clear_cache=True)
        print(text.freed(hidden, came_back(before, self._now()), complete=found.complete))

    def _now(self) -> Measurement:
        scope = Scope(reset_peaks=self.logger.reset_peaks, all_devices=True).open()
        scope.close()
        return scope.result(Measurement, "now")

    def _doctor(self) -> None:
        print(text.diagnoses(machine().diagnose()))


def _option(word: str) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    if not equals:
        raise ValueError(f"write options as name=value, not {word!r}")
    if name == "metrics":
        return name, tuple(filter(None, value.split(",")))
    return name, {"True": True, "False": False}.get(value, value)


_loaded: weakref.WeakKeyDictionary[Any, GpulogMagics] = weakref.WeakKeyDictionary()


def load(shell: Any, report: str | None = None) -> None:
    """Start a logger, as ``il`` if that name is free; loading twice changes nothing.

    Args:
        shell: IPython's shell.
        report: The kind of report; by default what the user's configuration wishes, else the rich one.
    """
    if shell in _loaded:
        return
    if report is None and "report" not in shell.config.IPyGPULogger:
        report = "rich"
    logger = IPyGPULogger(report=report) if report else IPyGPULogger()
    magics = _loaded[shell] = GpulogMagics(shell, logger)
    shell.register_magics(magics)
    shell.user_ns.setdefault("il", logger)
    logger.start()


def unload(shell: Any) -> None:
    """Take back all that `load` did."""
    magics = _loaded.pop(shell, None)
    if magics is None:
        return
    magics.logger.stop()
    if shell.user_ns.get("il") is magics.logger:
        del shell.user_ns["il"]
    if magics in shell.configurables:
        shell.configurables.remove(magics)
    shell.magics_manager.magics["line"].pop("gpulog", None)
    shell.magics_manager.registry.pop(GpulogMagics.__name__, None)
