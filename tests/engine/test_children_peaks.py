"""Random programs of real children, started in every way, under scopes that nest and overlap: every peak is true."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK) or not Path("/proc/self/smaps_rollup").exists(),
    reason="this kernel has no high-water mark of children",
)
PROGRAM = Path(__file__).with_name("child_programs.py")


@pytest.mark.parametrize("seed", [3, 4])
def test_any_program_of_children(seed):
    """What each child had at its worst moment, to 2 MB, and bounds of their sum that contain the truth."""
    done = subprocess.run(
        [sys.executable, PROGRAM, str(seed), "50"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stderr
