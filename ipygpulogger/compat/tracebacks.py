"""Release the memory that the traceback of an exception keeps alive, while the exception propagates.

A traceback refers to the local variables of each call that failed, and IPython keeps the last traceback.
These functions clear the variables as the exception passes. The exception stays the same object, with all it
carries; `%debug` still shows where it failed, but no values.
"""

from __future__ import annotations

import gc
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from types import (
    AsyncGeneratorType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    TracebackType,
)
from typing import Any, TypeVar

from ..engine.machine import machine
from ..owners import referents
from ..owners.referents import exception_chain, out_of_memory_in
from ..runtime.objects import walk_tb
from ..runtime.wrappers import around_calls

_F = TypeVar("_F", bound="Callable[..., Any]")

_SETTINGS = ("IPYGPULOGGER_TB_CLEAR_FRAMES", "FASTAI_TB_CLEAR_FRAMES")  # the first that is not empty counts
_ASSERTED = "device-side assert triggered"
_SUSPENDED = GeneratorType, CoroutineType, AsyncGeneratorType  # refer to their frames until they are finished
_CODE_THAT_WAITS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_RESTART = (
    "When 'device-side assert triggered' error happens, it's not possible to recover and you must restart the"
    " kernel to continue. Use os.environ['CUDA_LAUNCH_BLOCKING']=\"1\" before restarting to debug"
)


def gpu_mem_restore(func: _F) -> _F:
    """Release a function's memory when it runs out of GPU memory or fails a device-side assert.

    Outside IPython this does nothing. The environment variable ``IPYGPULOGGER_TB_CLEAR_FRAMES``, or else
    ``FASTAI_TB_CLEAR_FRAMES``, is read at each call: "0" does nothing, so that ``%debug`` has all values; "1"
    releases the memory after any exception. `func` may be a coroutine or generator function as well.
    """
    return around_calls(func, _guard_of_call, "gpu_mem_restore")  # type: ignore[no-any-return]


def gpu_mem_restore_ctx() -> AbstractContextManager[object]:
    """Release the memory of all calls that failed in a ``with`` block, whatever the exception."""
    return _Guard(lambda _: True)


def ipython_tb_clear_frames(func: _F) -> _F:
    """Release a function's memory as `gpu_mem_restore` does, but when it fails with any exception."""
    guard = partial(_guard_of_call, any_exception=True)
    return around_calls(func, guard, "ipython_tb_clear_frames")  # type: ignore[no-any-return]


ipython_tb_clear_frames_ctx = gpu_mem_restore_ctx


def get_ref_free_exc_info() -> (
    tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]
):
    """Release the memory of the exception being handled, and return what `sys.exc_info` returns."""
    info = sys.exc_info()
    with suppress(Exception):
        empty_frames(exception_chain(info[1]))
    return info


def is_in_ipython() -> bool:
    """Return whether this code runs in IPython: in a terminal, a notebook or an editor."""
    shell = getattr(sys.modules.get("IPython.core.interactiveshell"), "InteractiveShell", None)
    return shell is not None and bool(shell.initialized())


def is_in_colab() -> bool:
    """Return whether this code runs in Google Colab."""
    return is_in_ipython() and "google.colab" in sys.modules


class _Guard(AbstractContextManager[object]):
    """Releases the memory of a failed block if `wanted` returns true; one guard may be entered many times."""

    def __init__(self, wanted: Callable[[BaseException], bool]) -> None:
        self._wanted = wanted

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or issubclass(type(error), GeneratorExit):
            return  # GeneratorExit: the generator was closed, its code did not fail
        try:
            if self._wanted(error):
                empty_frames(exception_chain(error))
                gc.collect()
                machine().settling.settle(gc_collect=False, clear_cache=True)
        except BaseException:  # the user's exception goes on, even if this was interrupted
            pass


def _guard_of_call(*, any_exception: bool = False) -> AbstractContextManager[object]:
    setting = next(filter(None, map(os.environ.get, _SETTINGS)), "")
    if setting == "0" or not is_in_ipython():
        return nullcontext()
    return _Guard(lambda error: any_exception or _is_the_devices(error) or setting == "1")


def _is_the_devices(error: BaseException) -> bool:
    """Return whether it or a cause is out of GPU memory or a failed assert; warn of the latter, once."""
    if any(_ASSERTED in referents.message_of(one) for one in exception_chain(error)):
        with suppress(Exception):  # warnings are errors here
            warnings.warn(_RESTART, stacklevel=1)
        return True
    return out_of_memory_in(error) is not None


# -- the frames ----------------------------------------------------------------------------------------------


def empty_frames(errors: list[BaseException]) -> None:
    """Clear the local variables of finished calls in the tracebacks of exceptions, which stay readable."""
    # Left alone are calls that still run, on any thread; generators and coroutines that may be resumed; the
    # namespace of a module; and dicts that the user got by `locals()`.
    emptied = []
    for frame in referents.unique_frames(
        entry for error in errors for entry in walk_tb(referents.traceback_of(error))
    ):
        is_module_level = not referents.is_function(frame) and frame.f_locals is frame.f_globals
        if is_module_level or _may_resume(frame):
            continue
        try:
            frame.clear()
        except RuntimeError:  # still executing; from 3.13 on, also suspended
            continue
        emptied.append(frame)
        # `clear` leaves a copy there, up to 3.11.7 and 3.12.1 (cpython#113939).
        if referents.LOCALS_LEAVE_A_COPY:
            left = gc.get_referents(frame)
            while left:
                value = left.pop()
                if value is not frame.f_globals and value is not frame.f_builtins:
                    referents.empty_if_unshared(value)
    for frame in emptied:
        _empty_function_of(frame)


def _empty_function_of(frame: FrameType) -> None:
    """Drop the closure and defaults, unless shared, of a frame's function; from 3.11 on it refers to that."""
    for function in _held_once(v for v in gc.get_referents(frame) if type(v) is FunctionType):
        function.__defaults__ = function.__kwdefaults__ = None
        for cell in _held_once(function.__closure__ or ()):
            with suppress(ValueError):  # it is empty
                del cell.cell_contents


def _held_once(values: Iterable[Any]) -> list[Any]:
    """Return those values to which nothing refers but what holds them here, and one object more."""
    found = list(values)
    return [value for value, count in zip(found, _references(found), strict=True) if count == _ONE_MORE]


def _references(values: list[Any]) -> list[int]:
    return [sys.getrefcount(value) for value in values]


_HOLDER = (object(),)
_ONE_MORE = _references(list(_HOLDER))[0]


def _may_resume(frame: FrameType) -> bool:
    """Return whether a call still runs, or is a suspended generator: `clear` would close that up to 3.12."""

    def has_its_code(one: FrameType) -> bool:
        return any(value is one.f_code for value in gc.get_referents(one))

    # From 3.11 on a frame has its variables and code only once the call has ended.
    if has_its_code(sys._getframe()):
        waits = frame.f_code.co_flags & _CODE_THAT_WAITS
        return bool(waits) and any(issubclass(type(one), _SUSPENDED) for one in gc.get_referrers(frame))
    return not has_its_code(frame)
