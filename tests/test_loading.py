"""What loading costs, without a clock: nothing is imported before it is used, nor within a cell."""

import json
import subprocess
import sys

import pytest

import ipygpulogger
from ipygpulogger import cluster, records
from ipygpulogger.sources.system.ram_limit import RamLimits

# Of the package: the modules behind `%load_ext`, the rich report and the walk of names. Raise it knowingly.
MOST_OF_OURS = 61
# Of the standard library, in a kernel: what neither IPython nor ipykernel has imported.
FEW_OTHERS = {"mmap", "resource", "gc", "array", "IPython.core.magics.extension"}
NEVER = {
    *("pynvml", "psutil", "numpy", "torch", "pandas", "matplotlib", "rich", "nbformat", "nbclient"),
    *("difflib", "fractions", "subprocess", "tempfile", "textwrap", "unittest", "email", "http"),
}
UNUSED = {  # parts of the package that a user meets later, or never
    *("blocks.measure", "blocks.measure_lines", "blocks.watch_epochs"),
    *("notebook.cell_lines", "notebook.panel", "lines.tracing"),
    *("sources.torch", "sources.frameworks", "storage.log"),
    *("render.plot", "render.page", "render.summary", "render.owners"),
    "sources.system.child_process",
    *("owners.out_of_memory", "compat", "cli", "callbacks"),
    *("estimation", "records.estimate", "render.estimate"),
    *("records.explained", "analysis.ranking", "render.table", "owners.unreachable"),
}

PROGRAM = """
import contextlib, io, json, sys
FOREIGN = {"__mp_main__"}
def modules():
    return set(sys.modules) - FOREIGN
bare = modules()
import ipygpulogger
package = modules() - bare
import IPython.core.interactiveshell, ipykernel.kernelapp, ipykernel.ipkernel
from traitlets.config import Config
shell = IPython.core.interactiveshell.InteractiveShell.instance(
    config=Config(HistoryManager={"enabled": False}), ipython_dir=sys.argv[1]
)
shell.run_cell("1", store_history=True)
before = modules()
for heavy in ("psutil",):  # ipykernel has it; we do without
    sys.modules.pop(heavy, None)
out = io.StringIO()
with contextlib.redirect_stdout(out):
    shell.run_cell("%load_ext ipygpulogger", store_history=True)
    loaded = modules() - before
    said = out.getvalue()
    there = modules()
    for code in ("x = 1", "x", "1 / 0", "%%capture\\ny = 2", "big = bytearray(b'x') * (8 << 20)"):
        shell.run_cell(code, store_history=True)
    in_cells = modules() - there
il = shell.user_ns["il"]
print(json.dumps({
    "package": sorted(package), "loaded": sorted(loaded), "in_cells": sorted(in_cells), "said": said,
    "psutil": "psutil" in sys.modules,
    "first": [il.history[1].source, il.history[1].gen.consumed_bytes, il.history[1].between],
}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What a fresh interpreter with IPython and ipykernel imports for us, step by step."""
    kills = RamLimits().kills()
    if kills is not None and kills.processes:
        # The count of kills is this machine's, and no program can lower it; `test_ram_left` holds what is said then.
        pytest.skip("Linux killed a process of our cgroup: what says so is loaded, too")
    folder = str(tmp_path_factory.mktemp("ipython"))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def ours(names):
    return {name.partition(".")[2] for name in names if name.startswith("ipygpulogger")}


def test_the_package_alone_is_next_to_nothing(found):
    """`import ipygpulogger` imports one module of ours; the names come when they are asked for."""
    assert ours(found["package"]) == {""}
    assert not {*NEVER, "IPython"} & set(found["package"])


def test_loading_imports_few_modules(found):
    """A ceiling, so that no later change makes loading dearer unseen."""
    assert len(ours(found["loaded"])) <= MOST_OF_OURS


@pytest.mark.linux("elsewhere psutil reads the memory")
def test_loading_imports_nothing_that_is_not_used(found):
    """Neither parts of the package that no cell has used, nor libraries."""
    loaded = ours(found["loaded"] + found["in_cells"])
    assert not {
        name for name in loaded for unused in UNUSED if name == unused or name.startswith(f"{unused}.")
    }
    others = {name for name in found["loaded"] if not name.startswith("ipygpulogger")}
    assert not others & NEVER
    assert {name for name in others if not name.startswith(("ctypes", "_"))} <= FEW_OTHERS
    assert not found["psutil"]


@pytest.mark.linux("Windows' library is not looked for without them", "macos")
def test_without_a_driver_its_bindings_stay_away(found):
    """And the user is told that there is none all the same."""
    if "No GPU here (no NVIDIA driver): RAM only." in found["said"]:
        assert "pynvml" not in found["loaded"]
    else:
        assert "pynvml" in found["loaded"]


def test_no_cell_waits_for_an_import(found):
    """What the hooks and the reports need is there when the extension is, but for the first walk of names."""
    late = ours(found["in_cells"])
    assert {name.partition(".")[0] for name in late} == {"owners"}


def test_the_first_cell_has_nothing_of_ours(found):
    """Neither in what it consumed nor in what is told of the time before it."""
    source, consumed_bytes, between = found["first"]
    assert source == "x = 1"
    assert abs(consumed_bytes) < 300_000
    assert between == []


def test_every_public_name_is_offered_before_it_is_used():
    """By completion, by a star, and as itself; a name that is not public is refused as by any module."""
    for module in (ipygpulogger, cluster, records):
        assert set(module.__all__) <= set(dir(module))
    names = {}
    exec("from ipygpulogger import *", names)
    assert set(ipygpulogger.__all__) <= set(names)
    assert names["CellRecord"] is ipygpulogger.CellRecord
    program = "import ipygpulogger as p; print(all(n in dir(p) for n in p.__all__), 'History' in vars(p))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).split() == ["True", "False"]
