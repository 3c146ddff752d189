"""Growth where malloc keeps memory: in a process whose malloc gives nothing back."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.linux("its malloc says what it keeps")

BEGIN = """
import gc, json, sys
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
from ipygpulogger.owners import growth
growth.BUDGET_S = 10
shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}), ipython_dir=sys.argv[1])
from ipygpulogger import IPyGPULogger
il = IPyGPULogger(report="none").start()
"""
GROWTH = """
for source in (
    "first = bytearray(b'y') * (60 << 20)",  # so that 40 MB fit behind what else may come into its place
    "del first",
    "x = bytearray(b'x') * (40 << 20)",
    "z = 1",
    "y = bytearray(b'x') * (40 << 20)",
):
    shell.run_cell(source, store_history=True)
print(json.dumps([
    [record.source, record.gen.consumed_bytes >> 20, {one.name: one.size_bytes >> 20 for one in record.owners}]
    for record in il.history
]))
"""
COLLECTIONS = """
from ipygpulogger.runtime import collector
collector.cost_s = lambda: 0.2
gc.set_threshold(700, 10, 10**6)  # Python by itself runs no full collection
full, ran = lambda: gc.get_stats()[-1]["collections"], []
for source in (
    "import numpy as np; MB = 2**20",
    "hole = [bytearray(b'x') * MB for _ in range(100)]; pin = bytearray(b'x') * MB",
    "del hole",
    "y = np.ones(20 * MB, 'u1')",
    "y = np.ones(20 * MB, 'u1')",
    "z = [y, np.ones(20 * MB, 'u1')]",
    "z.pop(); None",
    "del y, z",
):
    before = full()
    shell.run_cell(source, store_history=True)
    ran.append(full() - before)
print(json.dumps(ran))
"""


def run(program, folder):
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
    command = [sys.executable, "-c", BEGIN + program, str(folder)]
    return json.loads(subprocess.check_output(command, text=True, env=env).splitlines()[-1])


def test_memory_that_malloc_keeps_waits_for_no_collection(tmp_path):
    """What a cell drops into the heap is free, though the process has not shrunk."""
    assert run(COLLECTIONS, tmp_path) == [0] * 8


def test_what_landed_in_memory_that_malloc_kept_is_no_growth_of_a_later_cell(tmp_path):
    """40 MB in kept memory are consumed by no cell, and not by the next that consumes 40 MB of its own."""
    found = run(GROWTH, tmp_path)
    cells = {source: (consumed_mb, grew) for source, consumed_mb, grew in found}
    assert cells["x = bytearray(b'x') * (40 << 20)"][0] in (0, 1)  # malloc had kept the first 60 MB
    assert cells["y = bytearray(b'x') * (40 << 20)"][1] == {"y": 40}
