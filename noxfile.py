"""How the tests run. `nox` alone runs the first six; `nox -l` lists the rest.

plain       torch is not installed; NVML is simulated
simgpu      the CUDA build of torch, on a simulated GPU (tests/simgpu)
training    the same with fastai, Lightning, transformers and Keras
cluster     more than one process: torchrun, ipyparallel, Ray and Dask
monitoring  what measures lines, on the Pythons that have sys.monitoring
docs        the documentation as a site, without a warning
quick       the fast tests of what a first change touches: not by default, for `plain` runs them
frameworks  the CPU builds of JAX and TensorFlow: not by default, for they are large
versions    the shell and the kernel under other IPython, ipykernel and numpy: not by default, they are many
oldest      the same under the oldest version of each dependency: not by default, for the same reason
cpu         the first lane with torch's build for CPUs: not by default, for it is large
torch       the second lane under torch from the oldest to the newest: not by default, for the same reason
notebooks   not a test: it executes notebooks/ anew, whose outputs are kept
browser     JupyterLab in a real Chromium: not by default, for few machines have one
package     sdist and wheel, checked, and tests on the installed wheel: not by default, a release runs it
gpu         `doctor --verify --estimate` on a real GPU: not by default, for few machines have one
operators   every operator of torch in `estimate`, a table of what differs: not by default, for it takes long
faults      every fault below the package at every moment, and long fuzzing: not by default, it takes an hour
soak        10,000 mixed cells, and the same without the extension: not by default, for it takes long
elsewhere   the first lane as on macOS and on Windows, without what only Linux has: not by default
mutants     whether the tests notice a changed operator in what counts: not by default, for it takes long
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2024.3"
nox.options.sessions = ["plain", "simgpu", "training", "cluster", "monitoring", "docs"]
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


ENGINES = ["ipyparallel", "ray", "dask"]  # each an extra of ours; torchrun comes with torch

# Whatever the caller's environment says; or each of a thousand processes compiles what it imports.
COMPILED_ONCE = {"PYTHONDONTWRITEBYTECODE": ""}

# Those with sys.monitoring: on older ones, lines are measured by other means, which the first lane tests.
MONITORING = ["3.12", "3.13"]
LINES = [
    "tests/blocks/test_measure_lines.py",
    "tests/kernel/test_lines.py",
    "tests/lines",
    "tests/notebook/test_interrupts.py",
]

# IPython, ipykernel and numpy, from the oldest to the newest; the lanes have the newest of each.
KERNEL_6, KERNEL_7 = ("ipykernel==6.*", "ipykernel==7.*")
NUMPY_1, NUMPY_2 = ("numpy==1.*", "numpy==2.*")
VERSIONS = {
    "7.34": ["ipython==7.34.*", KERNEL_6, NUMPY_1],
    "7.34-7": ["ipython==7.34.*", KERNEL_7, NUMPY_2],
    "8.0": ["ipython==8.0.*", KERNEL_6, NUMPY_1],
    "8": ["ipython==8.*", KERNEL_7, NUMPY_1],
    "9.0": ["ipython==9.0.*", KERNEL_6, NUMPY_2],
    "9": ["ipython==9.*", KERNEL_7, NUMPY_2],
}
USERS = [
    "tests/cli",
    "tests/kernel",
    "tests/notebook",
    "tests/render",
    "tests/storage",
    "tests/test_loading.py",
]


@nox.session
def plain(session):
    """Everything works where torch is not installed."""
    install(session, "-e", ".[test]")
    session.run("python", "-m", "pytest", "-m", "not torch", *how(session))


def how(session):
    """The arguments asked for; without any, as many processes as there are cores, four at most.

    Each has its own simulated machine, and whole files: the tests of a file share what they set up.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if session.posargs or cores == 1:
        return session.posargs
    # In the order of the names, not of the tests in each: the long files come early.
    return ["-n", str(min(cores, 4)), "--dist", "loadfile", "--no-loadscope-reorder"]


