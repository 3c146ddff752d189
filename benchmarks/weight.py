"""The weight of the package: its lines and files, the modules that are loaded, and what typical cells call.

The goal: 32,000 lines and 190 files, 60 modules loaded by `%load_ext`, 450 calls and 150 moves from one file to
another in a quiet cell. Reached: the lines, the files and the calls.

- lines, files: of Python, by subpackage; of the tests together;
- modules: those of the package that ``%load_ext ipygpulogger`` loads in a bare interpreter with IPython;
- calls, functions, files, moves: as in ``way_of_a_cell.py``, with the default options, of the cells below.

    python benchmarks/weight.py
    python benchmarks/weight.py --beside ../other     and of the package in another checkout

The cells that need torch run on the simulated GPU of the tests, with the CUDA build of torch, or not at all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from bench import TESTS, about, print_table, quiet_shell, start_gpu

sys.path.insert(0, str(TESTS))
from way import Way, way_of_a_cell

HERE = Path(__file__).resolve().parent.parent
CELLS = {
    "x = 1": "x = 1",
    "a 64 MB array": "array = bytearray(b'x') * (64 << 20)",
    "%gpulog vars": "%gpulog vars",
    "--peak": "%%gpulog --peak\nx = torch.ones(1 << 20, device='cuda') * 2",
    "estimate": "estimate(torch.nn.Linear(1024, 1024).cuda(), torch.ones(64, 1024, device='cuda'))",
}
WARM_UP = 3  # times that each cell runs before it is counted: what is loaded or made once is no part of it


def sizes(checkout: Path) -> tuple[Counter[str], Counter[str]]:
    """Return the lines and the files of each subpackage, and of the tests."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path in sorted([*checkout.glob("ipygpulogger/**/*.py"), *checkout.glob("tests/**/*.py")]):
        top, *inner = path.relative_to(checkout).parts[:-1]
        name = "tests" if top == "tests" else "/".join(inner) or "the package itself"
        lines[name] += len(path.read_text(encoding="utf-8").splitlines())
        files[name] += 1
    return lines, files


def show_sizes(checkouts: dict[str, Path]) -> None:
    """Print the table of lines and files."""
    found = {name: sizes(checkout) for name, checkout in checkouts.items()}
    names = sorted({part for lines, _ in found.values() for part in lines} - {"tests"})
    header = ["", *(f"{what}: {name}" for what in ("lines", "files") for name in checkouts)]
    rows = [[part, *(str(one[i][part]) for i in (0, 1) for one in found.values())] for part in names]
    sums = (str(sum(one[i].values()) - one[i]["tests"]) for i in (0, 1) for one in found.values())
    tests = (str(one[i]["tests"]) for i in (0, 1) for one in found.values())
    print_table("Lines and files", header, [*rows, ["**the package**", *sums], ["**its tests**", *tests]])


def count() -> None:
    """Count in this fresh interpreter, and print a line of JSON."""
    _, reason = start_gpu()
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        shell = quiet_shell()
        shell.run_cell("%load_ext ipygpulogger", store_history=True)
        modules = sum(name.partition(".")[0] == "ipygpulogger" for name in sys.modules)
        import ipygpulogger

        found = {}
        for name, cell in CELLS.items():
            if "torch" in cell and not reason:
                shell.run_cell("import torch; from ipygpulogger import estimate", store_history=True)
            elif "torch" in cell:
                continue
            for _ in range(WARM_UP):
                shell.run_cell(cell, store_history=True).raise_error()
            found[name] = counts(way_of_a_cell(shell, Path(ipygpulogger.__file__).parent, cell))
    print(json.dumps({"modules": modules, "cells": found, "reason": reason}))


def counts(way: Way) -> list[int]:
    """Return the calls, functions, files and moves of a cell."""
    return [sum(way.calls.values()), len(way.functions), len(way.calls), way.moves]


def show_counts(checkouts: dict[str, Path]) -> None:
    """Print how many modules are loaded, and what the cells call."""
    found = {}
    for name, checkout in checkouts.items():
        command = [sys.executable, __file__, "--count", "--package", str(checkout)]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        found[name] = json.loads(said.splitlines()[-1])
    rows = [["%load_ext: modules", name, str(one["modules"]), "", "", ""] for name, one in found.items()]
    for cell in CELLS:
        for name, one in found.items():
            if cell in one["cells"]:
                rows.append([cell, name, *map(str, one["cells"][cell])])
    reasons = {
        f"Without the cells that need torch: {one['reason']}." for one in found.values() if one["reason"]
    }
    header = ["", "", "calls", "functions", "files", "moves"]
    print_table("What cells call", header, rows, *reasons, about("ipython", "torch"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Weigh the package: lines, files, modules, calls.")
    parser.add_argument("--beside", metavar="FOLDER", type=Path, help="another checkout, to compare with")
    parser.add_argument("--package", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.package:
        sys.path.insert(0, str(given.package.resolve()))
    if given.count:
        count()
    else:
        both = {"before": given.beside, "now": HERE} if given.beside else {"now": HERE}
        show_sizes(both)
        show_counts(both)
