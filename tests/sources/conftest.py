"""What the tests of several sources need."""

import pytest
from fake_frameworks import Fakes

from ipygpulogger.sources.nvidia.nvml import Nvml


@pytest.fixture
def fakes(monkeypatch):
    """Stand-ins of JAX, CuPy, TensorFlow and RMM."""
    return Fakes(monkeypatch)


@pytest.fixture
def nvml(gpu):
    """NVML on the simulated driver, closed afterwards."""
    source = Nvml()
    yield source
    source.close()