def install(session, *what):
    """Install; what is imported is compiled when it is, once, and the rest never."""
    session.env.update(COMPILED_ONCE)
    session.install("--no-compile", *what)


@nox.session
def simgpu(session):
    """What needs torch and a GPU, on the simulated one."""
    simulate(session, TORCH)


@nox.session
def training(session):
    """The callbacks in real trainings, on the CPU and on the simulated GPU."""
    simulate(session, TORCH, "training", TRAINING, TRAINING_NEEDS)


@nox.session
def cluster(session):
    """Real ranks, engines, actors and tasks of each engine; the ranks of torchrun on the simulated GPU."""
    install_simulated(session, TORCH)
    try:
        install(session, "-e", f".[{','.join(ENGINES)}]")
    except CommandFailed:  # Ray has wheels for some Pythons only
        install_each(session, ENGINES)
    run_marked(session, "cluster", "tests/cluster")


def install_each(session, extras):
    """Install those that pip can install; the tests of the others skip themselves."""
    for extra in extras:
        try:
            install(session, "-e", f".[{extra}]")
        except CommandFailed:
            said_aloud(session, f"pip cannot install {extra} for Python {platform.python_version()}")


@nox.session
@nox.parametrize("version", list(TORCHES))
def torch(session, version):
    """The same under torch from the oldest supported to the newest."""
    simulate(session, TORCHES[version])


@nox.session
def notebooks(session):
    """Execute notebooks/ anew, all or those named, on the simulated GPU, and keep the outputs."""
    install_simulated(session, TORCH, TRAINING, TRAINING_NEEDS)
    session.run("python", "tests/shown_notebooks.py", *session.posargs, env={"OMP_NUM_THREADS": "1"})


def simulate(session, wheel, markers="torch or gpu", alone=(), needs=()):
    """The tests so marked, on the simulated GPU with this torch, and with these distributions besides."""
    install_simulated(session, wheel, alone, needs)
    run_marked(session, markers)


def run_marked(session, markers, *folders):
    """Run the tests so marked, as fast as this machine allows."""
    # One thread is the fastest for what is this small, wherever others run beside it.
    one = {"OMP_NUM_THREADS": "1"}
    session.run("python", "-m", "pytest", "-m", markers, *how(session), *folders, env=one)


def install_simulated(session, wheel, alone=(), needs=()):
    """Install this torch without NVIDIA's packages, and more; those of `alone` without what they require."""
    probe = "import simgpu; print('why not:', simgpu.why_not())"
    said = session.run("python", "-c", probe, env={"PYTHONPATH": "tests"}, silent=True)
    reason = said.rpartition("why not: ")[2].strip()
    if reason != "None":
        did_not_run(session, reason)
    try:
        install(session, "--no-deps", *wheel, *alone)  # does nothing when it is there
        install(session, *TORCH_NEEDS, *needs)
    except CommandFailed:
        did_not_run(session, f"pip cannot install {wheel[-1]}")
    install(session, "-e", ".[test]")


@nox.session(venv_backend="none")
@nox.parametrize("version", MONITORING)
def monitoring(session, version):
    """What measures lines, on a Python that has sys.monitoring, if one is here."""
    python = find_python(version)
    if not python:
        sys.stderr.write(f"\n=== LINES WERE NOT TESTED ON PYTHON {version}: no such Python here ===\n\n")
        sys.stderr.flush()
        session.skip(f"there is no Python {version} here")
    venv = Path(".nox", f"monitoring-{version}").resolve()
    mine = str(venv / ("Scripts" if os.name == "nt" else "bin") / "python")
    if not Path(mine).exists():
        session.run(sys.executable, "-m", "virtualenv", "-q", "-p", python, str(venv))
    session.run(mine, "-m", "pip", "install", "-q", "--no-compile", "-e", ".[test]")
    session.run(mine, "-m", "pytest", "-m", "not torch", *how(session), *LINES, env=COMPILED_ONCE)


@nox.session
def docs(session):
    """The documentation as a site in build/docs, without a warning. Its examples run in the other lanes."""
    install(session, "-e", ".[docs]")
    session.run(
        "sphinx-build", "-W", "--keep-going", "-n", "-q", "-E", "docs", "build/docs", *session.posargs
    )


