"""What loading costs: time and resident memory, in a fresh interpreter that has IPython already.

Claim: in a kernel ``%load_ext ipygpulogger`` takes less than 100 ms and 6 MB, the driver's bindings
(pynvml) and psutil included, and imports no framework.

    python benchmarks/import_cost.py

Each row is a fresh interpreter with a shell of IPython's in it; the rows take turns. "In a kernel"
means that ``ipykernel`` is imported already, and with it the parts of the standard library that a bare
shell lacks. All bytecode is written beforehand. Resident memory needs Linux.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench import about, print_table, turns

ROUNDS = 25
LOAD_EXT = "shell.run_line_magic('load_ext', 'ipygpulogger')"
IN_KERNEL = "import ipykernel.kernelapp, ipykernel.ipkernel"
WAYS = {  # name: (what is there already, what is measured)
    "psutil": ("", "import psutil"),
    "pynvml": ("", "import pynvml"),
    "ipygpulogger": ("", "import ipygpulogger"),
    "%load_ext ipygpulogger": ("", LOAD_EXT),
    "psutil, in a kernel": (IN_KERNEL, "import psutil"),
    "ipygpulogger, in a kernel": (IN_KERNEL, "import ipygpulogger"),
    "%load_ext ipygpulogger, in a kernel": (IN_KERNEL, LOAD_EXT),
}
PROGRAM = """
import contextlib, io, json, sys, time
sys.path.insert(0, {here!r})
import bench
shell = bench.quiet_shell()
def resident():
    try:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * 4096
    except OSError:
        return 0
resident()
{first}
modules = set(sys.modules)
with contextlib.redirect_stdout(io.StringIO()):
    before = resident()
    began = time.perf_counter()
    {way}
    took = time.perf_counter() - began
    after = resident()
print(json.dumps([took, after - before, len(set(sys.modules) - modules)]))
"""


def load(first: str, way: str, bytecode: str) -> list[float]:
    program = PROGRAM.format(here=str(Path(__file__).parent), first=first, way=way)
    env = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
    return json.loads(ran.stdout)


def main() -> None:
    found: dict[str, list[list[float]]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as bytecode:
        for first, way in WAYS.values():
            load(first, way, bytecode)
        for name in turns(list(WAYS), ROUNDS):
            found[name].append(load(*WAYS[name], bytecode))
    rows = []
    for name, runs in found.items():
        took_s, grew_bytes, modules = zip(*runs, strict=True)
        peers = found["psutil, in a kernel" if name.endswith("in a kernel") else "psutil"]
        beside = median(mine / peer[0] for mine, peer in zip(took_s, peers, strict=True))
        rows.append(
            [
                name,
                f"{median(took_s) * 1000:.1f}",
                f"{min(took_s) * 1000:.1f}",
                f"{median(grew_bytes) / 2**20:.1f}",
                f"{median(modules):.0f}",
                f"{beside:.1f}",
            ]
        )
    print_table(
        f"Loading, IPython there already ({ROUNDS} fresh interpreters each)",
        ["", "median ms", "fastest ms", "resident MB", "modules", "times psutil"],
        rows,
        about("ipython", "ipykernel", "psutil", "nvidia-ml-py"),
    )


if __name__ == "__main__":
    main()
