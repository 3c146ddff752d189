"""`GPUMemTrace` and `gpu_mem_trace`: fastai's tracer of the current GPU's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ..blocks.measure import warn
from ..engine.machine import machine
from ..engine.scope import Scope
from ..records import Measurement
from ..records.units import printable, truncated_mb
from ..render import text
from ..runtime.errors import say
from ..runtime.wrappers import around_calls

if TYPE_CHECKING:
    from typing_extensions import Self

_F = TypeVar("_F", bound="Callable[..., Any]")


class GPUMemTrace:
    """Trace the memory of the current GPU, from when it is made until it is stopped or deleted.

    The figures are this process's own, in MB, and exact where the framework's allocator counts them. Without
    a GPU they are 0. What is not exact, or could not be attributed to a process, is remarked behind the
    printed figures, as in the report of a cell. Tracers may nest and overlap, also across threads.

    Args:
        silent: Print nothing. Also ``tracer.silent = True``, ``tracer.silent(True)``.
        ctx: What is traced; printed behind the figures.
        on_exit_report: Print a report at the end of a ``with`` block.

    Example:
        ``with GPUMemTrace(ctx="train"): train()`` prints ``△Used Peaked MB:    100     50 (train: exit)``.
    """

    def __init__(self, silent: bool = False, ctx: str | None = None, on_exit_report: bool = True) -> None:
        self._silent = silent
        self.ctx = ctx
        self.on_exit_report = on_exit_report
        self._scope: Scope | None = None
        self.start()

    @property
    def is_running(self) -> bool:
        """Return whether it was started and not stopped."""
        return self._scope is not None

    @property
    def silent(self) -> _Silent:
        """Return whether nothing is printed; can be set, or called with the value to set."""
        return _Silent(self)

    @silent.setter
    def silent(self, silent: bool) -> None:
        self._silent = bool(silent)

    def start(self) -> None:
        """Start to trace, or start again from zero."""
        self._close()
        self._figures_mb, self._remark = (0, 0), ""
        try:
            self._scope = Scope(reset_peaks=False).open()  # the peak of general RAM is not asked for
        except Exception as reason:
            self._warn_not_measured(reason)

    def reset(self) -> None:
        """Start again from zero, if it is running."""
        if self._scope is not None:
            self.start()

    def stop(self) -> None:
        """Stop to trace; the figures keep their last values."""
        try:
            self.data()
        finally:
            self._close()

    def data(self) -> tuple[int, int]:
        """Return what the current device consumed and peaked, in MB (``2**20``), truncated toward zero."""
        if self._scope is not None:
            try:
                measurement = self._scope.result(Measurement, "")
                gpu = measurement.gpu(machine().frameworks.current_index())
            except Exception as reason:
                self._warn_not_measured(reason)
            else:
                for note in measurement.notes:
                    warn(note)
                self._figures_mb, self._remark = (0, 0), ""
                if gpu is not None:
                    self._figures_mb = truncated_mb(gpu.consumed_bytes), truncated_mb(gpu.peaked_bytes)
                    self._remark = text.uncertainty(gpu)
        return self._figures_mb

    def report(self, subctx: str | None = None) -> None:
        """Print the figures, with ``ctx`` and where within it this is."""
        if not self.silent:
            say(self._line(": ".join(filter(None, (self.ctx, subctx)))))

    def report_n_reset(self, subctx: str | None = None) -> None:
        """Print the figures, then start again from zero."""
        self.report(subctx)
        self.reset()

    def __repr__(self) -> str:
        return self._line("")

    def _line(self, where: str) -> str:
        consumed_mb, peaked_mb = self.data()
        parts = [f"△Used Peaked MB: {consumed_mb:6,.0f} {peaked_mb:6,.0f}", where and f" ({where})"]
        return printable("".join([*parts, self._remark and f"  {self._remark}"]))

    def _warn_not_measured(self, reason: Exception) -> None:
        warn(f"{self.ctx or 'GPU memory'} is not measured: {reason}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        if self.on_exit_report:
            self.report("exit")

    def _close(self) -> None:
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.close()
            for note in scope.notes:
                warn(note)


class _Silent(int):
    """The value of `GPUMemTrace.silent`: a boolean that can also be called."""

    _tracer: GPUMemTrace

    def __new__(cls, tracer: GPUMemTrace) -> Self:
        silent = super().__new__(cls, tracer._silent)
        silent._tracer = tracer
        return silent

    def __call__(self, silent: bool = True) -> None:
        self._tracer.silent = silent

    def __repr__(self) -> str:
        return repr(bool(self))


def gpu_mem_trace(function: _F) -> _F:
    """Trace every call of a function, coroutine function or generator function, and print its report.

    Raises:
        TypeError: The argument is none of these.
    """
    ctx = getattr(function, "__qualname__", None)
    return around_calls(function, lambda: GPUMemTrace(ctx=ctx), "gpu_mem_trace")  # type: ignore[no-any-return]
