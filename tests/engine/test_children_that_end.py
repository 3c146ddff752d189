"""Real children, started in every way: what each had, and all of them, is true, whether they live or end."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.linux("children are not listed there"),
    pytest.mark.skipif(
        not os.access("/proc/self/clear_refs", os.W_OK) or not Path("/proc/self/smaps_rollup").exists(),
        reason="this kernel has no high-water mark of children",
    ),
]
PROGRAM = runpy.run_path(str(Path(__file__).with_name("children_that_end.py")))


def run(program, *words, env=None):
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", Path(__file__).with_name(program), *words],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def reads(folder, env=os.environ):
    return {**env, "CHILDREN_WERE_READ": str(folder / "reads")}


@pytest.mark.parametrize("case", PROGRAM["CASES"])
def test_children_that_end(case, tmp_path):
    """The truth lies within 2 MB of what is said to be exact, or in the bounds; the lower one is 90 % of it."""
    run("children_that_end.py", case, env=reads(tmp_path))


@pytest.mark.torch
@pytest.mark.parametrize("case", PROGRAM["OF_TORCH"])
def test_workers_of_a_dataloader_that_end(case, tmp_path, kernel_env):
    """The commonest training there is: two workers that begin and end with each epoch."""
    run("children_that_end.py", case, env=reads(tmp_path, kernel_env))


@pytest.mark.parametrize("seed", ["3", "4"])
def test_any_program_of_children(seed):
    """Random steps of living children: each at its worst moment, to 2 MB, and bounds of their sum with the truth."""
    run("child_programs.py", seed, "50")
