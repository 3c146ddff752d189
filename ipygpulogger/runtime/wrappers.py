"""Functions of ours in place of a library's, and a context around every call of a function."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

from .objects import walk_stack

_ORIGINAL = "_ipygpulogger_original"  # marks a wrapper of ours, and holds the function that it wraps

_lock = threading.RLock()  # held while wrappers are put on or taken off, by any thread


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603 - another thread may have held it at the moment of the fork
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Wrappers:
    """The wrappers in one module or class; false while none is on.

    `place` returns where the functions are looked up at each call, None while that does not exist. `may_go`
    returns whether they can be taken off now without a loss for the user. What another tool put in their
    place meanwhile is left alone.
    """

    def __init__(self, place: Callable[[], Any], may_go: Callable[[], bool] = lambda: True) -> None:
        self._place, self._may_go = place, may_go
        self._on: dict[str, tuple[Any, Any]] = {}  # name: (the library's function, ours)
        self._leaving = False

    def __bool__(self) -> bool:
        return bool(self._on)

    def put_on(self, makers: Mapping[str, Callable[[Any], Callable[..., Any]]]) -> None:
        """Wrap the functions that exist and are not wrapped yet, each by the maker under its name."""
        place = self._place()
        with _lock:
            self._leaving = False
            for name, maker in makers.items():
                if name in self._on:
                    continue
                original = getattr(place, name, None)
                original = getattr(original, _ORIGINAL, original)  # a fork's parent may have wrapped it
                if original is not None:
                    ours = functools.wraps(original)(maker(original))
                    setattr(ours, _ORIGINAL, original)
                    try:
                        setattr(place, name, ours)
                        self._on[name] = original, ours
                    except BaseException:  # interrupted between the two
                        setattr(place, name, original)
                        raise

    def take_off(self) -> None:
        """Put the library's own functions back, at once or, while `may_go` refuses, at a later `retry`."""
        with _lock:
            self._leaving = True
            self.retry()

    def retry(self) -> None:
        """Take the wrappers off after all, if `take_off` had to leave them on."""
        if not self._leaving:
            return
        with _lock:
            if self._leaving and self._may_go():
                place = self._place()
                for name, (original, ours) in self._on.items():
                    if getattr(place, name, None) is ours:
                        setattr(place, name, original)
                self._on.clear()

    def own(self, name: str) -> Any:
        """Return the library's own function, without our wrapper, or raise `AttributeError`."""
        function = getattr(self._place(), name)
        original, ours = self._on.get(name, (None, None))
        return original if ours is function else getattr(function, _ORIGINAL, function)


def around_calls(function: Any, context: Callable[[], AbstractContextManager[Any]], who: str) -> Any:
    """Return a function whose every call runs within a context; `who` is what an error message calls us.

    Classes and asynchronous generator functions are refused. The call of a generator or coroutine lasts
    from its first step to its end. The frame of a call that failed keeps no argument alive.
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
    wrapper = _within(function, context, code)
    return functools.update_wrapper(wrapper, function, updated=["__dict__"] if plain else [])


def _within(
    function: Any, context: Callable[[], AbstractContextManager[Any]], code: Any
) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # in IPython's tracebacks and pytest's
        try:
            with context():
                return function(*args, **kwargs)
        finally:
            del args, kwargs

    def generated(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            with context():
                return (yield from function(*args, **kwargs))
        finally:
            del args, kwargs

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            with context():
                return await function(*args, **kwargs)
        finally:
            del args, kwargs

    if inspect.iscoroutinefunction(code):
        return awaited
    return generated if inspect.isgeneratorfunction(code) else called


class Call:
    """A call in progress, recognised without keeping its frame alive."""

    def __init__(self, frame: FrameType) -> None:
        self._thread, self._frame, self._code = threading.get_ident(), id(frame), frame.f_code

    def running(self) -> bool:
        """Return whether it still runs; may be asked from any thread."""
        newest = sys._current_frames().get(self._thread)
        return any(id(frame) == self._frame and frame.f_code is self._code for frame in walk_stack(newest))
