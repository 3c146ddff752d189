"""Measure each line of a function, inside IPython or not: `measure_lines`."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import CodeType, MethodType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from ..lines.line_profiler import LineProfiler, backend, code_of
from ..render import lines as render
from ..runtime.errors import say
from ..runtime.objects import nested_code
from ..runtime.shell import place_of
from ..runtime.wrappers import around_calls
from .measure import warn

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..records import LineUsage

P = ParamSpec("P")
R = TypeVar("R")


class _Call:
    """One call; if it cannot be measured, it warns, and the user's code goes on."""

    def __init__(self, trace: LineTrace[..., Any]) -> None:
        self._trace = trace

    def __enter__(self) -> None:
        try:
            self._trace._begin(self)
        except Exception as reason:
            self._trace._last = ()
            warn(f"the lines of {self._trace.__name__} are not measured: {reason}")
        except BaseException:  # interrupted: Python will not call `__exit__`
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        try:
            self._trace._end(self)
        except Exception as reason:
            self._trace._lines = None
            warn(f"the lines of {self._trace.__name__} are not measured: {reason}")
        except BaseException:
            self._trace._end(self)  # interrupted: finish what the first attempt left
            raise


class LineTrace(functools.partial[R], Generic[P, R]):
    """What `measure_lines` returns: the function, and what the lines of its last call used.

    Overlapping calls (recursion, generators, tasks, threads) are measured as one. A `functools.partial`
    without arguments is a coroutine function if the function is one, and adds no frame to tracebacks.
    """

    __name__: str
    __qualname__: str
    __wrapped__: Callable[P, R]

    def __new__(cls, function: Callable[P, R], *, report: bool) -> Self:  # noqa: ARG004, D102 - as `__init__`
        self = super().__new__(cls, around_calls(function, lambda: _Call(self), "measure_lines"))
        return self

    def __init__(self, function: Callable[P, R], *, report: bool) -> None:
        _code_of(function)
        functools.update_wrapper(self, self.func).__wrapped__ = function
        self._report, self._lock = report, threading.RLock()
        self._lines: LineProfiler | None = None
        self._calls: set[_Call] = set()  # that are measured together now
        self._last: tuple[LineUsage, ...] | None = None

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...  # noqa: D102 - of the function

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    @property
    def lines(self) -> tuple[LineUsage, ...]:
        """Return what each line used in the last call, lines of nested functions included.

        Empty if the call could not be measured.

        Raises:
            AttributeError: No call has ended yet.
        """
        if self._last is None:  # no RuntimeError, so that `hasattr` and inspection tools work
            why = "it was not called, or its call has not ended"
            raise AttributeError(f"no line of {self.__name__} is measured yet: {why}")
        return self._last

    def _begin(self, call: _Call) -> None:
        with self._lock:
            self._calls.add(call)  # first: the garbage collector may run here, and end another call
            if self._lines is not None:
                if why_not := backend.why_not_here():
                    self._lines.lost(why_not)
                return
            # Looked up at each call: autoreload and other profilers replace a function's code.
            codes = list(nested_code(_code_of(self.__wrapped__)))
            self._lines = LineProfiler(lambda frame: any(code is frame.f_code for code in codes))
            self._lines.start()

    def _end(self, call: _Call) -> None:
        with self._lock:
            self._calls.discard(call)
            measured = self._lines
            if self._calls or measured is None:
                return
            self._last = ()  # until the lines are known
            measured.stop()
            lines, notes = measured.result(place_of), measured.notes(place_of)
            self._last, self._lines = lines, None
        if self._report:
            if reason := say(render.table(lines, notes)):
                warn(f"the lines of {self.__name__} are measured, and cannot be written: {reason}")
            return
        for note in notes:
            warn(note)

    def __reduce__(self) -> str:
        return self.__qualname__  # pickled as a function is: by its name

    def __repr__(self) -> str:
        return f"<measure_lines: {self.__qualname__}>"


def _code_of(function: Any) -> CodeType:
    """Return the code that the user wrote, below any other decorators; `TypeError` if it is not Python."""
    if (code := code_of(function)) is None:
        raise TypeError(f"measure_lines takes a function written in Python, not {function!r}")
    return code


@overload
def measure_lines(function: Callable[P, R], /) -> LineTrace[P, R]: ...
@overload
def measure_lines(*, report: bool = True) -> Callable[[Callable[P, R]], LineTrace[P, R]]: ...
def measure_lines(function: Any = None, /, *, report: bool = True) -> Any:
    """Measure each line of a function in every call: hits, time, RAM and each GPU.

    Lines of nested functions are measured too. What other functions use belongs to the line that calls them.
    No garbage is collected and no cache emptied.

    Args:
        function: A function, coroutine function or generator function, a method, a class method.
        report: Print a table at the end of each call.

    Returns:
        The function; after a call, its attribute ``lines`` is a tuple of `LineUsage`.

    Raises:
        TypeError: The argument is none of these.

    Example:
        ``@measure_lines`` above a function; after a call of ``load``, ``load.lines[0].gen.needed_bytes``.
    """
    if function is None:
        return functools.partial(measure_lines, report=report)
    if isinstance(function, (classmethod, staticmethod)):
        return type(function)(LineTrace(function.__func__, report=report))
    return LineTrace(function, report=report)
