"""What ``pytest --gpulog`` costs a test, beside pytest alone and beside pytest-memray.

Claim: under a millisecond a test with ``--gpulog``, and without it nothing that can be measured: the plugin then
imports two small modules. Each test does nothing, so that what is left is what pytest and the plugin do.

    python benchmarks/pytest_cost.py            1,000 tests, 5 rounds
    python benchmarks/pytest_cost.py 200 3      so many tests, so many rounds

Beside it stands pytest-memray, where it is installed. It counts the allocations of Python's allocator and of malloc;
we read the resident memory and the devices.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path
from statistics import mean

from bench import COMPARED, about, compare, print_table, turns

BARE, PLUGIN, OURS, MEMRAY = "pytest alone", "the plugin, not asked", "pytest --gpulog", "pytest --memray"


# In the tested folder: the seconds of the processor that each test takes, with all that pytest does for it.
CONFTEST = """
import json, time, pytest
spent_s = []
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    began_s = time.process_time()
    result = yield
    spent_s.append(time.process_time() - began_s)
    return result
def pytest_unconfigure(): open("spent.json", "w").write(json.dumps(spent_s))
"""


def spent_s(folder: Path, *options: str) -> list[float]:
    """Seconds of the processor that each test of a run takes, without the first, which loads what all use."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    return list(json.loads((folder / "spent.json").read_text())[1:])


def main() -> None:
    tests, rounds = map(int, sys.argv[1:] or (1000, 5))
    installed = any(one.name == "ipygpulogger" for one in entry_points(group="pytest11"))
    ours = [] if installed else ["-p", "ipygpulogger.pytest_plugin"]
    without = ["-p", "no:memray"]
    runs = {
        BARE: [*without, "-p", "no:ipygpulogger"],
        PLUGIN: [*without, *ours],
        OURS: [*without, *ours, "--gpulog"],
    }
    if importlib.util.find_spec("pytest_memray"):
        runs[MEMRAY] = ["--memray", "-p", "no:ipygpulogger"]
    costs_s: dict[str, list[list[float]]] = {name: [] for name in runs}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "test_it.py").write_text("".join(f"def test_{i}(): pass\n" for i in range(1 + tests)))
        for options in runs.values():
            spent_s(folder, *options)
        for name in turns(list(runs), rounds):
            costs_s[name].append(spent_s(folder, *runs[name]))
    print_table(
        f"A test that does nothing, one of {tests:,}, without the start of pytest",
        COMPARED,
        compare(costs_s, BARE, mean),
        "Seconds of the processor, which other work does not lengthen.",
        about("pytest", "pytest-memray"),
    )


if __name__ == "__main__":
    main()
