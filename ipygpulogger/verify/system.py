"""The system on which figures were checked, as an issue report needs it; nothing that tells whose it is."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path

from ..engine.machine import machine

_CONTAINERS = {
    "docker": ".dockerenv",
    "podman": "run/.containerenv",
    "kubernetes": "var/run/secrets/kubernetes.io",
}
_KERNELS = {"microsoft": "WSL", "gvisor": "gVisor", "sun jan 10 15:06:54 pst 2016": "gVisor"}  # its build
# With the names of their variants ("cupy-cuda12x"), and the libraries that allocate workspaces.
_PACKAGES = re.compile(
    r"(torch|jax|jaxlib|tensorflow|cupy|rmm)(-(cu\d+|cuda.*|rocm.*|cpu|intel|macos|nightly))?"
    r"|nvidia-(cublas|cudnn)(-.*)?|nvidia-ml-py|ipygpulogger|ipython|numpy|psutil"
)
_GROUP = re.compile(r"(/sys/fs/cgroup/)\S+/")  # named after users, jobs and pods


def facts(root: str = "/") -> dict[str, str]:
    """Return what is known of the system and of each source; what is unknown says so."""

    def kernel() -> str:
        known, version = [], Path(root, "proc/version")
        if version.exists():  # on Linux
            said = version.read_text(encoding="utf-8", errors="replace").lower()
            known = [name for mark, name in _KERNELS.items() if mark in said]
        return f"{platform.system()} {platform.release()} {platform.machine()} {', '.join(known)}".rstrip()

    def packages() -> str:
        here = {str(one.metadata["Name"]).lower().replace("_", "-"): one.version for one in distributions()}
        return ", ".join(f"{name} {here[name]}" for name in sorted(filter(_PACKAGES.fullmatch, here)))

    says = {one.source: one.says.replace(sys.executable, "python") for one in machine().diagnose()}
    says = {name: _GROUP.sub(r"\1.../", text) for name, text in says.items()}
    found: dict[str, str] = {}
    asked: dict[str, Callable[[], str]] = {}
    asked["system"] = kernel
    asked["Python"] = lambda: f"{platform.python_implementation()} {sys.version.partition('(')[0].strip()}"
    asked["packages"] = packages
    asked["container"] = lambda: ", ".join(a for a, at in _CONTAINERS.items() if Path(root, at).exists())
    asked["CUDA"] = lambda: machine().nvml.versions()[1] or ""
    asked["MIG"] = lambda: ", ".join(o.name for o in machine().nvml.devices() if "MIG-" in str(o.uuid))
    for name, answer in asked.items():
        try:
            found[name] = answer() or "none found"
        except Exception as error:  # metadata that is damaged, files that are refused
            found[name] = f"unknown ({type(error).__name__})"
    return found | says
