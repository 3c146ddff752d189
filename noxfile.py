"""How the tests run. `nox` alone runs the first three; `nox -l` lists the rest.

plain       torch is not installed; NVML is simulated
simgpu      the CUDA build of torch, on a simulated GPU (tests/simgpu)
training    the same with fastai, Lightning, transformers and Keras
frameworks  the CPU builds of JAX and TensorFlow: not by default, for they are large
torch       the second lane under torch from the oldest to the newest: not by default, for the same reason
browser     JupyterLab in a real Chromium: not by default, for few machines have one
gpu         the hardware checks of tests/gpu, on a real GPU: not by default, for few machines have one
"""

import os
import shutil
import sys

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2024.3"
nox.options.sessions = ["plain", "simgpu", "training"]
nox.options.reuse_venv = "yes"

# The CUDA wheel without the gigabytes of NVIDIA's packages: tests/simgpu stands in for them.
# === so that an index's +cpu build of the same version does not count as the same.
TORCH = ["torch===2.13.0"]
TORCHES = {"2.6": ["torch===2.6.0"], "2.13": TORCH, "newest": ["--upgrade", "torch"]}
TORCH_NEEDS = ["filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec", "numpy"]

# Those that would bring the complete torch come alone, and what they need by name.
TRAINING = ["fastai", "lightning", "torchmetrics", "accelerate"]
TRAINING_NEEDS = [
    *("transformers", "keras", "fastdownload", "fasttransform", "lightning-utilities", "cloudpickle"),
    *("matplotlib", "pillow", "requests", "scikit-learn", "scipy", "tqdm"),
]


@nox.session
def plain(session):
    """Everything works where torch is not installed."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "-m", "not torch", *session.posargs)


@nox.session
def simgpu(session):
    """What needs torch and a GPU, on the simulated one."""
    simulate(session, TORCH)


@nox.session
def training(session):
    """The callbacks in real trainings, on the CPU and on the simulated GPU."""
    simulate(session, TORCH, "training", TRAINING, TRAINING_NEEDS)


@nox.session
@nox.parametrize("version", list(TORCHES))
def torch(session, version):
    """The same under torch from the oldest supported to the newest."""
    simulate(session, TORCHES[version])


def simulate(session, wheel, markers="torch or gpu", alone=(), needs=()):
    """The tests so marked, on the simulated GPU with this torch, and with these distributions besides.

    Those of `alone` are installed without what they require.
    """
    probe = "import simgpu; print('why not:', simgpu.why_not())"
    said = session.run("python", "-c", probe, env={"PYTHONPATH": "tests"}, silent=True)
    reason = said.rpartition("why not: ")[2].strip()
    if reason != "None":
        did_not_run(session, reason)
    try:
        session.install("--no-deps", *wheel, *alone)  # does nothing when it is there
        session.install(*TORCH_NEEDS, *needs)
    except CommandFailed:
        did_not_run(session, f"pip cannot install {wheel[-1]}")
    session.install("-e", ".[test]")
    # One thread is the fastest for what is this small, wherever others run beside it.
    one = {"OMP_NUM_THREADS": "1"}
    session.run("python", "-m", "pytest", "-m", markers, *session.posargs, env=one)


@nox.session
def gpu(session):
    """The hardware checks, with the complete torch, on this machine's GPU; ends with a table."""
    if not shutil.which("nvidia-smi"):
        session.skip("this machine has no NVIDIA driver, so there is no hardware to check")
    session.install("-e", ".[test,torch]")
    session.run("python", "-m", "pytest", "tests/gpu", *session.posargs, env={"SIMGPU": "0"})


@nox.session
def frameworks(session):
    """Our assumptions about JAX and TensorFlow, against their CPU builds."""
    session.install("-e", ".[test]", "jax", "tensorflow-cpu")
    session.run("python", "-m", "pytest", "-m", "frameworks", *session.posargs)


def did_not_run(session, reason):
    """Skip, but never so that it goes unnoticed: in CI it is an error."""
    sys.stderr.write(f"\n=== THE SIMULATED-GPU LANE DID NOT RUN: {reason} ===\n\n")
    sys.stderr.flush()
    if os.environ.get("CI", "").lower() not in {"", "0", "false"}:
        session.error(reason)
    session.skip(reason)


@nox.session
def browser(session):
    """JupyterLab in a real Chromium; BROWSER_PICTURES names a folder for what was seen."""
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        session.skip("this machine has no Chromium")
    session.install("-e", ".[test]", "jupyterlab", "playwright")
    session.run("python", "-m", "pytest", "tests/browser", *session.posargs)


@nox.session
def lint(session):
    """Style and types."""
    session.install("-e", ".[dev]")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")


@nox.session
@nox.parametrize("version", ["7.34", "8.12", "newest"])
def ipython(session, version):
    """The shell and the kernel under IPython from the oldest to the newest."""
    if version == "newest":
        session.install("--upgrade", "--upgrade-strategy", "eager", "-e", ".[test]", "ipython", "ipykernel")
    else:
        session.install("-e", ".[test]", f"ipython=={version}.*", "ipykernel<6.30", "setuptools")
    files = session.posargs or ["tests/test_shell.py", "tests/test_kernel.py"]
    session.run("python", "-m", "pytest", "-m", "not torch", *files)