def find_python(version):
    """A Python of this version that runs, or None.

    A name on the PATH may be pyenv's, which runs only where that version is chosen; pyenv may still have one.
    """
    pyenv = os.environ.get("PYENV_ROOT") or Path(shutil.which("pyenv") or "~/.pyenv/bin/pyenv").parents[1]
    theirs = Path(pyenv).expanduser().glob(f"versions/{version}.*/bin/python")
    for python in (sys.executable, shutil.which(f"python{version}"), *sorted(theirs)):
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        try:
            said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
        except (OSError, TypeError, subprocess.CalledProcessError):
            continue
        if said.strip() == version:
            return python
    return None


@nox.session
def gpu(session):
    """Every figure beside the truth, on this machine's devices, with the complete torch."""
    session.install("-e", ".[torch]")
    session.run("ipygpulogger", "doctor", "--verify", "--estimate", *session.posargs)


@nox.session
def frameworks(session):
    """Our assumptions about JAX and TensorFlow, against their CPU builds."""
    session.install("-e", ".[test]", "jax", "tensorflow-cpu")
    session.run("python", "-m", "pytest", "-m", "frameworks", *session.posargs)


def did_not_run(session, reason):
    """Skip, but never so that it goes unnoticed: in CI it is an error."""
    said_aloud(session, reason)
    session.skip(reason)


def said_aloud(session, reason):
    """Say what is not tested; in CI it is an error."""
    sys.stderr.write(f"\n=== THE LANE {session.name} DID NOT RUN, OR NOT ALL OF IT: {reason} ===\n\n")
    sys.stderr.flush()
    if os.environ.get("CI", "").lower() not in {"", "0", "false"}:
        session.error(reason)


@nox.session
def browser(session):
    """JupyterLab in a real Chromium; BROWSER_PICTURES names a folder for what was seen."""
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        session.skip("this machine has no Chromium")
    session.install("-e", ".[test,panel]", "jupyterlab", "notebook>=7", "playwright")
    session.run("python", "-m", "pytest", "tests/browser", *session.posargs)


@nox.session
def mutants(session):
    """Each operator of what counts and does arithmetic changed in turn: some test must fail.

    Files (`nox -s mutants -- peaks`) and `--sample 50` may follow. tests/mutants.toml says which tests must
    notice, and which mutants nothing can; tests/mutants.py why it is cosmic-ray, and how it is run.
    """
    if sys.version_info < (3, 11):
        session.skip("it reads TOML with the standard library, which Python 3.10 cannot")
    install(session, "-e", ".[test]", "cosmic-ray==8.7.*")
    session.run("python", "tests/mutants.py", *session.posargs, env={"OPENBLAS_NUM_THREADS": "1"})


@nox.session
def faults(session):
    """Every call that leaves the process times every error, before, within and after a cell; more fuzzing."""
    install_simulated(session, TORCH)
    env = {"OMP_NUM_THREADS": "1", "FAULTS": "all", "FUZZ": "5000"}
    session.run("python", "-m", "pytest", "-s", "tests/test_faults.py", "tests/test_fuzzing.py", env=env)


