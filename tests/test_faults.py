"""Whatever fails below the package, at whatever moment: the user's cell is unharmed, and no figure is a silent 0.

Here one error for each call and moment, always the same; all: ``nox -s faults``, or FAULTS=all.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WHICH = os.environ.get("FAULTS", "0")
PLAIN = ["plain,gpu,live,lines", "children,ram,blocks" + ",quiet,commands" * (WHICH != "0")]
TORCH = [pytest.param("torch,torch live,torch peak", marks=pytest.mark.torch)]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the calls are those on Linux")
@pytest.mark.parametrize("scenarios", [*PLAIN, *TORCH])
def test_no_fault_harms_a_cell(kernel_env, scenarios):
    """Each call that leaves the process fails before, within or after a cell, at start or at stop."""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here.parent), str(here)])
    command = [sys.executable, here / "fault_matrix.py", scenarios, WHICH]
    env = {**kernel_env, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    kept = subprocess.PIPE if WHICH == "0" else None  # an hour's findings are shown as they come
    done = subprocess.run(command, env=env, stdout=kept, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, (done.stdout or "see above")[-6000:]
