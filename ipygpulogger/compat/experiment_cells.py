"""The cells, figures and variables of an experiment."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..engine.scope import Scope, measured_now
from ..notebook.cell import CellEvents
from ..notebook.logger import IPyGPULogger
from ..owners.roots import CACHED, empty_outputs
from ..records import DRIVER, CellRecord, DeviceUsage, Measurement, Usage
from ..render import experiments as render
from ..runtime.objects import walk_stack


def variables(shell: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each of the user's variables, as ``%who`` lists them."""
    hidden = shell.user_ns_hidden
    for name, value in list(shell.user_ns.items()):
        if type(name) is str and not name.startswith("_") and hidden.get(name, hidden) is not value:
            yield name, value


def forget(shell: Any, values: list[Any], names_before: set[str]) -> None:
    """Drop IPython's references to values whose variables are gone: `Out`, `_`, `_12`, the last result."""
    # A value stays everywhere if another name of the user's, or an output from before, still refers to it.
    # IPython's own ``%xdel`` would delete the other names as well.
    names, hidden = shell.user_ns, shell.user_ns_hidden
    outputs = names.get("_oh", {})
    ipythons = {name for name in hidden if CACHED.fullmatch(str(name))}  # a `_` of the user's is not hidden
    kept = [value for name, value in names.items() if name not in ipythons or hidden[name] is not value]
    kept += [value for number, value in outputs.items() if f"_{number}" in names_before]
    gone = {id(value) for value in values} - {id(value) for value in kept}
    empty_outputs(shell, lambda value: id(value) in gone)
    if id(getattr(shell.last_execution_result, "result", None)) in gone:
        shell.last_execution_result = None


def is_being_reset() -> bool:
    """Return whether IPython is wiping its namespace: that fails if a name vanishes meanwhile."""
    frames = (frame for frame in walk_stack(sys._getframe()) if frame.f_code.co_name == "reset")
    return any(one.f_globals.get("__name__") == "IPython.core.interactiveshell" for one in frames)


class IPyExperimentMemory(NamedTuple):
    """Memory of an experiment, in bytes; 0 without a device, or where the figure is unknown.

    What torch keeps in its cache counts as available.
    """

    consumed: int
    reclaimed: int
    available: int


class IPyExperimentData(NamedTuple):
    """An experiment: general RAM, and the device that was current when it began."""

    cpu: IPyExperimentMemory
    gpu: IPyExperimentMemory


class Consumed(NamedTuple):
    """Bytes of general RAM and of the experiment's device; None where that is unknown."""

    cpu: int
    gpu: int | None

    def plus(self, other: Consumed, sign: int = 1) -> Consumed:
        """Return the sum of both, or with -1 the difference; unknown with anything is unknown."""
        gpu = None if self.gpu is None or other.gpu is None else self.gpu + sign * other.gpu
        return Consumed(self.cpu + sign * other.cpu, gpu)


def open_baseline() -> Scope:
    """Return a scope whose results tell what has been consumed since now."""
    # It asks for no peak, so it is closed at once: until its result is asked for it costs nothing.
    scope = Scope(reset_peaks=False).open()
    scope.close()
    return scope


def device_in(measurement: Measurement, index: int | None) -> DeviceUsage | None:
    """Return the framework's device of this index in a measurement; None where there is none."""
    return next((gpu for gpu in measurement.gpus if gpu.index == index and gpu.backend != DRIVER), None)


def machine_ram_bytes() -> tuple[int, int]:
    """Return how much of the machine's RAM is available, and its total."""
    import psutil

    memory = psutil.virtual_memory()
    return int(memory.available), int(memory.total)


class CellLoggerMemory(NamedTuple):
    """Memory of one cell, in bytes; 0 without a device, or where the figure is unknown."""

    used_delta: int
    peaked_delta: int
    used_total: int


class CellLoggerTime(NamedTuple):
    """Seconds that one cell took."""

    time_delta: float


class CellLoggerData(NamedTuple):
    """One cell: general RAM, the experiment's device, time."""

    cpu: CellLoggerMemory
    gpu: CellLoggerMemory
    time: CellLoggerTime


class CellLogger(IPyGPULogger):
    """Report after every cell of an experiment what it used; available as the experiment's ``cl``.

    Attributes:
        compact: Report on one line.
        gc_collect: Collect garbage before each snapshot; switch it off to hunt for reference cycles.
        set_seed: Seed the random numbers of Python, and those of numpy and torch where they are imported,
            with this before each cell; 0 for not. cuDNN is made deterministic, and stays so.
    """

    set_seed: int = 0

    def __init__(
        self, device: int | None = None, *, compact: bool = False, gc_collect: bool = True, set_seed: int = 0
    ) -> None:
        if not isinstance(set_seed, int) or not 0 <= set_seed < 2**32:  # as numpy takes one
            raise ValueError(f"set_seed takes a whole number below 2**32, or 0 for none, not {set_seed!r}")
        uses_gpu = device is not None
        super().__init__(compact, gc_collect, clear_cache=uses_gpu, preload=uses_gpu)
        self._reporter.announces = False  # the experiment's banner does
        self.set_seed = set_seed
        self._device = device

    @property
    def data(self) -> CellLoggerData:  # type: ignore[override]
        """Return the last finished cell, in bytes and seconds; before the first, the memory in use now."""
        record = self.record
        measured = record or measured_now(reset_peaks=False, all_devices=False)
        gpu = device_in(measured, self._device)

        def memory(usage: Usage, used_bytes: int | None) -> CellLoggerMemory:
            moved = (usage.consumed_bytes, usage.peaked_bytes) if record else (0, 0)
            return CellLoggerMemory(*moved, used_bytes or 0)

        on_gpu = memory(gpu, gpu.taken_bytes) if gpu else CellLoggerMemory(0, 0, 0)
        time = CellLoggerTime(record.time_s if record else 0.0)
        return CellLoggerData(memory(measured.gen, measured.gen.after_bytes), on_gpu, time)

    def stop(self) -> None:
        """Report the running cell up to here, as ipyexperiments did, and stop the reports."""
        cell = CellEvents.of(self._shell).running_here()
        try:
            if cell in self._cells:
                self._end(cell)
                self._settle(cell)
                self._finish(cell)
        except Exception as error:  # as in a hook
            self._failed(error, cell)
        finally:
            super().stop()

    def abandon(self) -> None:
        """Stop the reports, without one for the running cell."""
        super().stop()

    def _preload(self) -> None:
        super()._preload()
        if not self.set_seed:
            return
        random.seed(self.set_seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(self.set_seed)
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(self.set_seed)  # of every device
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False

    def _show(self, record: CellRecord, _: object) -> None:
        if self.report != "none":
            gpu = device_in(record, self._device)
            self._reporter.print_text(render.cell(record, gpu, compact=self.compact))
