"""The statistics of torch's allocators, read and reset by us while the user's own readings stay true.

torch's Python functions look the names below up in `torch._C` at each call. So wrappers there reach
`torch.cuda` and `torch.accelerator` alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...runtime.errors import first_line
from ..contract import Unavailable
from ..frameworks.user_counters import UserCounters
from .state import TORCH_ERRORS, accelerator, caches, module

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..contract import Framework
    from ..frameworks.user_counters import Stats

# By type of accelerator, "" for any other. Which of them exist depends on the build.
_READS = {"cuda": "_cuda_memoryStats", "xpu": "_xpu_memoryStats", "": "_accelerator_getDeviceStats"}
_RESETS = {
    "cuda": "_cuda_resetPeakMemoryStats",
    "xpu": "_xpu_resetPeakMemoryStats",
    "": "_accelerator_resetPeakStats",
    "host": "_cuda_resetPeakHostMemoryStats",  # of no device
}


class TorchStatistics:
    """The statistics of every device's allocator.

    Attributes:
        switches: How often the user switched the caching allocator on or off, if that was seen.
        wrappers: Around torch's functions.
    """

    def __init__(self, framework: Framework) -> None:
        self.switches = 0
        users = UserCounters(
            framework, lambda: getattr(module(), "_C", None), self.read, lambda device=None: device
        )
        self._users, self.wrappers = users, users.wrappers
        self._makers: dict[str, Callable[[Any], Callable[..., Any]]] = {
            **dict.fromkeys(_READS.values(), users.read_wrapper),
            **dict.fromkeys(_RESETS.values(), users.reset_wrapper),
            "_cuda_cudaCachingAllocator_enable": self._switch_wrapper,
        }

    def read(self, index: int) -> Stats:
        """Return a device's statistics as torch has them, without the peaks that the wrappers restore.

        A pluggable allocator, no caching, or a device in an error state make them unavailable.
        """
        backend = accelerator()
        if backend is None:
            raise Unavailable("torch uses no device")
        try:
            if backend == "cuda" and not caches():
                raise Unavailable("torch's caching allocator is switched off, and so torch counts no memory")
            stats: Stats = self.wrappers.own(_READS.get(backend) or _READS[""])(index)
            stats["allocated_bytes"]["all"]["peak"], stats["allocation"]  # all we need is there
        except (*TORCH_ERRORS, KeyError) as error:
            raise Unavailable(f"torch gives no memory statistics: {first_line(error)}") from error
        return stats

    def reset(self, index: int, stats: Stats) -> None:
        """Reset a device's peaks, and keep for the user those of the statistics just before."""
        backend = accelerator()
        if backend is None:
            raise Unavailable("torch uses no device")
        self._users.remember(index, stats)
        try:
            self.wrappers.own(_RESETS.get(backend) or _RESETS[""])(index)
        except TORCH_ERRORS as error:
            raise Unavailable(f"torch does not reset its peaks: {first_line(error)}") from error

    def hold(self) -> bool:
        """Put the wrappers on, as far as torch is there; return whether torch was in use before."""
        late = not self.wrappers and accelerator() is not None
        self.wrappers.put_on(self._makers)
        return late

    def _switch_wrapper(self, original: Callable[[bool], None]) -> Callable[[bool], None]:
        def enable(value: bool) -> None:
            self.switches += 1
            original(value)

        return enable
