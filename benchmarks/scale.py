"""Cells of a large notebook: what they cost more than the same cells of an empty one.

Claim: no cell costs over 5 ms more because the notebook holds 5,000 variables, a dict of a million arrays, 200
child processes or 60,000 mappings. So it is for a cell that does nothing, one that binds a name, one that
consumes 20 MB, and one that releases them.

    python benchmarks/scale.py                        every notebook
    python benchmarks/scale.py variables children     some of them

The times are CPU time of the thread that runs the cells, system calls included: nothing here waits, and a busy
machine does not change them as much. Each notebook is filled and emptied by cells of its own, round by round, in one process. The column "more" is
the median over rounds of what our part of the cell (the cell with the logger, less the same cell bare) costs
more in the filled notebook than in the empty one of the same round.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench import about, print_table, quiet_shell, run_sections

WARM_UP, CELLS, ROUNDS = 2, 5, 5
_M_MMAP_THRESHOLD = -3  # of mallopt(3)
OPTIONS: dict[str, Any] = {"gc_collect": False, "report": "text"}
TAKE, DROP = "taken = bytearray(b'x') * (20 << 20)", "del taken"
STEPS = {"pass": "pass", "x = 1": "x = 1", "consumes 20 MB": TAKE, "releases them": DROP}


class Notebook(NamedTuple):
    """What a notebook holds: the cell that fills it, and the one that empties it."""

    title: str
    fill: str
    empty: str = "del held"


NOTEBOOKS = {
    "variables": Notebook(
        "5,000 variables",
        "kinds = int, str, lambda i: [i], lambda i: {i: i}, bytearray, np.empty, lambda _: np.ones(400), hash\n"
        "for i in range(5000):\n"
        "    globals()[f'v{i}'] = kinds[i % 8](i % 100)",
        "for i in range(5000):\n    del globals()[f'v{i}']",
    ),
    "arrays": Notebook("A dict of a million arrays", "held = {i: np.empty(16) for i in range(1_000_000)}"),
    "half": Notebook(
        "A dict of a million arrays, half of which were deleted",
        "held = {i: np.empty(64) for i in range(1_000_000)}\nfor i in range(0, 1_000_000, 2): del held[i]",
    ),
    "children": Notebook(
        "200 child processes, programs",
        "import subprocess\nheld = [subprocess.Popen(['sleep', '1000']) for _ in range(200)]",
        "for one in held: one.kill()\nfor one in held: one.wait()\ndel held, one",
    ),
    "forks": Notebook(
        "200 child processes, forked",
        "import multiprocessing as mp, time\n"
        "held = [mp.get_context('fork').Process(target=time.sleep, args=(1000,)) for _ in range(200)]\n"
        "for one in held: one.start()",
        "for one in held: one.kill()\nfor one in held: one.join()\ndel held, one",
    ),
    "mappings": Notebook(
        "60,000 mappings", "import mmap\nheld = [mmap.mmap(-1, 4096) for _ in range(60_000)]"
    ),
    "modules": Notebook(
        "500 objects as nn.Module has them",
        "class Layer:\n"
        "    def __init__(self, *parts):\n"
        "        self._parameters = {'weight': np.ones(300), 'bias': np.ones(20)}\n"
        "        self._buffers, self._modules = {}, dict(enumerate(parts))\n"
        "        self._hooks, self.training = {}, True\n"
        "held = Layer(*(Layer(*(Layer() for _ in range(9))) for _ in range(50)))",
    ),
    "numbers": Notebook("A list of 10 million numbers", "held = list(range(10_000_000))"),
    "open_arrays": Notebook("2,000 small arrays in a list", "held = [np.ones(500) for _ in range(2000)]"),
}


def _run(shell: Any, source: str) -> None:
    shell.run_cell(source, store_history=True)


def costs_s(shell: Any, cells: int) -> dict[str, list[float]]:
    """The seconds of each step, and of the cell after it, which may have to look again."""
    found: dict[str, list[float]] = {name: [] for name in STEPS}
    for i in range(WARM_UP + cells):
        for name, source in STEPS.items():
            began_s = time.thread_time()
            _run(shell, source)
            if i >= WARM_UP:
                found[name].append(time.thread_time() - began_s)
    return found


def notebook(name: str) -> None:
    from ipygpulogger import IPyGPULogger

    title, fill, empty = NOTEBOOKS[name]
    shell = quiet_shell(history=True)
    # Otherwise glibc keeps the 20 MB after the first time, and no cell consumes them again.
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)
    # By step, in each round: bare and empty, bare and filled, ours and empty, ours and filled.
    medians_s: dict[str, list[list[float]]] = {step: [] for step in STEPS}
    filling_s: list[float] = []
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        _run(shell, "import numpy as np")
        costs_s(shell, 5)
        for _ in range(ROUNDS):
            rows: dict[str, list[float]] = {step: [] for step in STEPS}
            for logged in (False, True):
                il = IPyGPULogger(**OPTIONS).start() if logged else None
                for filled in (False, True):
                    if filled:
                        began_s = time.thread_time()
                        _run(shell, fill)
                        if logged:
                            filling_s.append(time.thread_time() - began_s)
                    for step, spent_s in costs_s(shell, CELLS).items():
                        rows[step].append(median(spent_s))
                _run(shell, empty)
                if il is not None:
                    il.stop()
            for step, row in rows.items():
                medians_s[step].append(row)
    table = []
    for step, rounds in medians_s.items():
        columns = [median(column) for column in zip(*rounds, strict=True)]
        more = sorted(((row[3] - row[1]) - (row[2] - row[0])) * 1000 for row in rounds)
        figures = [f"{value * 1000:.2f}" for value in columns]
        table.append([step, *figures, f"{median(more):+.2f}", f"{more[0]:+.2f} to {more[-1]:+.2f}"])
    header = [
        "cell",
        "bare, empty ms",
        "bare, filled",
        "ours, empty",
        "ours, filled",
        "more",
        "of all rounds",
    ]
    told = f"The cell that fills it took {median(filling_s):.2f} s of CPU time."
    print_table(title, header, table, told, about("ipython", "numpy"))


if __name__ == "__main__":
    run_sections({name: lambda name=name: notebook(name) for name in NOTEBOOKS})
