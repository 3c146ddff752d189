"""`gather` in real jobs: torchrun with gloo, on the simulated GPU where torch has CUDA; ranks that are killed."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

RANKS = Path(__file__).with_name("ranks.py")
ROOT = Path(__file__).parents[2]
TRANSIENTS = [100, 200, 300]  # MB, by rank


@pytest.fixture
def env(kernel_env):
    """The environment of a rank on the simulated machine."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**kernel_env, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def right(row, device):
    """Whether a rank shows its transient within 2 MB, in general RAM and on its device."""
    rank, ram_mb, gpu_mb = row
    wanted = TRANSIENTS[rank]
    return abs(ram_mb - wanted) <= 2 and (not device or abs(gpu_mb - wanted) <= 2)


def told(command, env, folder):
    """What the ranks of a job printed, which ended well."""
    command = [sys.executable, *command]
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=env, timeout=100
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]


def test_torchrun(env, tmp_path):
    """Three ranks: exact figures in one list on rank 0, call by call; None elsewhere; errors in one sentence."""
    found = told(["-m", "torch.distributed.run", "--nproc-per-node", "3", RANKS, "torchrun"], env, tmp_path)
    names = ["transients", "again", "again", "one not measured", "another label", "TypeError", "RuntimeError"]
    assert [one["name"] for one in found] == names
    for one in found[:3]:
        assert [row[0] for row in one["rows"]] == [0, 1, 2]
        assert all(right(row, one["device"]) for row in one["rows"]), one
        assert (one["label"], one["missing"], one["pids"]) == ("work", [], 3)
        assert one["hosts"] == [socket.gethostname()]
    assert [row[0] for row in found[3]["rows"]] == [0, 2]
    assert (found[3]["label"], found[3]["missing"]) == ("work", [["rank 1", "not measured"]])
    assert (found[4]["label"], len(found[4]["rows"])) == ("named", 3)
    assert found[5]["error"] == "gather() takes what measure() returned, a Measurement or None, not int"
    assert found[6]["error"].startswith("gather() needs the process group of this job: call it between")


def test_ranks_that_are_killed(env, tmp_path):
    """One is missing after the time-out; without rank 0 and its store, the training goes on, with one warning."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    env |= {**where, "CUDA_VISIBLE_DEVICES": ""}  # CUDA does not survive a fork
    first, following, alone, ended = told([RANKS, "killed"], env, tmp_path)
    assert ended == {"killed": [signal.SIGKILL] * 2, "left": 0}
    assert [row[0] for row in first["rows"]] == [0, 2] == [row[0] for row in following["rows"]]
    assert all(right(row, device=False) for row in first["rows"]), first
    assert first["missing"] == following["missing"] == [["rank 1", "no answer within 1.5 s"]]
    assert first["time_s"] >= 1.5
    assert alone["answers"] == [None] * 3
    (sentence,) = alone["said"]
    assert sentence.startswith(
        "what rank 2 measured does not reach rank 0: the job's store cannot be reached"
    )
