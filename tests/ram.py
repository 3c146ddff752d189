"""General RAM in tests: what this machine's kernel offers, and a machine that has nothing else."""

import psutil
import pytest
from memory import MB

from ipygpulogger.sources.nvidia.nvml import Nvml
from ipygpulogger.sources.system.process import HighWaterMark

GRAIN = 2 * MB  # the promise: within 2 MB

needs_high_water = pytest.mark.skipif(
    not HighWaterMark.probe(), reason="the kernel's peak cannot be reset here"
)


class NoNvml(Nvml):
    """A driver without devices, which is never opened."""

    def devices(self):
        return ()


NVML = NoNvml()


def current():
    """What this process has resident, as psutil tells."""
    return psutil.Process().memory_info().rss


def refuse(*_):
    """Stands in for a system call that is not permitted."""
    raise PermissionError(13, "Permission denied")
