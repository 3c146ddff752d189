"""`ipygpulogger doctor`: each source, what is missing, and what to do about it."""

import json
import os
import subprocess
import sys
from types import ModuleType

import pytest
from command_line import command

from ipygpulogger.engine.machine import Machine
from ipygpulogger.sources import Framework

WITHOUT_TORCH = """
class Nowhere:
    def find_spec(self, name, *_):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'")
import sys
from types import ModuleType
sys.meta_path.insert(0, Nowhere())
"""


BROKEN = [  # what torch's own import raises, by the class of the error
    ("OSError", "libcudart.so.12: cannot open shared object file", "\\nsecond line"),
    ("ModuleNotFoundError", "No module named sympy", ""),
]


def torch_that(fails_with, folder):
    """A package called torch whose import fails as torch's does: after it has imported a part of itself."""
    package = folder / "torch"
    package.mkdir()
    (package / "_utils.py").write_text("")
    (package / "__init__.py").write_text(f"import torch._utils\n{fails_with and f'raise {fails_with}'}\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}


def diagnosed(*programs, env=None):
    """What is said of torch after the programs have run in one process, in its only line or two."""
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(programs)], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    said = done.stdout.splitlines()
    (at,) = [i for i, line in enumerate(said) if line.startswith("torch ")]
    return "\n".join([said[at], *(line for line in said[at + 1 : at + 2] if line.startswith(" "))])


DOCTOR = "import sys; from ipygpulogger.cli import main; sys.exit(main(['doctor']))"


MAGIC = """
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
shell.run_line_magic("load_ext", "ipygpulogger")
shell.run_cell("il.stop()")
%s
shell.run_line_magic("gpulog", "doctor")
assert "torch" not in __import__("sys").modules
"""


@pytest.mark.parametrize("way", [DOCTOR, MAGIC % ""], ids=["command", "magic"])
def test_torch_that_is_not_installed(way):
    """Both doctors say so, for which Python, and how to install it; nobody is told to import it."""
    said = diagnosed(WITHOUT_TORCH, way)
    assert f"not installed for {sys.executable}" in said
    assert f"{sys.executable} -m pip install torch" in said
    assert "import torch" not in said


@pytest.mark.parametrize(("name", "message", "more"), BROKEN)
def test_torch_whose_import_fails(tmp_path, name, message, more):
    """The command line tries the import, tells the first line of its error whatever its type, and exits with 0."""
    said = diagnosed(DOCTOR, env=torch_that(f"{name}('{message}{more}')", tmp_path))
    assert f"installed, but import torch fails: {name}: {message}\n" in said
    assert "-c 'import torch' shows where it fails" in said


def test_torch_that_the_kernel_did_not_import(tmp_path):
    """The magic imports nothing: torch is installed."""
    env = torch_that("OSError('libcudart.so.12')", tmp_path)
    said = diagnosed(MAGIC % "", env=env)
    assert "not imported yet installed; measured from the cell on that imports it" in said


@pytest.mark.parametrize("step", ["load", "preload", "counters", "diagnose"])
def test_doctor_tells_of_a_source_that_fails(step, monkeypatch):
    """A framework's source that raises at any step is in the list, absent, with its error."""

    class Broken(Framework):
        name = "broken"

        def counters(self):
            return ()

    def fail(_):
        raise OSError("no such library")

    setattr(Broken, step, fail)
    monkeypatch.setitem(sys.modules, "broken", ModuleType("broken"))
    machine = Machine(frameworks=[Broken()])
    machine.load()
    (found,) = [one for one in machine.diagnose() if one.source == "broken"]
    assert (found.state, found.says) == ("absent", "fails and is left out: OSError: no such library")


def test_doctor_on_the_simulated_machine(kernel_env):
    """With a driver: its version and its devices."""
    done = command("doctor", env=kernel_env)
    assert "driver 580.65.06, 2 device(s): NVIDIA SimGPU 16GB, NVIDIA SimGPU 16GB" in done.stdout


def test_doctor():
    """Each source has its line, and the same diagnoses are there for programs; exit 0."""
    done, as_json = command("doctor"), command("doctor", "--json")
    assert (done.returncode, as_json.returncode) == (0, 0), done.stderr + as_json.stderr
    found = json.loads(as_json.stdout)
    assert {"source", "state", "says", "remedy"} == set(found[0])
    sources = {diagnosis["source"] for diagnosis in found}
    assert {"RAM", "NVML", "torch"} <= sources
    assert all(any(line.startswith(one) for line in done.stdout.splitlines()) for one in sources)
