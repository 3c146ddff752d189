"""Measure a block or a function, inside IPython or not: `measure`, and fastai's `GPUMemTrace`."""

from __future__ import annotations

import weakref
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, final, overload

from ..engine.machine import machine
from ..engine.scope import Scope, tell
from ..records import DeviceUsage, Measurement, RamUsage
from ..records.units import printable, truncated_mb
from ..render import text
from ..runtime import clock
from ..runtime.calls import around_calls
from ..runtime.output import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

# The `with` blocks that were entered here, outermost first: tasks and threads each have their own.
_entered_here: ContextVar[tuple[weakref.ref[_Block], ...]] = ContextVar("entered here", default=())

F = TypeVar("F", bound="Callable[..., Any]")


class _Block:
    """One block or call; the user's code goes on whatever keeps us from measuring it."""

    def __init__(self, measure: Measure, label: str) -> None:
        self.measure, self._label = measure, label
        self._scope: Scope | None = None
        self._began_s = 0.0

    def __enter__(self) -> None:
        try:
            self._scope = Scope()
            self._scope.open()
        except Exception as reason:
            self._scope = None
            tell(f"{self._label} is not measured: {reason}")
        self._began_s = clock.monotonic_s()

    def __exit__(self, *error: object) -> None:
        scope, time_s = self._scope, clock.monotonic_s() - self._began_s
        if scope is None:
            self.measure.missed(time_s)
            return
        try:
            scope.close()
            measurement = scope.result(Measurement, self._label)
        except Exception as reason:
            self.measure.missed(time_s)
            tell(f"{self._label} is not measured: {reason}")
        else:
            self.measure.finished(measurement)
        finally:
            self.close()

    def close(self) -> None:
        """End the scope, whatever kept it from being ended; what is wrong with it was told."""
        with suppress(Exception):
            if self._scope is not None:
                self._scope.close()


@final
class Measure:
    """What `measure` returns: a context manager, a decorator, and the last measurement."""

    def __init__(self, label: str | None, *, report: bool) -> None:
        self._label, self._report = label, report
        self._last: Measurement | None = None
        self._time_s: float | None = None  # None: nothing has ended yet
        self._open: list[_Block] = []

    def __enter__(self) -> Measure:
        block = _Block(self, self._label or "block")
        self._open.append(block)
        try:
            block.__enter__()
            _entered_here.set((*_entered_here.get(), weakref.ref(block)))
        except BaseException:  # interrupted: the block will not be left either
            self._forget(block)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        # The block of this task, or, where another task or thread ends what this one began, the latest.
        here = [block for known in _entered_here.get() if (block := known()) in self._open]
        for block in (here or self._open)[-1:]:
            try:
                self._open.remove(block)
                others = (known for known in _entered_here.get() if known() not in (block, None))
                _entered_here.set(tuple(others))
                block.__exit__(*error)
            finally:
                self._forget(block)

    def _forget(self, block: _Block) -> None:
        block.close()
        if block in self._open:
            self._open.remove(block)

    def __call__(self, function: F) -> F:
        """Measure every call of a function, coroutine function or generator function.

        Raises:
            TypeError: It is something else.
        """
        label = self._label or str(getattr(function, "__qualname__", "call"))
        return around_calls(function, lambda: _Block(self, label), "measure")  # type: ignore[no-any-return]

    def missed(self, time_s: float) -> None:
        """A block or call has ended of which nothing but its time is known."""
        self._last, self._time_s = None, time_s

    def finished(self, measurement: Measurement) -> None:
        """A block or call has ended."""
        self._last, self._time_s = measurement, measurement.time_s
        if self._report and (reason := say(text.report(measurement))):
            tell(f"{measurement.label} is measured, and its report cannot be written: {reason}")

    @property
    def last(self) -> Measurement | None:
        """The last finished block or call; None where it could not be measured.

        Raises:
            RuntimeError: None has finished yet.
        """
        self._ended_after_s()
        return self._last

    @property
    def gen(self) -> RamUsage | None:
        """General RAM; None where it could not be measured."""
        return None if self.last is None else self.last.gen

    @property
    def gpus(self) -> tuple[DeviceUsage, ...]:
        """The devices the process touched; none where they could not be measured."""
        return () if self.last is None else self.last.gpus

    @property
    def time_s(self) -> float:
        """Seconds from start to end, which are known in any case."""
        return self._ended_after_s()

    def _ended_after_s(self) -> float:
        if self._time_s is None:
            raise RuntimeError(
                "nothing measured yet: the block has not ended, or the function was not called"
            )
        return self._time_s

    def __repr__(self) -> str:
        return text.report(self._last) if self._last else "<measure: nothing measured yet>"


@overload
def measure(label: F, /) -> F: ...
@overload
def measure(label: str | None = None, report: bool = False) -> Measure: ...
def measure(label: Any = None, report: bool = False) -> Any:
    """Measure a block or every call of a function; nothing is collected, emptied or preloaded.

    Args:
        label: What to call it; a function's own name by default.
        report: Print the report at the end.

    Returns:
        A context manager and decorator; after the end it has ``gen``, ``gpus`` and ``time_s`` of the
        last block or call, and the whole `Measurement` as ``last``.

    Example:
        ``with measure("load") as m: data = load()``, then ``m.gen.consumed_bytes``.
    """
    if label is not None and not isinstance(label, str):
        return Measure(None, report=True)(label)
    return Measure(label, report=report)


