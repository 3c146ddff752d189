"""Every fault below the engine makes `doctor --verify` fail, and the figure that it makes wrong is named."""

import gc
from operator import attrgetter

import pytest
from verify import faults

from ipygpulogger.engine import sampler
from ipygpulogger.verify import device, ram
from ipygpulogger.verify.check import Figure


def figures(checks, name):
    """What one check finds, by where, case and what; and what of it is wrong."""
    (check,) = (one for one in checks if one.name == name)
    found = [one for one in check.run() if isinstance(one, Figure)]
    return {(one.where, one.case, one.what): one for one in found}, [one for one in found if one.is_wrong]


def notices(fault, checks, patch):
    with patch.context() as injected:
        fault.inject(injected)
        found, wrong = figures(checks, fault.check)
    assert found[fault.where, fault.case, fault.what] in wrong, wrong


@pytest.fixture
def fresh(monkeypatch, fresh_machine):
    """Nothing is known from earlier tests; what no sampler reports is waited for no longer than needed."""
    monkeypatch.setattr(device, "SEEN_WITHIN_S", 0.3)
    yield
    gc.enable()


@pytest.mark.parametrize("fault", faults.RAM, ids=attrgetter("name"))
def test_ram(fault, fresh, monkeypatch):
    """Faults of the kernel's figures, of children's, of the clock; no sample makes up for them."""
    monkeypatch.setattr(sampler.Sampler, "start", lambda *_: True)
    notices(fault, ram.checks(), monkeypatch)


@pytest.mark.parametrize("check", sorted({fault.check for fault in faults.RAM}))
@pytest.mark.parametrize("rises_only", [False, True])
def test_ram_without_a_fault(check, rises_only, fresh, monkeypatch):
    """The same checks pass, also where a peak cannot be reset and is a bound."""
    if rises_only:
        faults.RISES_ONLY(monkeypatch)
    found, wrong = figures(ram.checks(), check)
    assert found and not wrong


@pytest.fixture
def two_devices(cuda, fresh):
    """Two devices that can be told apart."""
    import torch

    cuda.dev[1].base_used = 3 << 30
    yield
    torch.cuda.memory.caching_allocator_enable(True)


@pytest.mark.torch
@pytest.mark.parametrize("fault", faults.DEVICES, ids=attrgetter("name"))
def test_devices(fault, two_devices, monkeypatch):
    """Faults of torch's counters, and of the driver's."""
    notices(fault, device.checks(), monkeypatch)


@pytest.mark.torch
@pytest.mark.parametrize("check", sorted({fault.check for fault in faults.DEVICES}))
def test_devices_without_a_fault(check, two_devices):
    """The same checks pass."""
    found, wrong = figures(device.checks(), check)
    assert found and not wrong
