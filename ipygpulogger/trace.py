"""Measure a block or a function, inside IPython or not."""

from __future__ import annotations

import functools
import inspect
import warnings
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, final, overload

from .records import DeviceUsage, Measurement, RamUsage
from .render import text
from .scope import Scope

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

# The `with` blocks that are open here, outermost first: tasks and threads each have their own.
_open_blocks: ContextVar[tuple[tuple[Measure, Scope | None], ...]] = ContextVar("open blocks", default=())

F = TypeVar("F", bound="Callable[..., Any]")


@final
class Measure:
    """What `measure` returns: a context manager, a decorator, and the last measurement."""

    def __init__(self, label: str | None, *, report: bool) -> None:
        self._label, self._report = label, report
        self._last: Measurement | None = None

    def __enter__(self) -> Measure:
        _open_blocks.set((*_open_blocks.get(), (self, self._begin(self._label or "block"))))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        blocks = list(_open_blocks.get())
        ours = max(i for i, (measure, _) in enumerate(blocks) if measure is self)
        _, scope = blocks.pop(ours)
        _open_blocks.set(tuple(blocks))
        self._finish(scope, self._label or "block")

    def __call__(self, function: F) -> F:
        """Measure every call of a function, coroutine function or generator function.

        Raises:
            TypeError: It is something else.
        """
        measurable = inspect.isroutine(function) and callable(function)
        if not measurable or inspect.isasyncgenfunction(function):
            raise TypeError(f"measure takes a function, coroutine or generator, not {function!r}")
        label = self._label or function.__qualname__
        wrapper: Any
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                scope = self._begin(label)
                try:
                    return await function(*args, **kwargs)
                finally:
                    self._finish(scope, label)

        elif inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                scope = self._begin(label)
                try:
                    return (yield from function(*args, **kwargs))
                finally:
                    self._finish(scope, label)

        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                scope = self._begin(label)
                try:
                    return function(*args, **kwargs)
                finally:
                    self._finish(scope, label)

        return wrapper  # type: ignore[no-any-return]

    def _begin(self, label: str) -> Scope | None:
        try:
            return Scope().open()
        except Exception as reason:  # the user's code goes on all the same
            warnings.warn(f"{label} is not measured: {reason}", RuntimeWarning, stacklevel=3)
            return None

    def _finish(self, scope: Scope | None, label: str) -> None:
        if scope is None:
            return
        try:
            scope.close()
            self._last = scope.result(Measurement, label)
        except Exception as reason:
            warnings.warn(f"{label} is not measured: {reason}", RuntimeWarning, stacklevel=3)
            return
        if self._report:
            print(text.report(self._last))

    @property
    def last(self) -> Measurement:
        """The last finished block or call.

        Raises:
            RuntimeError: None has finished yet.
        """
        if self._last is None:
            raise RuntimeError(
                "nothing measured yet: the block has not ended, or the function was not called"
            )
        return self._last

    @property
    def gen(self) -> RamUsage:
        """General RAM."""
        return self.last.gen

    @property
    def gpus(self) -> tuple[DeviceUsage, ...]:
        """The devices the process touched."""
        return self.last.gpus

    @property
    def time_s(self) -> float:
        """Seconds from start to end."""
        return self.last.time_s

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
