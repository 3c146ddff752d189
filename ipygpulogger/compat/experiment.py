"""IPyExperiments: a part of a notebook that tells what it used, and cleans up after itself.

::

    exp = IPyExperimentsPytorch()     # from here on every cell is reported
    ...
    exp.finish()                      # the variables made since then are deleted; what came back is told

Rules that the names alone do not tell:

- A variable is new if its name was not there when the experiment began; what got another value stays. The
  name of a module imported since is a variable like any. Names that begin with an underscore, IPython's
  own, and experiments are left alone.
- A variable belongs to the experiment that began last before its name appeared: while a newer one runs, the
  end of an older one leaves the newer one's variables alone.
- An experiment that nobody refers to any longer finishes. Where a statement gives a new experiment the
  name of another which nothing else refers to, as when the cell is run again, that one finishes first, so
  that its memory is no part of the new one's figures. Where an older one finishes after a newer one began
  all the same, what it gives back is left out of the newer one's figures.
- At the interpreter's exit, and when ``%reset`` wipes everything out, an experiment ends without a word.
"""

from __future__ import annotations

import atexit
import dis
import gc
import itertools
import os
import random
import re
import sys
import weakref
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ..blocks.warn import warn
from ..engine.machine import machine
from ..engine.scope import Scope
from ..notebook.logger import IPyGPULogger, _shell
from ..records import DRIVER, Measurement
from ..records.units import printable
from ..render import experiments as render
from ..runtime import clock
from ..runtime.errors import named
from ..runtime.frames import walk_stack
from ..runtime.output import say
from ..runtime.signals import is_from_a_handler
from ..sources import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from typing_extensions import Self

    from ..notebook.cell_events import Cell
    from ..records import CellRecord, DeviceUsage

__all__ = [
    "CellLogger",
    "CellLoggerData",
    "CellLoggerMemory",
    "CellLoggerTime",
    "IPyExperimentData",
    "IPyExperimentMemory",
    "IPyExperiments",
    "IPyExperimentsCPU",
    "IPyExperimentsGPU",
    "IPyExperimentsPytorch",
]

_SEEDS = 2**32  # numpy takes no more
_CACHED = re.compile(r"_\d+|_{1,3}")  # of a cell's value, as IPython's display hook keeps it


class CellLoggerMemory(NamedTuple):
    """Memory of one cell, in bytes; 0 without a device, or where nobody tells."""

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


class IPyExperimentMemory(NamedTuple):
    """Memory of an experiment, in bytes; 0 without a device, or where nobody tells.

    What torch keeps in its cache is available.
    """

    consumed: int
    reclaimed: int
    available: int


class IPyExperimentData(NamedTuple):
    """An experiment: general RAM, and the device that was current when it began."""

    cpu: IPyExperimentMemory
    gpu: IPyExperimentMemory


