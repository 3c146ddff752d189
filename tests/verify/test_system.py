"""The system as an issue report tells it: right where it is known, said where it is not, nobody's name in it."""

import getpass
import platform
import socket
import sys
from pathlib import Path

import pytest
from limited import GB, Simulated, container

from ipygpulogger.sources.nvidia import nvml as nvidia
from ipygpulogger.verify import system

LINUX, WSL = "Linux version 6.1.0", "Linux version 5.15.153.1-microsoft-standard-WSL2"
GVISOR = "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016"


def facts_of(root):
    return system.facts(str(root))


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (["proc/version"], "none found"),
        ([".dockerenv"], "docker"),
        (["run/.containerenv"], "podman"),
        ([".dockerenv", "var/run/secrets/kubernetes.io/serviceaccount/token"], "docker, kubernetes"),
    ],
)
def test_containers(tmp_path, files, told):
    """Each container engine is known by a file that it puts there, also by a folder."""
    simulated = Simulated(tmp_path)
    for file in files:
        simulated.write(file, "")
    assert facts_of(tmp_path)["container"] == told


@pytest.mark.parametrize(
    ("version", "wsl", "gvisor"), [(LINUX, "no", "no"), (WSL, "yes", "no"), (GVISOR, "no", "yes")]
)
def test_kernels(tmp_path, version, wsl, gvisor):
    """WSL and gVisor are told by what their kernels say of themselves."""
    Simulated(tmp_path).write("proc/version", version)
    found = facts_of(tmp_path)
    assert (found["WSL"], found["gVisor"]) == (wsl, gvisor)


def test_the_limit_of_a_cgroup(tmp_path):
    """The tightest limit of a group, not the machine's; none is told apart from unknown."""
    assert facts_of(tmp_path)["cgroup limit"] == "unknown (FileNotFoundError)"
    Simulated(tmp_path).process_of_v2()
    assert facts_of(tmp_path)["cgroup limit"] == "none found"
    container(tmp_path, limit=8 * GB)
    assert facts_of(tmp_path)["cgroup limit"] == "8.0 GB"


def test_devices_and_their_driver(gpu):
    """Versions of driver and CUDA, each device by name, each slice of MIG as one; no UUID of any."""
    found = system.facts()
    assert found["driver"] == "580.65.06, for CUDA 13.0"
    assert found["devices"].startswith("0: NVIDIA SimGPU 16GB, 16.0 GB, no MIG; 1: ")
    slices = gpu.dev[0].mig(2 << 30, 0, 4 << 30)
    assert system.facts()["devices"].count("MIG slice") == 2
    uuids = [one.uuid.decode() for one in (*gpu.dev[:2], *filter(None, slices))]
    assert not any(uuid in text for uuid in uuids for text in system.facts().values())
    gpu.fault("nvmlSystemGet*", 3)
    assert system.facts()["driver"] == "unknown, for CUDA unknown"


def test_it_tells_whose_it_is_to_nobody():
    """Neither host, user nor home; and it imports no framework."""
    before = set(sys.modules)
    told = "\n".join(system.facts().values())
    for name in (socket.gethostname(), platform.node(), str(Path.home()), str(Path.cwd())):
        assert len(name) < 3 or name not in told
    assert f"/{getpass.getuser()}" not in told
    assert not {"torch", "jax", "cupy", "tensorflow", "rmm"} & (set(sys.modules) - before)


def test_what_fails_is_unknown(monkeypatch, tmp_path):
    """Whatever fails, each fact is there, none is empty, and nothing is raised."""

    def broken(*_):
        raise RuntimeError("\x1b[2J")

    names = system.facts().keys()
    for module, name in [
        (platform, "system"), (platform, "python_implementation"),
        (system, "distributions"), (nvidia.Nvml, "devices"),
    ]:  # fmt: skip
        monkeypatch.setattr(module, name, broken)
    found = facts_of(tmp_path)
    assert found.keys() == names
    assert all(text.startswith(("unknown", "none found")) for text in found.values()), found
