"""An exception goes on without the memory that its traceback held.

A traceback keeps the local variables of every call that failed, and the shell keeps the traceback. These
functions drop the variables as the exception passes by. It stays the very same object, with its attributes,
arguments, cause, notes and the lines of its traceback; `%debug` still shows where it failed, but no values.
What those attributes hold (`AttributeError.obj`, say) it keeps.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, final

from ..engine.machine import machine
from ..owners.frames import chain, parts_of
from ..owners.oom_message import out_of_memory_in
from ..runtime.calls import around_calls
from .empty_frames import empty_frames

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

F = TypeVar("F", bound="Callable[..., Any]")

_SETTINGS = ("IPYGPULOGGER_TB_CLEAR_FRAMES", "FASTAI_TB_CLEAR_FRAMES")  # the first that is set
_NO_MEMORY, _ASSERTED = "CUDA out of memory", "device-side assert triggered"
_RESTART = (
    "When 'device-side assert triggered' error happens, it's not possible to recover and you must restart the"
    " kernel to continue. Use os.environ['CUDA_LAUNCH_BLOCKING']=\"1\" before restarting to debug"
)


def gpu_mem_restore(func: F) -> F:
    """Let a function's memory go when it runs out of GPU memory or fails a device-side assert.

    Outside IPython nothing is done. The environment variable ``IPYGPULOGGER_TB_CLEAR_FRAMES``, or else
    ``FASTAI_TB_CLEAR_FRAMES``, is read at each call: "0" does nothing, so that ``%debug`` sees all values;
    "1" does it for every exception.

    Args:
        func: A function, method, coroutine function or generator function.
    """
    return around_calls(func, _restoring, "gpu_mem_restore")  # type: ignore[no-any-return]


def gpu_mem_restore_ctx() -> AbstractContextManager[object]:
    """Let the memory go of all that failed within a ``with`` block, whatever the exception and wherever."""
    return _Guard(_always)


def ipython_tb_clear_frames(func: F) -> F:
    """Let a function's memory go when it fails with any exception.

    Outside IPython nothing is done, nor where the variables that `gpu_mem_restore` reads say "0".

    Args:
        func: A function, method, coroutine function or generator function.
    """
    return around_calls(func, _clearing, "ipython_tb_clear_frames")  # type: ignore[no-any-return]


def ipython_tb_clear_frames_ctx() -> AbstractContextManager[object]:
    """Let the memory go of all that failed within a ``with`` block, whatever the exception and wherever."""
    return _Guard(_always)


def get_ref_free_exc_info() -> (
    tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]
):
    """Like `sys.exc_info`, in an ``except`` block, after the memory that the traceback held was let go."""
    info = sys.exc_info()
    _let_go(chain(info[1]))
    return info


def is_in_ipython() -> bool:
    """Whether this code runs in an IPython shell now: a terminal's, a notebook's, an editor's."""
    shell = getattr(sys.modules.get("IPython.core.interactiveshell"), "InteractiveShell", None)
    return shell is not None and bool(shell.initialized())


def is_in_colab() -> bool:
    """Whether this code runs in a notebook of Google Colaboratory."""
    return is_in_ipython() and "google.colab" in sys.modules


@final
class _Guard(AbstractContextManager["_Guard"]):
    """Lets the memory go of what failed within, where `wanted` says so; one may be entered many times."""

    def __init__(self, wanted: Callable[[BaseException], bool]) -> None:
        self._wanted = wanted
        self._handled: list[set[int]] = []

    def __enter__(self) -> _Guard:
        # What is being handled outside failed outside. By id, so as not to keep it alive.
        self._handled.append({id(error) for error in chain(sys.exc_info()[1])})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        handled = self._handled.pop()
        if error is None or issubclass(type(error), GeneratorExit):
            return  # a generator that is closed has not failed
        try:
            if self._wanted(error):
                _let_go([one for one in chain(error) if one is error or id(one) not in handled])
                gc.collect()
                machine().settling.settle(gc_collect=False, clear_cache=True)
        except BaseException:  # the user's own exception goes on, even if we are interrupted
            pass


def _let_go(errors: list[BaseException]) -> None:
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
    """Whether it or what led to it is of the device: no memory left, or a failed assert, of which we warn."""
    errors = chain(error)
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


# The arguments of the failed assert that was warned of last: it is known by them, and unlike it they hold no
# memory.
_told: tuple[Any, ...] = ()


def _warn_once(asserted: list[BaseException]) -> None:
    """Once for each failure, however many guards it passes."""
    global _told  # noqa: PLW0603 - as the process has one device context, which is lost now
    parts = [parts_of(one) for one in asserted]
    if _told and any(one is _told for one in parts):
        return
    _told = parts[-1] if all(type(part) is str for part in parts[-1]) else ()
    try:
        warnings.warn(_RESTART, UserWarning, stacklevel=5)
    except Exception:  # warnings are errors here
        pass