class CellLogger(IPyGPULogger):
    """Tells after every cell of an experiment what it used; an experiment's ``cl``.

    Attributes:
        compact: Report on one line.
        gc_collect: Collect garbage before each snapshot; not when hunting for cycles.
        set_seed: Seed the random numbers of Python, and of numpy and torch where they are imported, with
            this before each cell; 0 for not. cuDNN is made deterministic until `stop`.
    """

    set_seed = 0

    def __init__(
        self, device: int | None = None, *, compact: bool = False, gc_collect: bool = True, set_seed: int = 0
    ) -> None:
        if not isinstance(set_seed, int) or not 0 <= set_seed < _SEEDS:
            raise ValueError(f"set_seed takes a whole number below 2**32, or 0 for none, not {set_seed!r}")
        uses_gpu = device is not None
        super().__init__(compact, gc_collect, clear_cache=uses_gpu, preload=uses_gpu)
        self.set_seed = set_seed
        self._device = device
        self._cudnn: tuple[bool, bool] | None = None  # as the user had it

    @property
    def data(self) -> CellLoggerData:  # type: ignore[override]
        """The last finished cell, in bytes and seconds; before the first, only the memory in use now."""
        record = self.record
        if record is None:
            now = _begun().result(Measurement, "now")
            gpu = _device_of(now, self._device)
            return CellLoggerData(
                CellLoggerMemory(0, 0, now.gen.after_bytes),
                CellLoggerMemory(0, 0, (gpu.taken_bytes if gpu else None) or 0),
                CellLoggerTime(0.0),
            )
        gpu = _device_of(record, self._device)
        return CellLoggerData(
            CellLoggerMemory(record.gen.consumed_bytes, record.gen.peaked_bytes, record.gen.after_bytes),
            CellLoggerMemory(gpu.consumed_bytes, gpu.peaked_bytes, gpu.taken_bytes or 0)
            if gpu
            else CellLoggerMemory(0, 0, 0),
            CellLoggerTime(record.time_s),
        )

    def _halt(self) -> None:
        super()._halt()
        if self._cudnn is not None:
            (deterministic, benchmark), self._cudnn = self._cudnn, None
            try:
                cudnn = sys.modules["torch"].backends.cudnn
                cudnn.deterministic, cudnn.benchmark = deterministic, benchmark
            except Exception:  # the user froze torch's flags meanwhile
                pass

    def _preload(self) -> None:
        super()._preload()
        if self.set_seed:
            self._sow()

    def _sow(self) -> None:
        random.seed(self.set_seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(self.set_seed)
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(self.set_seed)  # of every device
            cudnn = torch.backends.cudnn
            if self._cudnn is None:
                self._cudnn = cudnn.deterministic, cudnn.benchmark
            cudnn.deterministic, cudnn.benchmark = True, False

    def _show(self, record: CellRecord, _: Cell) -> None:
        if self.report != "none":
            self._print(render.cell(record, _device_of(record, self._device), compact=self.compact))

    def _say_if_no_gpu(self) -> None:
        """The experiment's banner has said it."""


class IPyExperiments:
    """What all experiments are; make an `IPyExperimentsCPU` or an `IPyExperimentsPytorch`.

    Args:
        exp_enable: Tell of the whole and clean up at the end; without, only the cells are reported.
        cl_enable: Report every cell.
        cl_compact: On one line.
        cl_gc_collect: Collect garbage before each of its snapshots.
        cl_set_seed: Seed the random numbers with this before each cell; 0 for not.

    Attributes:
        cl: The cell logger; None without one.
        backend: "cpu" or "pytorch".

    Raises:
        RuntimeError: There is no IPython shell here.
        TypeError: It is not said which kind of experiment.

    Example:
        ``with IPyExperimentsCPU() as exp: ...``, or ``exp = IPyExperimentsCPU()`` and some cells later
        ``exp.finish()``.
    """

    backend: ClassVar[str]
    _backend_name: ClassVar[str]
    _running = False  # until the constructor is at its end

    def __init__(
        self,
        *,
        exp_enable: bool = True,
        cl_enable: bool = True,
        cl_compact: bool = False,
        cl_gc_collect: bool = True,
        cl_set_seed: int = 0,
    ) -> None:
        if type(self) is IPyExperiments:
            raise TypeError(
                "IPyExperiments is what experiments share: use IPyExperimentsCPU or IPyExperimentsPytorch."
            )
        shell = _shell()
        if shell is None:
            raise RuntimeError(
                f"{type(self).__name__} works inside IPython; outside it, measure a block of code with"
                " ipygpulogger.measure."
            )
        self._shell, self._enabled, self._pid = shell, exp_enable, os.getpid()
        self._device = self._wake()
        self.cl = (
            CellLogger(self._device, compact=cl_compact, gc_collect=cl_gc_collect, set_seed=cl_set_seed)
            if cl_enable
            else None
        )
        _finish_namesake(shell, sys._getframe(1))
        machine().nvml.devices()  # importing the driver's binding leaves garbage that is not the user's
        gc.collect()
        self._settle()
        self._number = next(_numbers)
        self._names_before = frozenset(shell.user_ns)
        self._names_kept: set[str] = set()
        self._notes: list[str] = []
        self._elsewhere = _Consumed(0, 0)  # given back by older experiments meanwhile
        self._final: IPyExperimentData | None = None
        self._scope: Scope | None = None  # None: it is not measured
        self._measure()
        self._began_s = clock.monotonic_s()
        print(render.started(self._backend_name))
        self._print_device()
        if exp_enable:
            self.print_state()
            print("\n")  # some air, as the original had it
        gc.collect(1)  # opening the driver's library leaves cycles, which are not the user's
        if self.cl is not None:
            try:
                self.cl.start()
            except BaseException:
                self.cl.stop()
                raise
            self._measure()  # what the cell logger loaded is ours
        self._running = True
        _unfinished.add(self)
        atexit.unregister(_abandon_all)
        atexit.register(_abandon_all)  # anew: it must come before IPython's own

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def __del__(self) -> None:
        if self._running and os.getpid() == self._pid:  # a forked child has its parent's
            try:
                if _is_being_reset():
                    self._abandon()
                else:
                    self.finish()
            except Exception as error:
                say(printable(f"ipygpulogger could not finish an experiment: {named(error)}"), aside=True)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise TypeError("an experiment ends once, so it cannot be copied or pickled; its data can")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'running' if self._running else 'finished'}>"

    # -- what users call -----------------------------------------------------------------------

    @property
    def data(self) -> IPyExperimentData:
        """So far, in bytes; nothing is reclaimed before `finish`."""
        if self._final is not None:
            return self._final
        now = self._now()
        return self._data(now, self._consumed(now), _Consumed(0, 0))

    def keep_var_names(self, *names: str) -> None:
        """Keep these variables at the end.

        Args:
            names: The names, not the variables.

        Raises:
            ValueError: One of them is no string.
        """
        if not all(isinstance(name, str) for name in names):
            raise ValueError("expecting variable names as strings")
        self._names_kept.update(names)

    def get_var_names(self) -> list[str]:
        """The variables made since the experiment began, those to be kept included."""
        newer = [other._names_before for other in self._newer()]
        return sorted(
            name
            for name, value in _variables(self._shell)
            if name not in self._names_before
            and all(name in before for before in newer)
            and not issubclass(type(value), IPyExperiments)
        )

    def print_state(self) -> None:
        """Print how much memory is used and free now; as the original does, this empties torch's cache."""
        self._settle()
        now = self._now()
        rows: dict[str, tuple[int | None, int | None, int | None]] = {
            "CPU": (None if now is None else now.gen.after_bytes, *_virtual_memory())
        }
        if gpu := _device_of(now, self._device):
            rows["GPU"] = render.taken_bytes(gpu), gpu.free_bytes, gpu.total_bytes
        print(render.state(rows, self._notes))
        self._notes.clear()

    def finish(self) -> IPyExperimentData | None:
        """End it: delete the variables made since it began, and tell what came back.

        Finishing again changes nothing.

        Returns:
            The final figures, in bytes; None with ``exp_enable=False``, of which `data` tells all the same.
        """
        if self._running:
            self._end()
        return self.data if self._enabled else None

    def _end(self) -> None:
        machine().hold(self)  # so that the driver's library stays open: opening it again leaves cycles
        try:
            self._abandon()
            self._final = self._finish()
        finally:
            machine().release(self)
            machine().close()

    def _finish(self) -> IPyExperimentData:
        self._settle()
        consumed, reclaimed = self._consumed(self._now()), _Consumed(0, 0)
        if self._enabled:
            newer = [(other, other._consumed(other._now())) for other in self._newer()]
            print(render.finished(type(self).__name__, clock.monotonic_s() - self._began_s))
            deleted, failed, kept = self._delete()
            _say(render.variables(deleted, failed, kept))
            _say(render.garbage(gc.collect(), len(gc.garbage)))
            self._settle()
            reclaimed = consumed.less(self._consumed(self._now()))
            for other, stood in newer:
                other._elsewhere = other._elsewhere.more(stood.less(other._consumed(other._now())))
            rows = {"CPU": (consumed.cpu, reclaimed.cpu)}
            if self._device is not None:
                rows["GPU"] = consumed.gpu, reclaimed.gpu
            print(render.memory(rows))
            self.print_state()
            print("\n")
        return self._data(self._now(), consumed, reclaimed)

    # -- the backend ---------------------------------------------------------------------------

    def _wake(self) -> int | None:
        """Make the backend ready: whatever it keeps for good shall not count as the experiment's.

        Returns:
            The framework's index of its current device; None without one.
        """
        return None

    def _settle(self) -> None:
        """Empty the framework's cache, where there is one."""
        if self._device is not None:
            machine().settle(gc_collect=False, clear_cache=True)

    def _print_device(self) -> None:
        print()

    # -- figures -------------------------------------------------------------------------------

    def _measure(self) -> None:
        """Measure from here on; where that is not possible, the experiment goes on."""
        try:
            self._scope = _begun()
        except Unavailable as reason:
            self._scope = None
            warn(f"the experiment is not measured: {reason}")

    def _now(self) -> Measurement | None:
        if self._scope is None:
            return None
        try:
            now = self._scope.result(Measurement, type(self).__name__)
        except Unavailable as reason:
            warn(f"the experiment is not measured: {reason}")
            return None
        self._notes += now.notes
        return now

    def _consumed(self, now: Measurement | None) -> _Consumed:
        if now is None:
            return _Consumed(None, None)
        gpu = _device_of(now, self._device)
        known = gpu.consumed_bytes if gpu and gpu.attributed else None
        return _Consumed(now.gen.consumed_bytes, known).more(self._elsewhere)

    def _data(self, now: Measurement | None, consumed: _Consumed, reclaimed: _Consumed) -> IPyExperimentData:
        gpu = _device_of(now, self._device)
        available_bytes = (gpu.headroom_bytes if gpu else None) or 0
        return IPyExperimentData(
            IPyExperimentMemory(consumed.cpu or 0, reclaimed.cpu or 0, _virtual_memory()[0] or 0),
            IPyExperimentMemory(consumed.gpu or 0, reclaimed.gpu or 0, available_bytes),
        )

    # -- the end -------------------------------------------------------------------------------

    def _newer(self) -> list[IPyExperiments]:
        """The experiments of this shell that began later and still run."""
        return [e for e in _unfinished if e._shell is self._shell and e._number > self._number]

    def _abandon(self) -> None:
        """End without a word: nothing of ours stays behind."""
        self._running = False
        _unfinished.discard(self)
        if not _unfinished:
            atexit.unregister(_abandon_all)
        if self.cl is not None:
            self.cl.stop()

    def _delete(self) -> tuple[list[str], list[str], list[str]]:
        """Delete what is to be deleted: what was, what could not be, and what was kept."""
        deleted, failed, kept, values = [], [], [], []
        for name in self.get_var_names():
            if name in self._names_kept:
                kept.append(name)
                continue
            try:
                values.append(self._shell.user_ns.pop(name, None))
            except Exception:  # a namespace of somebody's own
                failed.append(name)
            else:
                deleted.append(name)
        _forget(self._shell, values, self._names_before)
        return deleted, failed, kept


