"""TensorFlow: its allocator's bytes in use on every GPU, and their peak, which can be reset.

It does not count allocations, so the peak of a scope within which another scope opened is a lower bound.
Python looks methods of the context up at each call: wrappers in its class reach all public functions.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any, ClassVar

from ..contract import FrameworkByDevice, Observation, Reading, Unavailable, unavailable
from ..nvidia import driver
from . import NOT_OURS, ResettableCounter, ResettableFramework, Stats

# "GPU:1", "/gpu:1", "/job:localhost/replica:0/task:0/device:GPU:1"; the star matches one GPU or is an error.
_GPU = re.compile(r"(?:^|[:/])GPU:(\d+|\*)$", re.IGNORECASE)


class TensorFlowCounter(ResettableCounter):
    """The allocator of one GPU: bytes in use."""

    def observe(self) -> Observation:
        """Read what is in use, and its peak."""
        info = self._last = self._source.read(self.device.index)
        with unavailable("some of TensorFlow's memory statistics are missing now"):
            return Observation((Reading(int(info["current"]), int(info["peak"])),), ())


class TensorFlow(ResettableFramework, FrameworkByDevice):
    """TensorFlow in this process, once the user has initialised its eager context."""

    name = "tensorflow"
    READS: ClassVar[tuple[str, ...]] = ("get_memory_info",)
    RESETS: ClassVar[tuple[str, ...]] = ("reset_memory_stats",)

    def in_use(self) -> Iterable[int]:
        """Return the GPUs that the eager context has taken, by their CUDA ordinals."""
        return _gpus().values()

    def counter(self, device: int) -> TensorFlowCounter:
        """Return the counter of a GPU whose allocator has statistics."""
        counter = TensorFlowCounter(self, driver.device(device))
        counter.observe()
        return counter

    def _place(self) -> Any:
        return getattr(sys.modules.get("tensorflow.python.eager.context"), "Context", None)

    def _is_used(self) -> bool:
        return bool(getattr(_any_context(), "_initialized", False))

    def after_fork_in_child(self) -> None:
        """Leave the parent's context alone."""
        _inherited.append(_any_context())

    def read(self, index: int) -> Stats:
        """Return the allocator's own numbers, without the peaks that the wrappers restore."""
        info = self._ask("get_memory_info", index)
        return info if isinstance(info, dict) else {}

    def reset(self, index: int) -> None:
        """Reset the allocator's peak."""
        self._ask("reset_memory_stats", index)

    def _device_of(self, _context: Any, dev: Any) -> int:
        match = _GPU.search(dev) if isinstance(dev, str) else None
        if match is None:
            return NOT_OURS
        return _gpus().get(0 if match[1] == "*" else int(match[1]), NOT_OURS)

    def _ask(self, name: str, ordinal: int) -> Any:
        context, gpus = _context(), _gpus()
        with unavailable("TensorFlow's memory cannot be read"):
            (index,) = (index for index, its in gpus.items() if its == ordinal)
            return self.wrappers.own(name)(context, f"GPU:{index}")


_inherited: list[Any] = []  # a fork's parent's context: its threads are gone, its locks may be held for good


def _any_context() -> Any:
    """Return the eager context, initialised or not; None while there is none."""
    return getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)


def _context() -> Any:
    context = _any_context()
    if any(context is one for one in _inherited) or not getattr(context, "_initialized", False):
        raise Unavailable("TensorFlow uses no device")
    return context


def _gpus() -> dict[int, int]:
    """Return the CUDA ordinal of each GPU by TensorFlow's index; none where it split or left out some."""
    try:
        context = _context()
        visible, pluggable = context.get_visible_devices("GPU"), context._pluggable_devices or ()
        found = [
            int(gpu.name.rpartition(":")[2])
            for gpu in context.list_physical_devices("GPU")
            if gpu in visible and gpu not in pluggable
        ]
        alike = len(found) == len(context.list_logical_devices("GPU"))
    except Exception:  # whatever TensorFlow raises, its GPUs are unknown then
        return {}
    return dict(enumerate(found)) if alike else {}
