"""Experiments in a real Jupyter kernel: the same cell again, interrupts, Out, the kernel's end."""

import re
from contextlib import contextmanager

import pytest
from kernels import LEFT, NOTHING_LEFT, SERVANTS

MB = 2**20
STARTED = "*** Experiment started with the CPU-only backend"
REPORT = re.compile(
    r"^･ RAM:  △Consumed    △Peaked    Used Total \| Exec time \d:\d\d:\d\d\.\d{3}\n"
    r"･ CPU: ([ \d,-]{10}) ([ \d,]{10}) [ \d,]{10} MB \|(.*)\n",
    re.MULTILINE,
)
GPU = re.compile(r"^･ GPU: ([ \d,-]{10}) ([ \d,]{10}) [ \d,]{10} MB \|$", re.MULTILINE)
BLOCK = "b'x' * ({} << 20)"


def deleted(ran):
    """The variables that the cell's reports say were deleted."""
    return re.findall(r"^Deleted: (.*)$", ran.stdout, re.MULTILINE)


BEGIN = (
    SERVANTS,
    "from ipygpulogger.experiments import IPyExperimentsCPU",
    "from ipygpulogger.compat import experiment as experiment_module",
)


@contextmanager
def abandoned(kernel):
    """In the kernel nothing of ours runs before a test and after it."""
    yield
    kernel.run("for one in list(experiment_module._unfinished): one._abandon()", silent=True)
    kernel.run("for name in ('exp', 'other', 'one'): globals().pop(name, None)", silent=True)
    assert kernel.value(LEFT) == NOTHING_LEFT
    assert kernel.value("len(experiment_module._unfinished)") == 0


pytestmark = pytest.mark.kernel(shared=True, begin=BEGIN, around=abandoned)


def test_a_session(kernel):
    """Banner and reports belong to their cells; the end deletes, tells, and is the last that is heard."""
    ran = kernel.run("exp = IPyExperimentsCPU()")
    assert STARTED in ran.stdout
    assert len(REPORT.findall(ran.stdout)) == 1
    ran = kernel.run("a = " + BLOCK.format(300) + "\nprint('mine')\n6 * 7")
    assert ran.result == "42"
    assert ran.stdout.startswith("mine\n･ RAM:")
    (report,) = REPORT.findall(ran.stdout)
    assert (int(report[0]), report[2]) == (300, "")
    assert abs(kernel.value("exp.data.cpu.consumed") - 300 * MB) < 4 * MB
    assert kernel.value("exp.get_var_names()") == ["a"]
    (report,) = REPORT.findall(kernel.run("1 / 0").stdout)
    assert report[2] == "  failed: ZeroDivisionError"
    ran = kernel.run("exp.keep_var_names('data')\ndata = exp.finish()")
    assert deleted(ran) == ["a"]
    assert len(REPORT.findall(ran.stdout)) == 1
    consumed, reclaimed = kernel.value("data.cpu[:2]")
    assert abs(consumed - 300 * MB) < 4 * MB
    assert abs(reclaimed - 300 * MB) < 4 * MB
    assert kernel.run("pass").kinds == []
    kernel.run("del data", silent=True)


@pytest.mark.torch
@pytest.mark.kernel(gpu=True)
def test_the_gpu_in_a_kernel(kernel):
    """The context is nobody's, each cell has its own row, and the same cell again has all memory back."""
    kernel.run("import os, torch; environment = dict(os.environ)")
    ran = kernel.run(
        "from ipygpulogger.experiments import IPyExperimentsPytorch\nexp = IPyExperimentsPytorch()"
    )
    assert "\nDevice: ID 0, " in ran.stdout
    assert [list(map(int, row)) for row in GPU.findall(ran.stdout)] == [[0, 0]]
    kernel.run("t = lambda mb: torch.empty(mb << 20, dtype=torch.uint8, device='cuda')")
    ran = kernel.run("x = t(300); y = t(700); del y")
    assert [list(map(int, row)) for row in GPU.findall(ran.stdout)] == [[300, 700]]
    assert kernel.value("exp.data.gpu[:2]") == [300 * MB, 0]
    ran = kernel.run("exp = IPyExperimentsPytorch(cl_compact=True)")
    assert re.search(r"^GPU: +300 +300 MB \(100.00%\)$", ran.stdout, re.MULTILINE)
    assert deleted(ran) == ["t, x"]
    assert kernel.value("exp.data.gpu[:2]") == [0, 0]
    ran = kernel.run("z = torch.empty(40 << 20, dtype=torch.uint8, device='cuda')")
    assert " | GPU: 40/0/" in ran.stdout
    kernel.run("data = exp.finish()")
    assert kernel.value("data.gpu[:2]") == [40 * MB, 40 * MB]
    assert kernel.value("environment == dict(os.environ)")


def test_an_experiment_that_out_holds_goes_on(kernel):
    """Shown as a result, it is held by Out: giving its name away does not end it."""
    kernel.run("exp = IPyExperimentsCPU(cl_enable=False)")
    number = kernel.run("exp").reply["execution_count"]
    ran = kernel.run("exp = IPyExperimentsCPU(cl_enable=False)")
    assert "finished" not in ran.stdout
    state = f"[Out[{number}]._running, exp._running, Out[{number}] is exp]"
    assert kernel.value(state) == [True, True, False]
    kernel.run(f"Out[{number}].finish(); exp.finish(); del exp, Out[{number}], _{number}, _")
