"""The field beside us: what other tools cost and what they see, in one run.

    python benchmarks/field.py                        every table, about a quarter of an hour
    python benchmarks/field.py --quick                a smoke run of a few minutes
    python benchmarks/field.py --only empty,busy      some of the tables
    python benchmarks/field.py --tools jumper,ours    some of the tools, beside the bare kernel
    python benchmarks/field.py --write                and write the results, the page "Compared" and the README's lines
    python benchmarks/field.py --publish              write the page and the lines from the results that are there

Makes a virtual environment for each tool, from the package index, in a folder that is kept (`--folder`). The package under
test is installed from the checkout that holds this file. A tool that cannot be installed or fails has a row that says so. Each
tool has a kernel of its own; all are alive at the same time and are asked in turns. Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from bench import TESTS
from field_tools import results
from field_tools.environments import GPU, Environments
from field_tools.tools import TOOLS, chosen

TABLES = ("empty", "busy", "transients", "sleeping", "loading", "objects", "cells", "gpu")
FAILED = "FIELD_FAILED"  # what the process that made the environments tells the one that measures


def arguments() -> argparse.Namespace:
    """What was asked for."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=cache / "ipygpulogger-field", help="of the environments"
    )
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--only", metavar="TABLES", help=f"of {', '.join(TABLES)}")
    parser.add_argument("--tools", help=f"of {', '.join(tool.key for tool in TOOLS)}, or ours")
    parser.add_argument("--write", action="store_true", help="write the results and the pages")
    parser.add_argument("--publish", action="store_true", help="write the pages only")
    asked = parser.parse_args()
    wanted = {key.strip() for key in asked.only.split(",")} if asked.only else set(TABLES)
    if unknown := wanted - set(TABLES):
        parser.error(f"unknown table {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    asked.tables = [key for key in TABLES if key in wanted]
    try:
        asked.chosen = chosen(asked.tools)
    except ValueError as error:
        parser.error(str(error))
    return asked


def make(asked: argparse.Namespace) -> None:
    """Make the environments, and go on in the interpreter of one that has what measuring needs."""
    folder = asked.folder.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    environments = Environments(folder)
    if "gpu" in asked.tables:
        sys.path.insert(0, str(TESTS))
        import simgpu

        if reason := simgpu.why_not():
            environments.failed[GPU] = reason
    environments.make({tool.environment for tool in asked.chosen}, gpu="gpu" in asked.tables)
    has_gpu = "gpu" in asked.tables and not {GPU, "torch"} & environments.failed.keys()
    python = environments.python(GPU if has_gpu else "base")
    told = {**os.environ, FAILED: json.dumps(environments.failed)}
    os.execve(python, (str(python), __file__, *sys.argv[1:]), told)


def measure(asked: argparse.Namespace) -> None:
    """Measure and print the tables."""
    from field_tools import cost, gpu, growth, peaks
    from field_tools.running import Setting

    makers = {
        "empty": cost.empty,
        "busy": cost.busy,
        "transients": peaks.transients,
        "sleeping": cost.sleeping,
        "loading": cost.loading,
        "objects": growth.objects,
        "cells": growth.cells,
        "gpu": gpu.gpu,
    }
    environments = Environments(asked.folder.expanduser().resolve())
    environments.failed = json.loads(os.environ[FAILED])
    about = environments.about() + (" A smoke run: few rounds." if asked.quick else "")
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(asked.chosen, environments, Path(folder), asked.quick)
        for key in asked.tables:
            began_s = time.perf_counter()
            lines = makers[key](setting).lines()
            print(*lines, sep="\n", end="\n\n", flush=True)
            print(f"{key}: {time.perf_counter() - began_s:.0f} s", file=sys.stderr)
            if asked.write:
                results.write(key, lines, TABLES, about)
    print(about)
    if asked.write:
        results.publish()


if __name__ == "__main__":
    if not Path("/proc/self/status").exists():
        sys.exit("needs Linux")
    asked = arguments()
    if asked.publish:
        results.publish()
    elif FAILED in os.environ:
        measure(asked)
    else:
        make(asked)
