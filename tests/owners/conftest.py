"""The shells in which tests of owners run cells."""

import builtins
import gc

import pytest
from arrays import Array

from ipygpulogger import IPyGPULogger
from ipygpulogger.owners import garbage, growth
from ipygpulogger.owners.roots import drop_hidden_references


@pytest.fixture
def notebook(shell):
    """A shell whose cells know `Array`; it forgets everything afterwards."""
    shell.user_ns["Array"] = Array
    yield shell
    drop_hidden_references(shell)
    shell.reset(new_session=False)
    vars(builtins).pop("_", None)


@pytest.fixture
def patient(monkeypatch):
    """Each walk and each proof has the time it needs on a slow machine."""
    monkeypatch.setattr(
        growth, "BUDGET_S", 60
    )  # of which a seventh: the modules of all tests have 7,000 names
    monkeypatch.setattr(garbage, "_LOOK_S", 10)
    monkeypatch.setattr(garbage, "_PROOF_S", 10)


@pytest.fixture
def run(shell, patient, capsys):
    """Runs a cell under a logger and returns its record."""
    gc.collect()  # of other tests
    il = IPyGPULogger(report="none").start()

    def run(source):
        shell.run_cell(source, store_history=True)
        return il.record

    run.logger = il
    yield run
    il.stop()
    drop_hidden_references(shell)
    shell.user_ns.clear()
    gc.collect()