class IPyExperimentsCPU(IPyExperiments):
    """An experiment that is about general RAM alone.

    Args:
        exp_enable: As `IPyExperiments` has it; so are all others.
    """

    backend = "cpu"
    _backend_name = "CPU-only"


class IPyExperimentsGPU(IPyExperimentsCPU, ABC):
    """An experiment with a framework's GPU; a subclass for each framework says how."""

    @abstractmethod
    def _wake(self) -> int | None: ...

    def _print_device(self) -> None:
        print(f"{render.device(_device_of(self._now(), self._device))}\n")


class IPyExperimentsPytorch(IPyExperimentsGPU):
    """An experiment with torch, on the device that is its current one at the beginning.

    torch is imported, and the device's context created, before the experiment begins: they are not its
    memory. Where torch can use no GPU, the figures of the GPU are 0, and the tables leave it out.

    Args:
        exp_enable: As `IPyExperiments` has it; so are all others.

    Raises:
        ImportError: torch is not installed.
    """

    backend = "pytorch"
    _backend_name = "Pytorch"

    def _wake(self) -> int | None:
        try:
            import torch  # noqa: F401 - whoever asks for it by name has asked for this
        except ImportError as error:
            raise ImportError(f"IPyExperimentsPytorch needs torch ({error}): pip install torch") from error
        machine().preload()
        return next((f.current_index() for f in machine().frameworks if f.name == "torch"), None)


