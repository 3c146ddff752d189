"""TensorFlow: its allocator's counters on every GPU, exact and resettable.

`tf.config.experimental.get_memory_info` returns the bytes in use and their peak, `reset_memory_stats`
restarts the peak. Both are about the allocator's live memory, not about what TensorFlow took from the GPU,
so there is one series. TensorFlow counts no allocations, hence there is no stamp: the peak of a scope during
which another scope opened is sampled, every other peak is exact.

Nothing here imports TensorFlow or initialises its context, which would take the GPUs.

Both functions, and the older `get_memory_usage`, call methods of the context, which Python looks up in its
class at each call. So wrappers there reach every caller, however it imported the functions.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from ..runtime.errors import first_line
from . import driver
from .counter import Look, PeakClass, Reading, Unavailable
from .device import Device, DeviceCounter
from .framework import Framework
from .inherited import is_inherited, tensorflow_context
from .user_counters import UserCounters

if TYPE_CHECKING:
    from collections.abc import Callable

    from .user_counters import Stats

_READ, _RESET = "get_memory_info", "reset_memory_stats"

# "GPU:1", "/gpu:1", "/job:localhost/replica:0/task:0/device:GPU:1"; the star matches one GPU or is an error.
_GPU = re.compile(r"(?:^|[:/])GPU:(\d+|\*)$", re.IGNORECASE)

Info = dict[str, int]  # {"current": ..., "peak": ...}


class TensorFlowCounter(DeviceCounter):
    """The allocator of one GPU: bytes in use."""

    peak_class: PeakClass = "resettable"

    def __init__(self, source: TensorFlow, device: Device) -> None:
        self.device = device
        self._source = source
        self._peak_bytes = 0

    def look(self) -> Look:
        """Read what is in use, and its peak."""
        reading = self._source.read(self.device.index)
        self._peak_bytes = reading.peak_bytes or 0
        return Look((reading,), ())

    def reset(self) -> None:
        """Reset the peak, and keep for the user what they would have read."""
        self._source.reset(self.device.index, self._peak_bytes)


class TensorFlow(Framework):
    """TensorFlow in this process, once the user has initialised its eager context."""

    name = "tensorflow"

    def __init__(self) -> None:
        self._counters: dict[int, TensorFlowCounter] = {}
        self._users = UserCounters(_context_class, self._stats)  # by TensorFlow's index
        self._makers: dict[str, Callable[[Any], Callable[..., Any]]] = {
            _READ: self._read_wrapper,
            _RESET: self._reset_wrapper,
        }

    def counters(self) -> list[TensorFlowCounter]:
        """Return the GPUs that the eager context has taken, by their CUDA ordinals."""
        for ordinal in _gpus().values():
            if ordinal not in self._counters:
                counter = TensorFlowCounter(self, driver.device(ordinal))
                try:
                    counter.look()
                except Unavailable:
                    continue  # an allocator without statistics
                self._counters[ordinal] = counter
        return [self._counters[ordinal] for ordinal in sorted(self._counters)]

    def current_index(self) -> int | None:
        """Return TensorFlow's first GPU, where it places operations without an explicit device."""
        ordinal = _gpus().get(0)
        return ordinal if ordinal in self._counters else None

    def after_fork_in_child(self) -> None:
        """Replace the lock, which another thread may have held at the moment of the fork."""
        self._users.wrappers.after_fork_in_child()

    def hold(self) -> bool:
        """Put the wrappers on, as far as TensorFlow is there; return whether it was in use before."""
        late = not self._users.wrappers and bool(getattr(tensorflow_context(), "_initialized", False))
        self._users.wrappers.put_on(self._makers)
        return late

    def release(self) -> None:
        """Take the wrappers off, as soon as that makes TensorFlow forget no peak of the user's."""
        self._users.wrappers.take_off()

    def read(self, ordinal: int) -> Reading:
        """Return the allocator's own numbers, without the peaks that the wrappers restore.

        Raises:
            Unavailable: TensorFlow does not report them.
        """
        try:
            info: Info = self._call(_READ, _index(ordinal))
            return Reading(int(info["current"]), int(info["peak"]))
        except (KeyError, TypeError, ValueError) as error:
            raise Unavailable("some of TensorFlow's memory statistics are missing now") from error

    def reset(self, ordinal: int, peak_bytes: int) -> None:
        """Reset the allocator's peak, and keep for the user what they would have read.

        Args:
            ordinal: The GPU.
            peak_bytes: The peak just before.

        Raises:
            Unavailable: TensorFlow does not reset it.
        """
        index = _index(ordinal)
        self._users.remember(index, _as_stats({"peak": peak_bytes}))
        self._call(_RESET, index)

    def _stats(self, index: int) -> Stats:
        if index not in _gpus():
            raise Unavailable("TensorFlow does not use this device")
        return _as_stats(self._call(_READ, index))

    def _call(self, name: str, index: int) -> Any:
        context = _context()
        try:
            return self._users.wrappers.own(name)(context, f"GPU:{index}")
        except Exception as error:
            raise Unavailable(f"TensorFlow's memory cannot be read: {first_line(error)}") from error

    def _read_wrapper(self, original: Callable[[Any, str], Info]) -> Callable[[Any, str], Info]:
        def get_memory_info(context: Any, dev: str) -> Info:
            info = original(context, dev)
            self._users.user_reads(_index_of(dev), _as_stats(info))
            return info

        return get_memory_info

    def _reset_wrapper(self, original: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
        def reset_memory_stats(context: Any, dev: str) -> None:
            index = _index_of(dev)
            ordinal, listener = _gpus().get(index), self.on_user_reset
            announce = None if ordinal is None or listener is None else partial(listener, ordinal)
            self._users.user_resets(index, partial(original, context, dev), announce)

        return reset_memory_stats


def _as_stats(info: Info) -> Stats:
    """Return statistics with one count, which is `info` itself: raising its peak changes `info`."""
    return {"in use": info}


# -- TensorFlow, read without initialising it ----------------------------------------------------------


def _context_class() -> Any:
    return getattr(sys.modules.get("tensorflow.python.eager.context"), "Context", None)


def _context() -> Any:
    """Return the eager context.

    Raises:
        Unavailable: It does not exist, is not initialised, or is the parent's of a forked child.
    """
    context = tensorflow_context()
    if context is None or is_inherited(context) or not getattr(context, "_initialized", False):
        raise Unavailable("TensorFlow uses no device")
    return context


def _gpus() -> dict[int, int]:
    """Return the CUDA ordinal of each GPU, by TensorFlow's index.

    TensorFlow numbers the visible GPUs in the order of their ordinals, and the pieces of a GPU that the
    user split (`Context._compute_device_options`). A split GPU is left out: the peaks of its pieces do
    not add up.
    """
    try:
        context = _context()
        visible = context.get_visible_devices("GPU")
        pluggable = context._pluggable_devices or ()
        found: dict[int, int] = {}
        index = 0
        for physical in context.list_physical_devices("GPU"):
            if physical in visible and physical not in pluggable:
                pieces = len(context.get_logical_device_configuration(physical) or ()) or 1
                if pieces == 1:
                    found[index] = int(physical.name.rpartition(":")[2])
                index += pieces
        alike = index == len(context.list_logical_devices("GPU"))
    except Exception:  # whatever TensorFlow raises, its GPUs are unknown then
        return {}
    return found if alike else {}  # the numbers differ if GPUs were left out, or belong to other hosts


def _index(ordinal: int) -> int:
    """Return TensorFlow's index of a GPU.

    Raises:
        Unavailable: TensorFlow does not use it.
    """
    _context()
    for index, its in _gpus().items():
        if its == ordinal:
            return index
    raise Unavailable("TensorFlow does not use this device")


def _index_of(dev: Any) -> int:
    """Return the index in a device string of the user's; -1 for anything but a GPU."""
    match = _GPU.search(dev) if isinstance(dev, str) else None
    if match is None:
        return -1
    return 0 if match[1] == "*" else int(match[1])
