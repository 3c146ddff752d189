"""A context around every call of a function, and whether a call still runs."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from typing import TYPE_CHECKING, Any

from .frames import walk_stack

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import FrameType


def around_calls(function: Any, context: Callable[[], AbstractContextManager[Any]], who: str) -> Any:
    """Return a function whose every call runs within a context; a coroutine or generator function as well.

    The call of a generator or coroutine lasts from its first step to its end. If a call fails, our frame in
    the traceback does not keep its arguments alive.

    Args:
        function: The function; also a `classmethod` or `staticmethod`, as a decorator finds it in a class,
            and any other callable object.
        context: Creates the context of one call.
        who: What the error message calls us.

    Raises:
        TypeError: It is something else, such as a class or an asynchronous generator function.
    """
    if isinstance(function, (classmethod, staticmethod)):
        return type(function)(around_calls(function.__func__, context, who))
    # The code that a call runs; inspect finds that of a `functools.partial` and of a bound method itself.
    plain = inspect.isroutine(function) or isinstance(function, functools.partial)
    code = function if plain else type(function).__call__
    asynchronous = inspect.isasyncgenfunction(code)
    if not callable(function) or isinstance(function, type) or asynchronous:
        what = f"the asynchronous generator {function!r}" if asynchronous else repr(function)
        raise TypeError(f"{who} takes a function, coroutine or generator, not {what}")
    if inspect.iscoroutinefunction(code):
        wrapper = _coroutine(function, context)
    elif inspect.isgeneratorfunction(code):
        wrapper = _generator(function, context)
    else:
        wrapper = _function(function, context)
    return functools.update_wrapper(wrapper, function, updated=["__dict__"] if plain else [])


def _function(function: Any, context: Callable[[], AbstractContextManager[Any]]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with context():
            try:
                return function(*args, **kwargs)
            except BaseException:
                del args, kwargs
                raise

    return wrapper


def _generator(function: Any, context: Callable[[], AbstractContextManager[Any]]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with context():
            try:
                return (yield from function(*args, **kwargs))
            except BaseException:
                del args, kwargs
                raise

    return wrapper


def _coroutine(function: Any, context: Callable[[], AbstractContextManager[Any]]) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with context():
            try:
                return await function(*args, **kwargs)
            except BaseException:
                del args, kwargs
                raise

    return wrapper


class Call:
    """A call in progress, recognised without keeping its frame alive."""

    def __init__(self, frame: FrameType) -> None:
        """Remember a call that runs on this thread."""
        self._thread, self._frame, self._code = threading.get_ident(), id(frame), frame.f_code

    def running(self) -> bool:
        """Return whether it still runs; may be asked from any thread."""
        newest = sys._current_frames().get(self._thread)
        return any(id(frame) == self._frame and frame.f_code is self._code for frame in walk_stack(newest))