class _Consumed(NamedTuple):
    """Bytes; None where nobody tells."""

    cpu: int | None
    gpu: int | None

    def more(self, other: _Consumed) -> _Consumed:
        pairs = zip(self, other, strict=True)
        return _Consumed(*(None if a is None or b is None else a + b for a, b in pairs))

    def less(self, other: _Consumed) -> _Consumed:
        pairs = zip(self, other, strict=True)
        return _Consumed(*(None if a is None or b is None else a - b for a, b in pairs))


_unfinished: weakref.WeakSet[IPyExperiments] = weakref.WeakSet()
_numbers = itertools.count()


def _abandon_all() -> None:
    for experiment in list(_unfinished):
        experiment._abandon()


def _begun() -> Scope:
    """A scope that asks for no peak: closed at once, it costs nothing, and tells any time what came since."""
    scope = Scope(reset_peaks=False).open()
    scope.close()
    return scope


def _device_of(measurement: Measurement | None, index: int | None) -> DeviceUsage | None:
    if measurement is None or index is None:
        return None
    return next((gpu for gpu in measurement.gpus if gpu.index == index and gpu.backend != DRIVER), None)


def _virtual_memory() -> tuple[int | None, int | None]:
    """What of the machine's RAM is available, and all of it; None where psutil does not tell."""
    try:
        import psutil

        memory = psutil.virtual_memory()
        return int(memory.available), int(memory.total)
    except Exception as error:  # it may be broken in any way
        if is_from_a_handler(error):
            raise
        return None, None


