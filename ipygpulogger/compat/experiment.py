"""`IPyExperiments`: a part of a notebook that reports what it used, and cleans up after itself.

A variable belongs to the latest experiment that had begun when its name appeared. An experiment also ends
when the last reference to it is gone, as when its cell is run again; what it gives back after a newer one
began is left out of the newer one's figures.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

from ..engine.machine import machine
from ..records import Measurement
from ..records.units import printable
from ..render import experiments as render
from ..runtime import clock, collector
from ..runtime.errors import named, put, say
from ..runtime.shell import current_shell
from . import experiment_cells as cells
from .experiment_cells import CellLogger, Consumed, IPyExperimentData, IPyExperimentMemory

if TYPE_CHECKING:
    from typing_extensions import Self


_unfinished: weakref.WeakSet[IPyExperiments] = weakref.WeakSet()
_numbers = itertools.count()


class IPyExperiments:
    """The base class of experiments; use `IPyExperimentsCPU` or `IPyExperimentsPytorch`.

    ``with IPyExperimentsCPU() as exp: ...``, or ``exp = IPyExperimentsCPU()`` and some cells later
    ``exp.finish()``.

    Args:
        exp_enable: Report the experiment and delete its variables at the end; without, only report cells.
        cl_enable: Report every cell.
        cl_compact: Report a cell on one line.
        cl_gc_collect: Collect garbage before each snapshot of the cell logger.
        cl_set_seed: Seed the random numbers with this before each cell; 0 for not.

    Attributes:
        cl: The `CellLogger`; None without one.
        backend: "cpu" or "pytorch".

    Raises:
        RuntimeError: This code does not run in IPython.
        Unavailable: The memory of this process cannot be read.
        TypeError: The base class itself was called.
    """

    backend: ClassVar[str]
    _backend_name: ClassVar[str]
    _running = False  # until the constructor is done

    def __init__(
        self,
        *,
        exp_enable: bool = True,
        cl_enable: bool = True,
        cl_compact: bool = False,
        cl_gc_collect: bool = True,
        cl_set_seed: int = 0,
    ) -> None:
        if type(self) in (IPyExperiments, IPyExperimentsGPU):
            base = type(self).__name__
            raise TypeError(f"{base} is a base class: use IPyExperimentsCPU or IPyExperimentsPytorch")
        shell = current_shell()
        if shell is None:
            why = "works inside IPython; outside it, measure a block of code with ipygpulogger.measure."
            raise RuntimeError(f"{type(self).__name__} {why}")
        self._shell, self._enabled, self._pid = shell, exp_enable, os.getpid()
        self._device = self._wake()
        how: dict[str, Any] = {"compact": cl_compact, "gc_collect": cl_gc_collect, "set_seed": cl_set_seed}
        self.cl: CellLogger | None = CellLogger(self._device, **how) if cl_enable else None
        machine().nvml.devices()  # importing pynvml leaves garbage, which is not the user's
        gc.collect()
        self._settle()
        self._number, self._names_before = next(_numbers), set(shell.user_ns)
        self._names_kept: set[str] = set()
        self._notes: list[str] = []
        self._elsewhere = Consumed(0, 0)  # what older experiments gave back since we began
        self._final: IPyExperimentData | None = None
        self._scope = cells.open_baseline()
        self._began_s = clock.monotonic_s()
        put(render.started(self._backend_name))
        is_on_gpu = isinstance(self, IPyExperimentsGPU)
        put(f"{render.device(cells.device_in(self._now(), self._device))}\n" if is_on_gpu else "")
        if exp_enable:
            self.print_state()
            print("\n")  # ipyexperiments printed two empty lines
        gc.collect(collector.YOUNG)  # initialising NVML leaves reference cycles, which are not the user's
        if self.cl is not None:
            self.cl.start()
            # Again: what the cell logger loaded is not the experiment's memory.
            self._scope = cells.open_baseline()
        self._running = True
        _unfinished.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def __del__(self) -> None:
        if self._running and os.getpid() == self._pid:  # a forked child finishes nothing
            try:
                if sys.is_finalizing() or cells.is_being_reset():
                    self._abandon()
                else:
                    self.finish()
            except Exception as error:
                say(printable(f"ipygpulogger could not finish an experiment: {named(error)}"), aside=True)

    @property
    def data(self) -> IPyExperimentData:
        """Return the figures so far, in bytes; nothing is reclaimed before `finish`."""
        if self._final is not None:
            return self._final
        now = self._now()
        return self._data(now, self._consumed(now), Consumed(0, 0))

    def keep_var_names(self, *names: str) -> None:
        """Exempt the variables of these names from deletion.

        Raises:
            ValueError: A name is not a string.
        """
        if not all(isinstance(name, str) for name in names):
            raise ValueError("expecting variable names as strings")
        self._names_kept.update(names)

    def get_var_names(self) -> list[str]:
        """Return the names of the variables made since the experiment began, including those to be kept."""
        theirs, found = [other._names_before for other in self._newer()], cells.variables(self._shell)
        ours = {name for name, value in found if not issubclass(type(value), IPyExperiments)}
        return sorted((ours - self._names_before).intersection(*theirs))

    def print_state(self) -> None:
        """Print how much memory is used and free now; empties torch's cache, as in ipyexperiments."""
        self._settle()
        now = self._now()
        gpu, ram = cells.device_in(now, self._device), (now.gen.after_bytes, *cells.machine_ram_bytes())
        of_gpu = {"GPU": (render.taken_bytes(gpu), gpu.free_bytes, gpu.total_bytes)} if gpu else {}
        put(render.state({"CPU": ram, **of_gpu}, self._notes))
        self._notes.clear()

    def finish(self) -> IPyExperimentData | None:
        """Delete the variables made since the experiment began, report what came back, and return `data`.

        With ``exp_enable=False`` it returns None. Finishing again changes nothing.
        """
        if self._running:
            machine().attach(self)  # keeps NVML open: initialising it again leaves reference cycles
            try:
                if self.cl is not None:
                    self.cl.stop()
                self._abandon()
                self._final = self._finish()
            finally:
                machine().detach(self)
                machine().close()
        return self.data if self._enabled else None

    def _finish(self) -> IPyExperimentData:
        self._settle()
        consumed, reclaimed = self._consumed(self._now()), Consumed(0, 0)
        if self._enabled:
            newer = [(other, other._consumed(other._now())) for other in self._newer()]
            put(render.finished(type(self).__name__, clock.monotonic_s() - self._began_s))
            deleted, failed, kept = self._delete()
            said = render.variables(deleted, failed, kept), render.garbage(gc.collect(), len(gc.garbage))
            for text in filter(None, said):
                put(text)
            self._settle()
            reclaimed = consumed.plus(self._consumed(self._now()), -1)
            for other, before in newer:
                other._elsewhere = other._elsewhere.plus(before.plus(other._consumed(other._now()), -1))
                other._names_before.difference_update(deleted)  # made again, they are the newer one's
            gpu = {} if self._device is None else {"GPU": (consumed.gpu, reclaimed.gpu)}
            put(render.memory({"CPU": (consumed.cpu, reclaimed.cpu)} | gpu))
            self.print_state()
            print("\n")
        return self._data(self._now(), consumed, reclaimed)

    def _wake(self) -> int | None:
        """Initialise the backend, whose memory is not the experiment's; return its current device."""
        return None

    def _settle(self) -> None:
        if self._device is not None:
            machine().settling.settle(gc_collect=False, clear_cache=True)

    def _now(self) -> Measurement:
        machine().nvml.devices()  # open, though the cell logger was stopped: only NVML knows the whole device
        try:
            now = self._scope.result(Measurement, type(self).__name__)
        finally:
            if self._final is not None:
                machine().close()
        self._notes += now.notes
        return now

    def _consumed(self, now: Measurement) -> Consumed:
        gpu = cells.device_in(now, self._device)
        known = gpu.consumed_bytes if gpu and gpu.attributed else None
        return Consumed(now.gen.consumed_bytes, known).plus(self._elsewhere)

    def _data(self, now: Measurement, consumed: Consumed, reclaimed: Consumed) -> IPyExperimentData:
        gpu = cells.device_in(now, self._device)
        left_bytes = (gpu.headroom_bytes if gpu else None) or 0
        ram = IPyExperimentMemory(consumed.cpu, reclaimed.cpu, cells.machine_ram_bytes()[0])
        return IPyExperimentData(ram, IPyExperimentMemory(consumed.gpu or 0, reclaimed.gpu or 0, left_bytes))

    def _newer(self) -> list[IPyExperiments]:
        return [e for e in _unfinished if e._shell is self._shell and e._number > self._number]

    def _abandon(self) -> None:
        """End without printing anything; nothing of ours stays behind."""
        self._running = False
        _unfinished.discard(self)
        if self.cl is not None:
            self.cl.abandon()

    def _delete(self) -> tuple[list[str], list[str], list[str]]:
        """Delete the new variables; return which were deleted, could not be deleted, and were kept."""
        deleted, failed, kept, values = [], [], [], []
        for name in self.get_var_names():
            if name in self._names_kept:
                kept.append(name)
                continue
            try:
                values.append(self._shell.user_ns.pop(name, None))
            except Exception:  # the namespace may be of a class of the user's
                failed.append(name)
            else:
                deleted.append(name)
        cells.forget(self._shell, values, self._names_before)
        return deleted, failed, kept


class IPyExperimentsCPU(IPyExperiments):
    """An experiment with general RAM alone; its arguments are those of `IPyExperiments`."""

    backend = "cpu"
    _backend_name = "CPU-only"


class IPyExperimentsGPU(IPyExperimentsCPU):
    """The base class of experiments with a framework's GPU."""


class IPyExperimentsPytorch(IPyExperimentsGPU):
    """An experiment with torch, on the device that is current at its beginning.

    torch is imported and the device's context created before the experiment begins, so their memory is not
    part of its figures. Where torch cannot use a GPU, the GPU's figures are 0 and the tables leave it out.
    The arguments are those of `IPyExperiments`.

    Raises:
        ImportError: torch is not installed.
    """

    backend = "pytorch"
    _backend_name = "Pytorch"

    def _wake(self) -> int | None:
        try:
            import torch  # noqa: F401 - the user asks for it by the name of this class
        except ImportError as error:
            raise ImportError(f"IPyExperimentsPytorch needs torch ({error}): pip install torch") from error
        machine().settling.preload()
        return next((f.current_index() for f in machine().frameworks if f.name == "torch"), None)
