"""What a quiet cell costs, in counts that no clock changes: none may become dearer unseen.

Each ceiling is a tenth above what a cell takes on the dearest of the Pythons that are tested: where pages come and
go, the mark of the process's memory must be reset and read more often. The system calls are counted in
tests/sources/test_system_calls.py; benchmarks/way_of_a_cell.py shows where the calls go.
"""

import gc
import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from way import way_of_a_cell

import ipygpulogger
from ipygpulogger import IPyGPULogger
from ipygpulogger.engine import machine as machines
from ipygpulogger.engine import scope
from ipygpulogger.engine.machine import Machine
from ipygpulogger.owners import growth, roots
from ipygpulogger.sources.nvidia.nvml import Nvml
from ipygpulogger.sources.system.process import HighWaterMark

PACKAGE = Path(ipygpulogger.__file__).parent
LIGHT = {"gc_collect": False, "clear_cache": False, "preload": False}
OPTIONS = {
    "light": {**LIGHT, "report": "none"},
    "light, rich": {**LIGHT, "report": "rich"},
    "defaults": {},
}
WARM_UP = 5  # cells: what is loaded or made once is no part of what each cell costs
CELLS = 50  # over which what stays is counted
TRIES = 40  # cells of which the shortest way counts: beside a busy neighbour some must reset the mark again


class Cost(NamedTuple):
    """What one cell takes."""

    functions: int  # Python functions of this package that are called
    files: int  # of it that are entered
    c_calls: int  # functions written in C that are called
    blocks: int  # of Python's memory that stay after it: its record, and the report, which IPython keeps


# By the machine, then by the logger's options.
CEILINGS = {
    "no device": {
        "light": Cost(270, 33, 260, 19),
        "light, rich": Cost(400, 45, 420, 39),
        "defaults": Cost(360, 40, 320, 24),
    },
    "two unused devices": {
        "light": Cost(330, 36, 340, 17),
        "light, rich": Cost(480, 48, 510, 38),
        "defaults": Cost(440, 42, 400, 24),
    },
    "torch on two devices": {
        "light": Cost(780, 40, 770, 54),
        "light, rich": Cost(1100, 52, 1180, 94),
        "defaults": Cost(1030, 48, 980, 60),
    },
}


def cost_of_a_cell(shell, options):
    """What a quiet cell takes under a logger with these options."""
    bare_blocks = blocks_of_a_cell(shell)
    il = IPyGPULogger(**options).start()
    try:
        for _ in range(WARM_UP):
            shell.run_cell("pass", store_history=True)
        way = way_of_a_cell(shell, PACKAGE, cells=TRIES)
        return Cost(
            sum(way.calls.values()), len(way.calls), way.c_calls, blocks_of_a_cell(shell) - bare_blocks
        )
    finally:
        il.stop()


def blocks_of_a_cell(shell):
    """What stays after a cell, counted over many."""
    shell.run_cell("pass", store_history=True)
    before = blocks_that_stay()
    for _ in range(CELLS):
        shell.run_cell("pass", store_history=True)
    return round((blocks_that_stay() - before) / CELLS)


def blocks_that_stay():
    """Without garbage, of which there is more or less by when Python last collected it."""
    gc.collect()
    return sys.getallocatedblocks()


def check(cost, ceiling):
    """No count above its ceiling; the message says what to do."""
    dearer = [
        f"a quiet cell takes {taken} {what.replace('c_', 'C ')}, and {allowed} are allowed"
        for what, taken, allowed in zip(Cost._fields, cost, ceiling, strict=True)
        if taken > allowed
    ]
    assert not dearer, (
        f"A cell became dearer: {'; '.join(dearer)}. `python benchmarks/way_of_a_cell.py --files`, with `--beside`"
        " and a checkout from before your change, shows where. Make it cheaper, or raise the ceiling here and say"
        " in the commit what the cell gets for it."
    )


@pytest.fixture
def measured_here():
    """The counts are those of Linux, whose high-water mark can be reset."""
    if not isinstance(machines.machine().process.counter, HighWaterMark):
        # Elsewhere a sampler reads memory instead, whose calls depend on the clock: no count to pin.
        pytest.skip("the counts are those of Linux, whose high-water mark can be reset")


@pytest.fixture
def without_devices(fresh_machine, monkeypatch):
    """A machine without a driver and without frameworks, whatever other tests imported."""
    nvml = Nvml()
    nvml._pid = os.getpid()  # as if it had been opened, and found none
    use(monkeypatch, Machine(nvml=nvml, frameworks=()))


@pytest.fixture
def unused_devices(fresh_machine, gpu, monkeypatch):
    """A machine with two devices, which this process does not use."""
    use(monkeypatch, Machine(frameworks=()))
    monkeypatch.setattr(scope, "uses", lambda _: False)


def use(monkeypatch, machine):
    """Measure on this machine, without the child processes that other tests left."""
    monkeypatch.setattr(machine.process, "has_children", lambda: False)
    walked_to_its_end(monkeypatch)
    monkeypatch.setattr(machines, "_machine", machine)
    monkeypatch.setattr(machines, "_machine_pid", os.getpid())


def walked_to_its_end(monkeypatch):
    """No large block is known that modules of other tests hold, nor a name that there was no time for.

    Either makes later cells dearer.
    """
    monkeypatch.setattr(growth, "BUDGET_S", 60)
    monkeypatch.setattr(roots, "is_users_module", lambda _: False)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.usefixtures("without_devices", "measured_here")
def test_a_cell_without_devices(shell, options):
    """No driver, no framework: what is not used costs nothing."""
    check(cost_of_a_cell(shell, OPTIONS[options]), CEILINGS["no device"][options])


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.usefixtures("unused_devices", "measured_here")
def test_a_cell_beside_unused_devices(shell, options):
    """Two devices, of which the driver is asked as the cell begins, in case it is the first to use one."""
    check(cost_of_a_cell(shell, OPTIONS[options]), CEILINGS["two unused devices"][options])


@pytest.mark.torch
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.usefixtures("fresh_machine", "measured_here")
def test_a_cell_with_torch_on_two_devices(cuda, shell, options, monkeypatch):
    """torch imported, a context on both."""
    import torch

    walked_to_its_end(monkeypatch)
    for index in range(2):
        torch.ones(1024, device=f"cuda:{index}")  # the contexts stay
    check(cost_of_a_cell(shell, OPTIONS[options]), CEILINGS["torch on two devices"][options])
