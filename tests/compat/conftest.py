"""A shell for experiments and one experiment in it; the guards against memory that tracebacks hold."""

import gc

import pytest
from guards import FASTAIS, GUARDS, OURS
from memory import Block, blip

from ipygpulogger.compat import experiment as experiment_module
from ipygpulogger.experiments import IPyExperimentsCPU


@pytest.fixture
def shell(shell):
    """The shell, knowing these names; no experiment is left in it."""
    shell.user_ns.update(X=IPyExperimentsCPU, Block=Block, blip=blip)
    yield shell
    for experiment in list(experiment_module._unfinished):
        experiment._abandon()
    shell.user_ns.clear()
    shell.init_user_ns()
    gc.collect()


@pytest.fixture
def exp(shell, capsys):
    """An experiment without a cell logger, begun outside any cell; its banner is read already."""
    exp = IPyExperimentsCPU(cl_enable=False)
    capsys.readouterr()
    return exp


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    monkeypatch.delenv(OURS, raising=False)
    monkeypatch.delenv(FASTAIS, raising=False)


@pytest.fixture(params=GUARDS)
def guard(request, shell, monkeypatch):
    """Each of the four, such that any exception is a reason."""
    monkeypatch.setenv(OURS, "1")
    return GUARDS[request.param]