class GPUMemTrace:
    """fastai's tracer: what the current GPU's memory did since it was made, until it is stopped.

    The figures are this process's own, and exact where its allocator counts (the original's were the
    whole card's, and its thread missed what was short). Where a peak is not exact, or nobody tells whose the
    memory is, that stands behind the printed figures, as in the reports of cells. Tracers nest and overlap,
    also across threads. Without a GPU they read 0. A tracer that is deleted ends.

    Args:
        silent: Print nothing. Also ``tracer.silent = True``, ``tracer.silent(True)``.
        ctx: What is traced: stands behind the figures.
        on_exit_report: Print a report where a ``with`` block ends.

    Example:
        ``with GPUMemTrace(ctx="train"): train()`` prints ``△Used Peaked MB:    100     50 (train: exit)``.
    """

    def __init__(self, silent: bool = False, ctx: str | None = None, on_exit_report: bool = True) -> None:
        self._silent, self.ctx, self.on_exit_report = silent, ctx, on_exit_report
        self._scope: Scope | None = None
        self._figures, self._doubt = (0, 0), ""
        self.start()

    @property
    def is_running(self) -> bool:
        """Whether it is between `start` and `stop`."""
        return self._scope is not None

    @property
    def silent(self) -> _Silent:
        """Whether it prints nothing; may be set, and called with the value to set."""
        return _Silent(self)

    @silent.setter
    def silent(self, silent: bool) -> None:
        self._silent = bool(silent)

    def start(self) -> None:
        """Trace from here, also one that was stopped."""
        self._close()
        self._figures, self._doubt = (0, 0), ""
        # Resident memory is nobody's question here: the kernel's peak stays as it is.
        try:
            self._scope = Scope(reset_peaks=False)
            self._scope.open()
        except Exception as reason:
            self._scope = None
            tell(f"{self.ctx or 'GPU memory'} is not measured: {reason}")

    def reset(self) -> None:
        """Count from here, if it runs."""
        if self.is_running:
            self.start()

    def stop(self) -> None:
        """Trace no longer: the figures stay what they are."""
        try:
            self.data()
        finally:
            self._close()

    def data(self) -> tuple[int, int]:
        """Consumed and peaked on the current device, in MB (``2**20``), truncated toward zero."""
        if self._scope is not None:
            try:
                measurement = self._scope.result(Measurement, "")
                gpu = measurement.gpu(machine().current_gpu())
            except Exception as reason:
                tell(f"{self.ctx or 'GPU memory'} is not measured: {reason}")
            else:
                for note in measurement.notes:
                    tell(note)
                self._figures, self._doubt = (0, 0), ""
                if gpu is not None:
                    self._figures = truncated_mb(gpu.consumed_bytes), truncated_mb(gpu.peaked_bytes)
                    self._doubt = text.doubt(gpu)
        return self._figures

    def report(self, subctx: str | None = None) -> None:
        """Print the figures.

        Args:
            subctx: Where in the context this is.
        """
        if self._silent:
            return
        if reason := say(self._line(": ".join(filter(None, (self.ctx, subctx))))):
            tell(f"the figures of {self.ctx or 'GPU memory'} cannot be written: {reason}")

    def report_n_reset(self, subctx: str | None = None) -> None:
        """Print the figures, then count from here."""
        self.report(subctx)
        self.reset()

    def __repr__(self) -> str:
        return self._line("")

    def _line(self, where: str) -> str:
        consumed, peaked = self.data()
        line = f"△Used Peaked MB: {consumed:6,.0f} {peaked:6,.0f}"
        return printable(
            line + (f" ({where})" if where else "") + (f"  {self._doubt}" if self._doubt else "")
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        if self.on_exit_report:
            self.report("exit")

    def _close(self) -> None:
        scope = self._scope
        if scope is not None:
            scope.close()
            self._scope = None
            for note in scope.notes:
                tell(note)


class _Silent(int):
    """A tracer's `silent`: true or false, and to be called."""

    _tracer: GPUMemTrace

    def __new__(cls, tracer: GPUMemTrace) -> Self:
        silent = super().__new__(cls, tracer._silent)
        silent._tracer = tracer
        return silent

    def __call__(self, silent: bool = True) -> None:
        self._tracer.silent = silent

    def __repr__(self) -> str:
        return repr(bool(self))


def gpu_mem_trace(function: F) -> F:
    """Trace every call of a function, coroutine function or generator function, and report it at its end.

    Prints ``△Used Peaked MB:    100     50 (function: exit)``.

    Raises:
        TypeError: It is something else.
    """
    ctx = getattr(function, "__qualname__", None)
    return around_calls(function, lambda: GPUMemTrace(ctx=ctx), "gpu_mem_trace")  # type: ignore[no-any-return]
