"""The system as an issue report tells it: right where it is known, said where it is not, nobody's name in it."""

import getpass
import platform
import socket
import sys
from pathlib import Path

import pytest
from limited import Simulated

from ipygpulogger.engine.machine import machine
from ipygpulogger.sources.system.ram_limit import MemoryLimit
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


@pytest.mark.parametrize(("version", "name"), [(LINUX, ""), (WSL, "WSL"), (GVISOR, "gVisor")])
def test_kernels(tmp_path, version, name):
    """WSL and gVisor are told by what their kernels say of themselves."""
    Simulated(tmp_path).write("proc/version", version)
    machine = platform.machine()
    assert facts_of(tmp_path)["system"].rpartition(machine)[2].strip() == name


def test_the_interpreter():
    """Its name and version, without the build and the compiler, which `sys.version` has as well."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    assert system.facts()["Python"].rstrip("+") == python.rstrip("+")


def test_devices_and_their_driver(gpu, fresh_machine):
    """What each source says, as `doctor` does: driver and devices; CUDA; each slice of MIG; no UUID of any."""
    found = system.facts()
    assert found["CUDA"] == "13.0"
    assert found["NVML"].startswith("driver 580.65.06, 2 device(s): NVIDIA SimGPU 16GB")
    assert {"RAM", "RAM limit"} <= found.keys()
    slices = gpu.dev[0].mig(2 << 30, 0, 4 << 30)
    machine().nvml.close()
    found = system.facts()
    assert found["MIG"].count("MIG") == 2, found
    uuids = [one.uuid.decode() for one in (*gpu.dev[:2], *filter(None, slices))]
    assert not any(uuid in text for uuid in uuids for text in found.values())


def test_it_tells_whose_it_is_to_nobody():
    """Neither host, user nor home; and it imports no framework."""
    before = set(sys.modules)
    told = "\n".join(system.facts().values())
    for name in (socket.gethostname(), platform.node(), str(Path.home()), str(Path.cwd())):
        assert len(name) < 3 or name not in told
    assert f"/{getpass.getuser()}" not in told
    assert not {"torch", "jax", "cupy", "tensorflow", "rmm"} & (set(sys.modules) - before)


def test_control_groups_have_no_names(monkeypatch):
    """The file that limits memory is told, not whose group it is in, nor which job."""
    for folder in ("user.slice/user-1000.slice/ada", "memory/slurm/uid_7/job_9", "kubepods/pod12ab"):
        limit = MemoryLimit("job limit", f"/sys/fs/cgroup/{folder}/memory.max", 9 << 30, 1 << 30)
        monkeypatch.setattr(machine(), "diagnose", lambda limit=limit: [limit.diagnosis()])
        assert (
            facts_of("/")["RAM limit"]
            == "8.0 GB of 9.0 GB (job limit) left, from /sys/fs/cgroup/.../memory.max"
        )


def test_what_fails_is_unknown(monkeypatch, tmp_path):
    """Whatever fails, each fact is there, none is empty, and nothing is raised."""

    def broken(*_):
        raise RuntimeError("\x1b[2J")

    names = system.facts().keys()
    for module, name in [
        (platform, "system"), (platform, "python_implementation"),
        (system, "distributions"), (Path, "exists"),
    ]:  # fmt: skip
        monkeypatch.setattr(module, name, broken)
    found = facts_of(tmp_path)
    assert found.keys() == names
    for name in "system", "Python", "packages", "container":
        assert found[name].startswith(("unknown", "none found"))