def _say(text: str) -> None:
    if text:
        print(text)


# -- the user's names ------------------------------------------------------------------------------


def _variables(shell: Any) -> Iterator[tuple[str, Any]]:
    """As ``%who`` lists them."""
    hidden = shell.user_ns_hidden
    for name, value in list(shell.user_ns.items()):
        if type(name) is str and not name.startswith("_") and hidden.get(name, hidden) is not value:
            yield name, value


def _forget(shell: Any, values: list[Any], names_before: frozenset[str]) -> None:
    """Drop what IPython keeps of values whose variables are gone: `Out`, `_`, `_12`, the last result.

    What another name of the user's, or an output from before, still holds stays everywhere. IPython's own
    ``%xdel`` would take the other names as well.
    """
    names, hidden, hook = shell.user_ns, shell.user_ns_hidden, shell.displayhook
    outputs = names.get("_oh")
    outputs = outputs if isinstance(outputs, dict) else {}
    ours = {name for name in hidden if _CACHED.fullmatch(str(name))}  # IPython's own, not the user's `_`
    held = [value for name, value in names.items() if name not in ours or hidden[name] is not value]
    held += [value for number, value in outputs.items() if f"_{number}" in names_before]
    gone = {id(value) for value in values} - {id(value) for value in held}
    for number in [number for number, value in outputs.items() if id(value) in gone]:
        del outputs[number]
    for name in [name for name in ours if id(hidden[name]) in gone]:
        is_ours = names.get(name, names) is hidden.pop(name)
        if is_ours:
            del names[name]
        if is_ours and name in ("_", "__", "___"):
            names[name] = hidden[name] = ""
    for name in ("_", "__", "___"):
        if id(getattr(hook, name, None)) in gone:
            setattr(hook, name, "")
    if id(getattr(shell.last_execution_result, "result", None)) in gone:
        shell.last_execution_result = None


def _finish_namesake(shell: Any, frame: FrameType | None) -> None:
    """Let go of the experiment whose name the running statement will give to a new one.

    Python would do so a moment later, when the new one has begun. If that was the last reference, the old one
    finishes here; if not, it keeps its name until then, and goes on. One that has finished is let go of
    as well: its logger is full of cycles, which would count as the new one's garbage.
    """
    frame = next(
        (one for one in walk_stack(frame) if one.f_code.co_name != "__init__"), None
    )  # of a subclass
    if frame is None:
        return
    names, name = shell.user_ns, _assigned(frame, shell.user_ns)
    old = names.get(name)
    if not issubclass(type(old), IPyExperiments):
        return
    old = weakref.ref(old)
    del names[name]
    if (survivor := old()) is not None:
        names[name] = survivor


def _assigned(frame: FrameType, names: dict[str, Any]) -> str | None:
    """The name in a namespace to which a statement assigns what it calls just now."""
    code = iter(dis.get_instructions(frame.f_code))
    for instruction in code:
        if instruction.offset == frame.f_lasti:
            break
    following = next((found for found in code if found.opname != "EXTENDED_ARG"), None)
    if following is None:
        return None
    # A function's locals are left alone: reading them would keep a copy of them in its frame.
    is_global = following.opname == "STORE_GLOBAL" and frame.f_globals is names
    if is_global or (following.opname == "STORE_NAME" and frame.f_locals is names):
        return str(following.argval)
    return None


def _is_being_reset() -> bool:
    """Whether IPython wipes its namespace: it goes by a list of names, and none may vanish meanwhile."""
    return any(
        frame.f_code.co_name == "reset" and frame.f_globals.get("__name__") == "IPython.core.interactiveshell"
        for frame in walk_stack(sys._getframe())
    )
