"""Every fault below the engine makes `doctor --verify` fail, and the figure that it makes wrong is named."""

import gc
import json
from operator import attrgetter

import pytest
from ram import needs_high_water
from verify import faults

from ipygpulogger.cli import main
from ipygpulogger.engine import sampler
from ipygpulogger.verify import device, ram, system


@pytest.fixture
def doctor(monkeypatch, fresh_machine, capsys):
    """Have `doctor --verify --json` run one check: its exit status, and the figures by where, case and what."""
    monkeypatch.setattr(system, "facts", dict)
    of_ram, of_devices = ram.checks, device.checks

    def run(name, fault=None):
        checks = of_ram if name in ram._CASES else of_devices
        monkeypatch.setattr(ram, "checks", list)
        found = lambda: [check for check in checks() if check.name == name]  # noqa: E731 - after the fault
        monkeypatch.setattr(device, "checks", found)
        with monkeypatch.context() as injected:
            if fault:
                injected.setattr(device, "SEEN_WITHIN_S", 0.3)  # a sample that would never come
                fault(injected)
            status = main(["doctor", "--verify", "--json"])
        figures = json.loads(capsys.readouterr().out)["figures"]
        return status, {(one["where"], one["case"], one["what"]): one for one in figures}

    yield run
    gc.enable()


def notices(doctor, fault):
    status, figures = doctor(fault.check, fault.inject)
    assert figures[fault.where, fault.case, fault.what]["is_wrong"], [
        key for key, one in figures.items() if one["is_wrong"]
    ]
    assert status == 1


def passes(doctor, check):
    status, figures = doctor(check)
    assert figures
    wrong = [one for one in figures.values() if one["is_wrong"]]
    assert not wrong, [(one["what"], one["truth"], one["lo"], one["hi"]) for one in wrong]
    assert status == 0


@needs_high_water
@pytest.mark.parametrize("fault", faults.RAM, ids=attrgetter("name"))
def test_ram(fault, doctor, monkeypatch):
    """Faults of the kernel's figures, of children's, of the clock; no sample makes up for them."""
    monkeypatch.setattr(sampler.Sampler, "start", lambda *_: True)
    notices(doctor, fault)


@needs_high_water
@pytest.mark.parametrize("check", sorted({fault.check for fault in faults.RAM}))
@pytest.mark.parametrize("rises_only", [False, True])
def test_ram_without_a_fault(check, rises_only, doctor, monkeypatch):
    """The same checks pass, also where a peak cannot be reset and is a bound."""
    if rises_only:
        faults.RISES_ONLY(monkeypatch)
    passes(doctor, check)


@pytest.fixture
def two_devices(cuda):
    """Two devices that can be told apart."""
    import torch

    cuda.dev[1].base_used = 3 << 30
    yield
    torch.cuda.memory.caching_allocator_enable(True)


@pytest.mark.torch
@pytest.mark.parametrize("fault", faults.DEVICES, ids=attrgetter("name"))
def test_devices(fault, two_devices, doctor):
    """Faults of torch's counters, and of the driver's."""
    notices(doctor, fault)


@pytest.mark.torch
@pytest.mark.parametrize("check", sorted({fault.check for fault in faults.DEVICES}))
def test_devices_without_a_fault(check, two_devices, doctor):
    """The same checks pass."""
    passes(doctor, check)
