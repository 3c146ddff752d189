"""Release the memory that the traceback of an exception keeps alive, while the exception propagates.

A traceback refers to the local variables of each call that failed, and IPython keeps the last traceback.
These functions clear the variables as the exception passes. The exception stays the same object, with its
attributes, arguments, cause, notes and the lines of its traceback; `%debug` still shows where it failed, but
no values. Objects that its attributes refer to, such as `AttributeError.obj`, are kept.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, final

from ..engine.machine import machine
from ..owners.exceptions import args_of, exception_chain
from ..owners.oom_error import out_of_memory_in
from ..runtime.calls import around_calls
from .empty_frames import empty_frames

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

F = TypeVar("F", bound="Callable[..., Any]")

_SETTINGS = ("IPYGPULOGGER_TB_CLEAR_FRAMES", "FASTAI_TB_CLEAR_FRAMES")  # the first that is not empty counts
_NO_MEMORY, _ASSERTED = "CUDA out of memory", "device-side assert triggered"
_RESTART = (
    "When 'device-side assert triggered' error happens, it's not possible to recover and you must restart the"
    " kernel to continue. Use os.environ['CUDA_LAUNCH_BLOCKING']=\"1\" before restarting to debug"
)


def gpu_mem_restore(func: F) -> F:
    """Release a function's memory when it runs out of GPU memory or fails a device-side assert.

    Outside IPython this does nothing. The environment variable ``IPYGPULOGGER_TB_CLEAR_FRAMES``, or else
    ``FASTAI_TB_CLEAR_FRAMES``, is read at each call: "0" does nothing, so that ``%debug`` has all values; "1"
    releases the memory after any exception.

    Args:
        func: A function, method, coroutine function or generator function.
    """
    return around_calls(func, _restoring, "gpu_mem_restore")  # type: ignore[no-any-return]


def gpu_mem_restore_ctx() -> AbstractContextManager[object]:
    """Release the memory of all calls that failed in a ``with`` block, whatever the exception."""
    return _Guard(_always)


def ipython_tb_clear_frames(func: F) -> F:
    """Release a function's memory when it fails with any exception.

    Outside IPython, or if the environment variables of `gpu_mem_restore` say "0", this does nothing.

    Args:
        func: A function, method, coroutine function or generator function.
    """
    return around_calls(func, _clearing, "ipython_tb_clear_frames")  # type: ignore[no-any-return]


def ipython_tb_clear_frames_ctx() -> AbstractContextManager[object]:
    """Release the memory of all calls that failed in a ``with`` block, whatever the exception."""
    return _Guard(_always)


def get_ref_free_exc_info() -> (
    tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]
):
    """Release the memory of the exception being handled, and return what `sys.exc_info` returns."""
    info = sys.exc_info()
    _release(exception_chain(info[1]))
    return info


def is_in_ipython() -> bool:
    """Return whether this code runs in IPython: in a terminal, a notebook or an editor."""
    shell = getattr(sys.modules.get("IPython.core.interactiveshell"), "InteractiveShell", None)
    return shell is not None and bool(shell.initialized())


def is_in_colab() -> bool:
    """Return whether this code runs in Google Colab."""
    return is_in_ipython() and "google.colab" in sys.modules


@final
class _Guard(AbstractContextManager["_Guard"]):
    """Releases the memory of a failed block if `wanted` returns true; one guard may be entered many times."""

    def __init__(self, wanted: Callable[[BaseException], bool]) -> None:
        self._wanted = wanted
        self._handled: list[set[int]] = []

    def __enter__(self) -> _Guard:
        # Exceptions that are being handled already did not fail in this block. By id, to keep none alive.
        self._handled.append({id(error) for error in exception_chain(sys.exc_info()[1])})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        handled = self._handled.pop()
        if error is None or issubclass(type(error), GeneratorExit):
            return  # GeneratorExit: the generator was closed, its code did not fail
        try:
            if self._wanted(error):
                _release([one for one in exception_chain(error) if one is error or id(one) not in handled])
                gc.collect()
                machine().settling.settle(gc_collect=False, clear_cache=True)
        except BaseException:  # the user's exception goes on, even if this was interrupted
            pass


def _release(errors: list[BaseException]) -> None:
    try:
        empty_frames(errors)
    except BaseException:  # as above
        pass


def _restoring() -> AbstractContextManager[object]:
    setting = _setting()
    if setting == "0" or not is_in_ipython():
        return nullcontext()
    return _Guard(_always_and_warn if setting == "1" else _is_the_devices)


def _clearing() -> AbstractContextManager[object]:
    return nullcontext() if _setting() == "0" or not is_in_ipython() else _Guard(_always)


def _setting() -> str:
    return next(filter(None, map(os.environ.get, _SETTINGS)), "")


def _always(_: BaseException) -> bool:
    return True


def _always_and_warn(error: BaseException) -> bool:
    _is_the_devices(error)
    return True


def _is_the_devices(error: BaseException) -> bool:
    """Return whether it or a cause is out of GPU memory or a failed device assert; warn of the latter."""
    errors = exception_chain(error)
    asserted = [one for one in errors if _ASSERTED in _text(one)]
    if asserted:
        _warn_once(asserted)
        return True
    return out_of_memory_in(error) is not None or any(_NO_MEMORY in _text(one) for one in errors)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # of the user's own class
        return ""


# The arguments of the failed assert that was warned of last. They identify the exception without keeping it,
# and the memory behind it, alive.
_warned_of: tuple[Any, ...] = ()


def _warn_once(asserted: list[BaseException]) -> None:
    """Warn once for each failed assert, however many guards it passes."""
    global _warned_of  # noqa: PLW0603 - as the process has one device context, which is lost now
    parts = [args_of(one) for one in asserted]
    if _warned_of and any(one is _warned_of for one in parts):
        return
    _warned_of = parts[-1] if all(type(part) is str for part in parts[-1]) else ()
    try:
        warnings.warn(_RESTART, UserWarning, stacklevel=5)
    except Exception:  # warnings are errors here
        pass
