"""Cells in processes in which nothing ran before: their allocators keep nothing that a test could take for theirs.

One interpreter imports everything, and forks for each program, which takes a millisecond.
"""

import gc
import io
import json
import os
import subprocess
import sys
from typing import NamedTuple

import cyclic_programs
import numpy as np
from IPython.core.interactiveshell import InteractiveShell
from memory import MB
from traitlets.config import Config

from ipygpulogger import IPyGPULogger
from ipygpulogger.engine.machine import machine
from ipygpulogger.owners import growth, uncollected
from ipygpulogger.runtime import full_collection


class Program(NamedTuple):
    """Cells, of which the last drops what the others made; what full collections cost, and what walks may."""

    cells: tuple
    cost_s: float
    budget_s: float = 0.02


class Outcome(NamedTuple):
    """Of the last cell.

    Attributes:
        told_bytes: What it says may wait for the collector.
        ran: How many full collections ran because of it.
        given_back_bytes: How much resident memory a full collection gave back after it.
    """

    told_bytes: int
    ran: int
    given_back_bytes: int


def outcomes(programs, env):
    """Run each program in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__], input=json.dumps(programs), env=env, stdout=-1, text=True, check=True
    )
    return [Outcome(*json.loads(line)) for line in done.stdout.splitlines()]


def _run(program):
    growth.BUDGET_S, uncollected._FOLLOW_S = program.budget_s, 10
    full_collection.cost_s = lambda: program.cost_s
    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    shell.user_ns.update(Node=cyclic_programs.Node, gc=gc, io=io, np=np, MB=MB)
    il = IPyGPULogger(report="none").start()
    for source in ("pass", *program.cells):
        before = full_collection.count()
        shell.run_cell(source, store_history=True).raise_error()
        ran = full_collection.count() - before
    resident_bytes = machine().resident_bytes()
    gc.collect()
    given_back_bytes = resident_bytes - machine().resident_bytes()
    return Outcome(cyclic_programs.told_bytes(il.record), ran, given_back_bytes)


def _main():
    gc.freeze()  # the pages of what is there stay shared
    for program in json.load(sys.stdin):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            print(json.dumps(_run(Program(*program))), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit("a program failed")


if __name__ == "__main__":
    _main()
