"""A virtual environment for each tool, made from the package index and kept in a folder.

All of them see one base, so that every kernel runs the same Python, IPython, ipykernel, numpy and torch: the base has
these, and an environment on top of it has one tool and what only that tool needs.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import venv
from datetime import datetime, timezone
from pathlib import Path

from .tools import OURS, TOOLS

ROOT = Path(__file__).resolve().parents[2]
BASE = ["ipython", "ipykernel", "jupyter_client", "psutil", "numpy", "setuptools"]
CPU_TORCH = ["--extra-index-url", "https://download.pytorch.org/whl/cpu", "torch==2.13.0+cpu"]
# As noxfile.py has it: the CUDA build alone, on the simulated GPU of the tests. === takes no +cpu build for it.
CUDA_TORCH = ["--no-deps", "torch===2.13.0"]
GPU, GPU_TOOLS = (
    "gpu",
    ["ipyexperiments==0.1.29", "pytorch-memlab==0.3.2", "calmsize", "pandas", "nvidia-ml-py", "pynvml"],
)
DONE = "made"


class Environments:
    """The environments in a folder, and why one is not there.

    Attributes:
        failed: For each environment that cannot be made, the reason in words.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failed: dict[str, str] = {}

    def python(self, name: str) -> Path:
        """The interpreter of an environment."""
        return self.folder / ("base" if name == "bare" else name) / "bin" / "python"

    def make(self, names: set[str], *, gpu: bool) -> None:
        """Make those that are not there; ours is installed anew each time, from the checkout that holds this file."""
        self._make_base()
        for tool in TOOLS:
            if tool.requirement and tool.environment in names and not self._is_done(tool.environment):
                self._layer(tool.environment, [tool.requirement])
        if OURS in names or gpu:
            self._install_ours(OURS, anew=True)
        if gpu and not {GPU, "torch"} & self.failed.keys():
            if not self._is_done(GPU):
                self._layer(GPU, CUDA_TORCH, ["--no-deps", *GPU_TOOLS])
            if GPU not in self.failed:
                self._install_ours(GPU, anew=False)

    def _make_base(self) -> None:
        base = self.folder / "base"
        if not self._is_done("base"):
            print(f"making environments in {self.folder}", file=sys.stderr)
            venv.create(base, with_pip=True, clear=True)
            self._pip("base", BASE)
            (base / DONE).touch()
        if not self._has_torch():
            try:
                self._pip("base", ["--retries", "0", *CPU_TORCH])
            except subprocess.CalledProcessError as error:
                self.failed["torch"] = _reason(error)
        pinned = self._run(["base", "-m", "pip", "list", "--format=freeze"]).splitlines()
        keep = [line for line in pinned if not line.startswith(("pip=", "setuptools="))]
        self._constraints.write_text("\n".join(keep) + "\n", encoding="utf-8")

    def _has_torch(self) -> bool:
        return any((self.folder / "base").glob("lib/python*/site-packages/torch"))

    @property
    def _constraints(self) -> Path:
        return self.folder / "constraints.txt"

    def _layer(self, name: str, *requirements: list[str]) -> None:
        print(f"making {name}: {' '.join(requirements[0])}", file=sys.stderr)
        venv.create(self.folder / name, with_pip=False, clear=True)
        (site,) = (self.folder / name).glob("lib/python*/site-packages")
        (base,) = (self.folder / "base").glob("lib/python*/site-packages")
        (site / "field_base.pth").write_text(f"{base}\n", encoding="utf-8")
        try:
            for wanted in requirements:
                constrained = [] if name == GPU else ["-c", str(self._constraints)]
                self._pip(name, [*constrained, *wanted])
        except subprocess.CalledProcessError as error:
            self.failed[name] = _reason(error)
        else:
            (self.folder / name / DONE).touch()

    def _install_ours(self, name: str, *, anew: bool) -> None:
        """A copy of the checkout is built, so that the checkout stays as it is."""
        copy = self.folder / "checkout"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(
            ROOT / "ipygpulogger", copy / "ipygpulogger", ignore=shutil.ignore_patterns("__pycache__")
        )
        for file in ("pyproject.toml", "README.md", "LICENSE", "setup.cfg"):
            shutil.copy(ROOT / file, copy)
        if anew:
            self._layer(name, [str(copy)])
        else:
            self._pip(name, ["--no-deps", "--force-reinstall", str(copy)])

    def _is_done(self, name: str) -> bool:
        return (self.folder / name / DONE).exists()

    def _pip(self, name: str, arguments: list[str]) -> None:
        into = [] if name == "base" else ["--python", str(self.python(name))]
        self._run(["base", "-m", "pip", *into, "install", "-q", *arguments])

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            [self.python(command[0]), *command[1:]], check=True, capture_output=True, text=True
        )
        return done.stdout

    def about(self) -> str:
        """The day, the kind of machine, and the versions of everything that was measured."""
        of_all = ["ipython", "ipykernel", "numpy", "torch"]
        theirs = [tool.requirement.partition("==")[0] for tool in TOOLS if tool.requirement]
        names = [*of_all, *theirs, *(name.partition("==")[0] for name in GPU_TOOLS[1:2])]
        found = [f"Python {platform.python_version()}", *filter(None, map(self._version, names))]
        today = datetime.now(tz=timezone.utc).date()
        return f"{today}, {platform.system()}, {os.cpu_count()} CPUs, {', '.join(found)}."

    def _version(self, name: str) -> str:
        hits = sorted(self.folder.glob(f"*/lib/python*/site-packages/{name.replace('-', '_')}-*.dist-info"))
        return f"{name} {hits[0].name[len(name) + 1 : -len('.dist-info')]}" if hits else ""

    def size_mb(self, name: str) -> int:
        """What an environment has on the disk beyond the base, in MB."""
        (site,) = (self.folder / name).glob("lib/python*/site-packages")
        return round(sum(file.stat().st_size for file in site.rglob("*") if file.is_file()) / 2**20)


def _reason(error: subprocess.CalledProcessError) -> str:
    lines = [line for line in (error.stderr or "").splitlines() if line.startswith("ERROR")]
    return (
        f"not installed: {lines[-1][len('ERROR: ') :]}"
        if lines
        else f"not installed: pip ended with {error.returncode}"
    )