@nox.session
def soak(session):
    """Thousands of mixed cells in a real kernel: what grows, that does not in one without the extension?

    `--cells 500`, `--seed 7` and `--write`, which draws docs/soak.svg, may follow.
    """
    install_simulated(session, TORCH)
    session.run("python", "tests/soak.py", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session
def operators(session):
    """Every operator that torch itself tests, estimated and run on the simulated GPU; or those named."""
    install_simulated(session, TORCH)
    session.run("python", "tests/every_operator.py", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session
def lint(session):
    """Style and types."""
    session.install("-e", ".[dev]")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")


@nox.session
@nox.parametrize("version", [nox.param(one, id=one) for one in VERSIONS])
def versions(session, version):
    """The shell, the kernel and the reports, or the tests named, under other versions of what they use."""
    install(session, "-e", ".[test]", *VERSIONS[version])
    session.run("python", "-m", "pytest", "-m", "not torch", *(session.posargs or USERS))


@nox.session
def oldest(session):
    """The same under the oldest version of each dependency that pyproject.toml allows."""
    install(session, "uv")
    lowest = ["--resolution", "lowest-direct", "-e", ".[test,panel]"]
    session.run_install("python", "-m", "uv", "pip", "install", "--quiet", *lowest)
    session.run("python", "-m", "pytest", "-m", "not torch", *(session.posargs or USERS))


@nox.session
def cpu(session):
    """The first lane where torch is installed, in the build that knows no CUDA; or the tests named."""
    install(session, "-e", ".[test]")
    try:
        install(session, "torch===2.13.0+cpu")  # where pip was given a place that has it
    except CommandFailed:  # uv knows where torch's own index is: not yet run
        install(session, "uv")
        session.run_install(
            "python", "-m", "uv", "pip", "install", "--quiet", "--torch-backend", "cpu", "torch"
        )
    session.run("python", "-m", "pytest", "-m", "not torch", *how(session))


QUICK = ["tests/analysis", "tests/records", "tests/docs/test_pages.py", "tests/test_architecture.py"]
QUICK += ["tests/render/test_report_text.py", "tests/render/test_summary.py"]


@nox.session
def quick(session):
    """What a first change touches, in less than a minute: values, reports, the pages' words, imports."""
    install(session, "-e", ".[test]")
    # Each page of cells is a process that takes seconds.
    cells = "tests/docs/test_pages.py::test_the_cells_run_and_print_what_the_page_shows"
    words = ["-m", "not torch", "--deselect", cells, *how(session), *(() if session.posargs else QUICK)]
    session.run("python", "-m", "pytest", *words)


@nox.session
@nox.parametrize("system", ["macos", "windows"])
def elsewhere(session, system):
    """The first lane without what only Linux has, and with psutil as it answers there."""
    install(session, "-e", ".[test]")
    env = {"SYSTEM": system, "PYTHONPATH": str(Path("tests", "elsewhere").resolve())}
    session.run("python", "-m", "pytest", "-m", "not torch", *how(session), env=env)


# What needs this checkout stays out: the package's own files (test_architecture), and the longest lanes.
OF_THE_WHEEL = [
    *("tests/package", "tests/kernel", "tests/cli", "tests/render", "tests/storage", "tests/records"),
    *("tests/analysis", "tests/test_loading.py", "tests/test_pytest_plugin.py"),
]


@nox.session
def package(session):
    """Build the sdist, of it the wheel, and check both; run tests from the sdist, on the installed wheel.

    The files stay in build/package. Arguments are for pytest, such as other tests.
    """
    session.install("build", "twine", "check-wheel-contents", "pyroma", "pyright[nodejs]", "setuptools-scm")
    built = Path("build", "package").resolve()
    shutil.rmtree(built, ignore_errors=True)
    session.run("python", "-m", "build", "-o", str(built))
    session.run("python", "-m", "build", "--wheel", "-o", str(built / "checkout"))
    (sdist,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    session.run("twine", "check", "--strict", str(sdist), str(wheel))
    session.run("check-wheel-contents", str(wheel))
    session.run("pyroma", "--min=9", str(sdist))  # of 10: no maintainer has given an address of mail
    session.install("--no-compile", f"{wheel}[test]")
    session.install("--no-deps", "--force-reinstall", str(wheel))  # the version may be that of the last build
    tests = session.posargs or [*how(session), *OF_THE_WHEEL]
    env = COMPILED_ONCE | {"PACKAGE": str(built)}
    with tempfile.TemporaryDirectory() as away:  # outside the checkout, and its git
        shutil.unpack_archive(sdist, away)
        with session.chdir(next(Path(away).iterdir())):
            shutil.rmtree("ipygpulogger")  # only the wheel's can be imported
            session.run("python", "-m", "pytest", "-m", "not torch", *tests, env=env)
