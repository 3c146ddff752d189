"""The system on which figures were checked, as an issue report needs it; nothing that tells whose it is."""

from __future__ import annotations

import platform
import re
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

from ..records.units import printable, size_text
from ..sources.nvidia.nvml import Nvml
from ..sources.system.ram_limit import RamLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..sources import Device

_CONTAINERS = {
    "docker": ".dockerenv",
    "podman": "run/.containerenv",
    "kubernetes": "var/run/secrets/kubernetes.io",
}
_GVISOR = "gvisor", "sun jan 10 15:06:54 pst 2016"  # the time at which each release says it was built
# With the names of their variants ("cupy-cuda12x"), and the libraries that allocate workspaces.
_PACKAGES = re.compile(
    r"(torch|jax|jaxlib|tensorflow|cupy|rmm)(-(cu\d+|cuda.*|rocm.*|cpu|intel|macos|nightly))?"
    r"|nvidia-(cublas|cudnn)(-.*)?|nvidia-ml-py|ipygpulogger|ipython|numpy|psutil"
)


def facts(root: str = "/") -> dict[str, str]:
    """Return what is known of the system; what is unknown says so. Imports no framework, and never raises."""
    nvml, limits = Nvml(), RamLimits(root)

    def kernel_says(*marks: str) -> str:
        said = limits.read("/proc/version").decode(errors="replace").lower()
        return "yes" if any(mark in said for mark in marks) else "no"

    def cgroup_limit() -> str:
        limits.read("/proc/self/cgroup")  # raises where the groups are unknown
        sizes = [one.limit_bytes for one in limits.all() if one.source.startswith("/sys/fs/cgroup/")]
        return size_text(min(sizes)) if sizes else ""

    def packages() -> str:
        here = {str(one.metadata["Name"]).lower().replace("_", "-"): one.version for one in distributions()}
        return ", ".join(f"{name} {here[name]}" for name in sorted(filter(_PACKAGES.fullmatch, here)))

    def driver() -> str:
        if not nvml.devices():
            return nvml.diagnose().says
        return ", for CUDA ".join(version or "unknown" for version in nvml.versions())

    def device(one: Device) -> str:
        size = size_text(one.total_bytes) if one.total_bytes else "size unknown"
        return f"{one.index}: {one.name}, {size}, {'MIG slice' if 'MIG-' in str(one.uuid) else 'no MIG'}"

    asked: dict[str, Callable[[], str]] = {
        "system": lambda: f"{platform.system()} {platform.release()} {platform.machine()}",
        "Python": lambda: f"{platform.python_implementation()} {sys.version.partition('(')[0].strip()}",
        "packages": packages,
        "container": lambda: ", ".join(name for name, at in _CONTAINERS.items() if Path(root, at).exists()),
        "cgroup limit": cgroup_limit,
        "WSL": lambda: kernel_says("microsoft"),
        "gVisor": lambda: kernel_says(*_GVISOR),
        "driver": driver,
        "devices": lambda: "; ".join(map(device, nvml.devices())),
    }
    found = {}
    for name, answer in asked.items():
        try:
            found[name] = printable(answer()) or "none found"
        except Exception as error:  # metadata that is damaged, files that are refused
            found[name] = f"unknown ({type(error).__name__})"
    nvml.close()
    return found
