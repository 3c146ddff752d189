"""The system on which figures were checked, as an issue report needs it; nothing that tells whose it is."""

from __future__ import annotations

import platform
import re
import sys
from functools import partial
from importlib.metadata import distributions, version
from typing import TYPE_CHECKING

from ..engine.machine import machine
from ..records.units import printable, size_text
from ..runtime.errors import is_from_a_handler
from ..sources.nvidia.nvml import Nvml

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..sources.system.ram_limit import RamLimits

_CONTAINERS = {  # by a file that is there
    "kubernetes": "/var/run/secrets/kubernetes.io",
    "docker": "/.dockerenv",
    "podman": "/run/.containerenv",
    "apptainer": "/.singularity.d",
}
_VERSION = "/proc/version"
_GVISOR = b"gvisor", b"Sun Jan 10 15:06:54 PST 2016"  # the time at which each release says it was built
# Frameworks, with the names of their variants ("cupy-cuda12x"), and the libraries whose workspaces count.
_PACKAGES = re.compile(
    r"(torch|jax|jaxlib|tensorflow|cupy|rmm)(-(cu\d+|cuda.*|rocm.*|cpu|intel|macos|nightly))?"
    r"|nvidia-(cublas|cudnn)(-.*)?|nvidia-ml-py|numpy|psutil"
)


def facts(limits: RamLimits | None = None) -> dict[str, str]:
    """Return what is known of this system; what is unknown says so. Imports no framework, and never raises.

    Args:
        limits: Where files of the system are read, by default those of this machine.
    """
    limits, nvml = limits or machine().limits, Nvml()
    asked: dict[str, Callable[[], str]] = {
        "ipygpulogger": partial(version, "ipygpulogger"),
        "system": lambda: f"{platform.system()} {platform.release()} {platform.machine()}",
        "C library": lambda: " ".join(platform.libc_ver()).strip(),
        "Python": lambda: f"{platform.python_implementation()} {sys.version.partition('(')[0].strip()}",
        "IPython": partial(version, "ipython"),
        "container": lambda: _container(limits),
        "cgroup limit": lambda: _cgroup_limit(limits),
        "WSL": lambda: _yes_or_no(b"microsoft" in limits.read(_VERSION).lower()),
        "gVisor": lambda: _yes_or_no(any(mark in limits.read(_VERSION) for mark in _GVISOR)),
        "packages": _packages,
        "driver": lambda: _driver(nvml),
        "devices": lambda: _devices(nvml),
    }
    try:
        return {name: _told(answer) for name, answer in asked.items()}
    finally:
        nvml.close()


def _told(answer: Callable[[], str]) -> str:
    try:
        return printable(answer()) or "unknown"
    except Exception as error:  # of platform, metadata that is damaged, files that are refused
        if is_from_a_handler(error):
            raise
        return f"unknown ({type(error).__name__})"


def _yes_or_no(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _container(limits: RamLimits) -> str:
    def is_there(path: str) -> bool:
        try:
            limits.read(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # a folder, or one that is refused
            pass
        return True

    return ", ".join(name for name, path in _CONTAINERS.items() if is_there(path)) or "none found"


def _cgroup_limit(limits: RamLimits) -> str:
    limits.read("/proc/self/cgroup")  # raises where the groups cannot be found
    names = {group.name for group in limits.groups()}
    found = [one.limit_bytes for one in limits.all() if one.name.removesuffix(" limit") in names]
    return size_text(min(found)) if found else "none found"


def _packages() -> str:
    names = {(one.metadata["Name"] or "").lower().replace("_", "-"): one.version for one in distributions()}
    return ", ".join(f"{name} {names[name]}" for name in sorted(names) if _PACKAGES.fullmatch(name))


def _driver(nvml: Nvml) -> str:
    if not nvml.devices():
        return nvml.diagnose().says
    driver, cuda = nvml.versions()
    return f"{driver or 'unknown'}, for CUDA {cuda or 'unknown'}"


def _devices(nvml: Nvml) -> str:
    return (
        "; ".join(
            f"{one.index}: {one.name}, {size_text(one.total_bytes) if one.total_bytes else 'size unknown'}, "
            + ("a MIG slice" if (one.uuid or "").startswith("MIG-") else "not divided by MIG")
            for one in nvml.devices()
        )
        or "none found"
    )
