"""What loading costs: time, resident memory and modules in a fresh interpreter, and the first cells after it.

Claim: in a running kernel ``%load_ext ipygpulogger`` takes about 30 ms and 3 MB, and the first cell's hooks
few more than those of a later one. Where there is no NVIDIA driver its bindings (pynvml) are not imported,
and on Linux psutil is not.

    python benchmarks/import_cost.py
    python benchmarks/import_cost.py --package ../other    beside the package in another checkout

Each row is a fresh interpreter with a shell of IPython's in it; the rows take turns. "In a kernel"
means that ``ipykernel`` is imported already, and with it the parts of the standard library that a bare
shell lacks. All bytecode is written beforehand. Resident memory needs Linux. A machine that does other work
makes all of this slower: read the columns of ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench import about, print_table, turns

HERE = Path(__file__).resolve().parent
ROUNDS = 25
CELLS = 5
LOAD_EXT = "shell.run_line_magic('load_ext', 'ipygpulogger')"
LOADED = "%load_ext ipygpulogger, in a kernel"
IN_KERNEL = "import ipykernel.kernelapp, ipykernel.ipkernel"
WAYS = {  # name: (what is there already, what is measured)
    "psutil": ("", "import psutil"),
    "pynvml": ("", "import pynvml"),
    "import ipygpulogger": ("", "import ipygpulogger"),
    "%load_ext ipygpulogger": ("", LOAD_EXT),
    "psutil, in a kernel": (IN_KERNEL, "import psutil"),
    "import ipygpulogger, in a kernel": (IN_KERNEL, "import ipygpulogger"),
    LOADED: (IN_KERNEL, LOAD_EXT),
}
PROGRAM = """
import contextlib, io, json, sys, time
sys.path[:0] = [{package!r}, {here!r}]
import bench
shell = bench.quiet_shell()
def resident():
    try:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * 4096
    except OSError:
        return 0
def timed(code):
    began = time.perf_counter()
    shell.run_cell(code, store_history=True)
    return time.perf_counter() - began
resident()
{first}
for _ in range(3):
    bare_s = timed("x = 1")
modules = set(sys.modules)
with contextlib.redirect_stdout(io.StringIO()):
    before = resident()
    began = time.perf_counter()
    {way}
    took = time.perf_counter() - began
    after = resident()
    new = set(sys.modules) - modules
    ours = [name for name in new if name.partition(".")[0] == "ipygpulogger"]
    cells_s = [timed("x = 1") - bare_s for _ in range({cells})]
print(json.dumps([took, after - before, len(new), len(ours), cells_s]))
"""


def load(first: str, way: str, package: str, bytecode: str) -> list:
    program = PROGRAM.format(here=str(HERE), package=package, first=first, way=way, cells=CELLS)
    env = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
    return json.loads(ran.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--package", metavar="FOLDER", help="the checkout that holds another version of it")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"interpreters of each row ({ROUNDS})")
    options = parser.parse_args()
    ways = {name: (*way, str(HERE.parent)) for name, way in WAYS.items()}
    if options.package:
        other = str(Path(options.package).resolve())
        ways[f"{LOADED}, {options.package}"] = (*WAYS[LOADED], other)
    found: dict[str, list[list]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as bytecode:
        for way in ways.values():
            load(*way, bytecode)
        for name in turns(list(ways), options.rounds):
            found[name].append(load(*ways[name], bytecode))
    rows, cells = [], []
    for name, runs in found.items():
        took_s, grew_bytes, modules, ours, cells_s = zip(*runs, strict=True)
        peers = found["psutil, in a kernel" if "in a kernel" in name else "psutil"]
        beside = median(mine / peer[0] for mine, peer in zip(took_s, peers, strict=True))
        rows.append(
            [
                name,
                f"{median(took_s) * 1000:.1f}",
                f"{min(took_s) * 1000:.1f}",
                f"{median(grew_bytes) / 2**20:.1f}",
                f"{median(modules):.0f}",
                f"{median(ours):.0f}",
                f"{beside:.1f}",
            ]
        )
        if name.startswith("%"):
            cells.append([name, *(f"{median(nth) * 1000:.2f}" for nth in zip(*cells_s, strict=True))])
    versions = about("ipython", "ipykernel", "psutil", "nvidia-ml-py")
    print_table(
        f"Loading, IPython there already ({options.rounds} fresh interpreters each)",
        ["", "median ms", "fastest ms", "resident MB", "modules", "of ours", "times psutil"],
        rows,
        versions,
    )
    print_table(
        "The first cells after it: median ms that each takes longer than before",
        ["", "first", *(f"cell {n}" for n in range(2, CELLS + 1))],
        cells,
        "The report is the default one, which a shell without a kernel prints as text.",
    )


if __name__ == "__main__":
    main()
