"""TensorFlow: the eager context's counters of its allocator on every GPU, exact and resettable.

`tf.config.experimental.get_memory_info` tells what is in use and its peak, `reset_memory_stats` lets the
peak start again; both say "not the memory that TensorFlow has allocated on the GPU", so there is one
series. TensorFlow tells no count of allocations, hence no stamp: a scope during which another one opened
is sampled, every other exact.

Nothing here imports TensorFlow or initialises its context, from which on it holds the GPUs.

Our resets must not show in what the user reads. Both functions, and the older `get_memory_usage`, call
methods of the context, which Python looks up in its class at each call; so wrappers there reach every
caller, however they imported the functions (`_highest` keeps what they put back).
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

from ..records import device_id
from ..runtime.errors import first_line
from ..runtime.wrappers import Wrappers
from . import Device, DeviceCounter, Framework, Look, PeakClass, Reading, Unavailable, driver

if TYPE_CHECKING:
    from collections.abc import Callable

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
        """What is in use, and its peak."""
        reading = self._source.read(self.device.index)
        self._peak_bytes = reading.peak_bytes or 0
        return Look((reading,), ())

    def reset(self) -> None:
        """Reset the peak, keeping for the user what they would have read."""
        self._source.reset(self.device.index, self._peak_bytes)


class TensorFlow(Framework):
    """TensorFlow in this process, once the user has initialised its eager context."""

    name = "tensorflow"

    def __init__(self) -> None:
        self._counters: dict[int, TensorFlowCounter] = {}
        self._highest: dict[int, int] = {}  # by TensorFlow's index: what our resets made it forget
        self._wrappers = Wrappers(_context_class)
        self._leaving = False

    # -- what the engine asks ------------------------------------------------------------------

    def counters(self) -> list[TensorFlowCounter]:
        """The GPUs that the eager context has taken, by their CUDA ordinals."""
        for ordinal in _gpus().values():
            if ordinal not in self._counters:
                facts = driver.facts(ordinal)
                device = Device("cuda", ordinal, device_id("cuda", ordinal), facts.uuid, facts.total_bytes)
                counter = TensorFlowCounter(self, device)
                try:
                    counter.look()
                except Unavailable:
                    continue  # an allocator without statistics
                self._counters[ordinal] = counter
        return [self._counters[ordinal] for ordinal in sorted(self._counters)]

    def current_index(self) -> int | None:
        """TensorFlow's first GPU, where it places what it is not told to place elsewhere."""
        ordinal = _gpus().get(0)
        return ordinal if ordinal in self._counters else None

    def after_fork_in_child(self) -> None:
        """Another thread may have held the lock."""
        self._wrappers.after_fork_in_child()

    def hold(self) -> bool:
        """Put the wrappers on, as far as TensorFlow is there."""
        late = not self._wrappers and bool(getattr(_known_context(), "_initialized", False))
        with self._wrappers.lock:
            self._leaving = False
            self._wrappers.put_on({_READ: self._read_wrapper, _RESET: self._reset_wrapper})
        return late

    def release(self) -> None:
        """Take the wrappers off, unless that would make TensorFlow forget a peak the user may ask for.

        Then they go at the user's next reset of the peaks, or once the counters have caught up.
        """
        with self._wrappers.lock:
            self._leaving = True
            self._leave()

    # -- what the counters ask -----------------------------------------------------------------

    def read(self, ordinal: int) -> Reading:
        """The allocator's own numbers, without what the wrappers put back.

        Raises:
            Unavailable: TensorFlow does not tell.
        """
        try:
            info: Info = self._call(_READ, ordinal)
            return Reading(int(info["current"]), int(info["peak"]))
        except (KeyError, TypeError, ValueError) as error:
            raise Unavailable("TensorFlow's memory statistics are not what they were") from error

    def reset(self, ordinal: int, peak_bytes: int) -> None:
        """Reset the allocator's peak, keeping for the user what they would have read.

        Args:
            ordinal: The GPU.
            peak_bytes: The peak as it stands.

        Raises:
            Unavailable: TensorFlow does not do it.
        """
        index = _index(ordinal)
        self._highest[index] = max(self._highest.get(index, 0), peak_bytes)
        self._call(_RESET, ordinal)

    def _call(self, name: str, ordinal: int) -> Any:
        context, index = _context(), _index(ordinal)
        try:
            return self._wrappers.own(name)(context, f"GPU:{index}")
        except Exception as error:
            raise Unavailable(f"TensorFlow does not tell its memory: {first_line(error)}") from error

    # -- the user's counters stay the user's ----------------------------------------------------

    def _leave(self) -> None:
        with self._wrappers.lock:
            if not self._leaving:  # somebody measures again
                return
            gpus = _gpus()
            for index, highest_bytes in tuple(self._highest.items()):
                try:
                    if index in gpus and highest_bytes > (self.read(gpus[index]).peak_bytes or 0):
                        return
                except Unavailable:
                    pass
            self._highest.clear()
            self._wrappers.take_off()

    def _read_wrapper(self, original: Callable[[Any, str], Info]) -> Callable[[Any, str], Info]:
        def get_memory_info(context: Any, dev: str) -> Info:
            info = original(context, dev)
            highest_bytes = self._highest.get(_index_of(dev), 0)
            if highest_bytes > info.get("peak", highest_bytes):
                info["peak"] = highest_bytes
            elif self._leaving:
                self._leave()
            return info

        return get_memory_info

    def _reset_wrapper(self, original: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
        def reset_memory_stats(context: Any, dev: str) -> None:
            index = _index_of(dev)

            def reset() -> None:
                original(context, dev)
                self._highest.pop(index, None)

            ordinal = _gpus().get(index)
            if ordinal is None or self.on_user_reset is None:
                reset()
            else:
                self.on_user_reset(ordinal, reset)
            if self._leaving:
                self._leave()

        return reset_memory_stats


# -- TensorFlow, looked at without waking it ---------------------------------------------------------

# The context that a fork left here: its threads stayed in the parent, and with them locks that they may
# hold.
_inherited: list[Any] = []


def _context_class() -> Any:
    return getattr(sys.modules.get("tensorflow.python.eager.context"), "Context", None)


def _context() -> Any:
    """The eager context.

    Raises:
        Unavailable: It does not exist, is not initialised, or belongs to a forked child's parent.
    """
    context = _known_context()
    inherited = any(context is one for one in _inherited)
    if context is None or inherited or not getattr(context, "_initialized", False):
        raise Unavailable("TensorFlow uses no device")
    return context


def _known_context() -> Any:
    # Not TensorFlow's own `context()`, which makes one.
    return getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)


def _gpus() -> dict[int, int]:
    """TensorFlow's index of each GPU, and its CUDA ordinal.

    TensorFlow numbers the visible GPUs in the ordinals' order, and each piece of one that the user split
    (`Context._compute_device_options`). The pieces of a split GPU are left out: peaks do not add up.
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
    except Exception:  # whatever TensorFlow raises: then nothing is known of its GPUs
        return {}
    return found if alike else {}  # not so where GPUs were left out, or belong to other hosts


def _index(ordinal: int) -> int:
    for index, its in _gpus().items():
        if its == ordinal:
            return index
    raise Unavailable("TensorFlow does not use this device")


def _index_of(dev: Any) -> int:
    """The index in a device string of the user's; -1 for anything but a GPU."""
    match = _GPU.search(dev) if isinstance(dev, str) else None
    if match is None:
        return -1
    return 0 if match[1] == "*" else int(match[1])


def _after_fork_in_child() -> None:
    _inherited.append(_known_context())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
