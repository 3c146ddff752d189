"""What the panel costs: milliseconds that an open `%gpulog panel` adds to an empty cell, and what it sends.

Claim: at most 0.2 ms on an idle machine, which is one message of under a kilobyte. Cells with and without the
panel take turns in one real kernel, which measures itself around all of a cell's hooks.

    python benchmarks/panel_cost.py [ROUNDS]      needs anywidget and ipykernel; half a minute
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench import TESTS, about, print_table

sys.path.insert(0, str(TESTS))
from kernels import Kernel

CELLS = 6  # in a row, with the panel or without
SETUP = """
import time as _time
_ip = get_ipython(); _run = _ip.run_cell; _took = {True: [], False: []}; _panel = il._panel
def _timed(raw, *args, **how):
    began_s, began_cpu_s = _time.perf_counter(), _time.thread_time()
    result = _run(raw, *args, **how)
    _took[il._panel is not None].append((_time.perf_counter() - began_s, _time.thread_time() - began_cpu_s))
    return result
_ip.run_cell = _timed
def _turn(on):
    il._panel = il._live.panel = _panel if on else None
"""


def main() -> None:
    """Print one table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    sent: list[int] = []
    with tempfile.TemporaryDirectory() as folder, Kernel(env, Path(folder)) as kernel:
        for code in ("%load_ext ipygpulogger", "%gpulog panel", SETUP):
            kernel.run(code)
        for _ in range(rounds):
            for on in (True, False):
                kernel.run(f"_turn({on})")
                for _ in range(CELLS):
                    messages = [one for one in kernel.run("pass").messages if one["msg_type"] == "comm_msg"]
                    sent += [len(json.dumps(one["content"]["data"])) for one in messages]
        took = json.loads(kernel.run("import json; print(json.dumps([_took[True], _took[False]]))").stdout)
    rows = []
    for name, which in (("wall clock", 0), ("processor", 1)):
        shown, bare = ([one[which] * 1e3 for one in times[CELLS:]] for times in took)
        figures = median(bare), median(shown), median(shown) - median(bare), min(shown) - min(bare)
        rows.append((name, *(f"{figure:.3f}" for figure in figures)))
    said = f"{len(sent)} messages of {rounds * CELLS} cells with the panel, the longest {max(sent, default=0)} bytes"
    header = "ms", "without", "with the panel", "added", "added to the fastest"
    print_table("An empty cell in a real kernel", header, rows, said, about("ipykernel", "anywidget"))


if __name__ == "__main__":
    main()
