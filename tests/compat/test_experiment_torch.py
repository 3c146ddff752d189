"""Experiments with torch on the simulated GPU: its figures are exact, to the byte."""

import random
import re
import subprocess
import sys

import pytest
import torch
from experiment_rig import run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory import MB

from ipygpulogger.experiments import IPyExperimentsCPU, IPyExperimentsPytorch

pytestmark = pytest.mark.torch

ROW = re.compile(r"^･ GPU: ([ \d,-]{10}) ([ \d,]{10}) ([ \d,]{10}) MB \|(.*)$", re.MULTILINE)
STATE = re.compile(r"^GPU: +([\d,]+) +([\d,]+) +([\d,]+) MB +([\d.]+)% $", re.MULTILINE)
MEMORY = re.compile(r"^GPU: +(-?[\d,]+) +(-?[\d,]+) MB \(([ \d.]+%|    n/a)\)$", re.MULTILINE)
BANNER = "\n*** Experiment started with the Pytorch backend\nDevice: ID {index}, {name} ({total} RAM)\n\n"


def tensor(size_mb, device="cuda"):
    return torch.empty(size_mb * MB, dtype=torch.uint8, device=device)


def figures(match):
    return tuple(int(figure.replace(",", "")) for figure in match.groups()[:3])


@pytest.fixture
def shell(shell, cuda):
    """The shell with these names."""
    shell.user_ns.update(X=IPyExperimentsPytorch, CPU=IPyExperimentsCPU, torch=torch, tensor=tensor)
    yield shell
    torch.cuda.set_device(0)


@pytest.fixture
def exp(shell, capsys):
    exp = IPyExperimentsPytorch(cl_enable=False)
    capsys.readouterr()
    return exp


def used_mb(cuda, index=0):
    """What is not free of the whole device, as the simulated driver knows it."""
    device = cuda.dev[index]
    return sum(p.used for p in device.proc if p.kind) // MB + device.base_used // MB + device.reserved // MB


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(neighbour_bytes=st.integers(0, 10 << 30))
def test_the_three_add_up(shell, cuda, capsys, neighbour_bytes):
    """What is printed and returned as used is what is not free: the driver's own share is part of it."""
    cuda.dev[0].base_used = neighbour_bytes
    run(shell, "exp = X()")
    out = capsys.readouterr().out
    used, free, total = figures(next(STATE.finditer(out)))
    assert used + free == total == 16384
    assert figures(ROW.search(out))[2] == used
    exact_bytes = cuda.dev[0].total - torch.cuda.mem_get_info(0)[0]
    assert shell.user_ns["exp"].cl.data.gpu.used_total == exact_bytes
    shell.user_ns.pop("exp").finish()
    capsys.readouterr()


@pytest.mark.parametrize("ends", [["exp.cl.stop()"], ["other.finish();", "exp.finish();"]])
def test_the_state_knows_the_whole_device_whoever_stopped(shell, cuda, capsys, ends):
    """After any stop, with or without one: the total is the device's, the driver's own share is in use."""
    run(shell, "exp = other = None; exp = X(); other = CPU()")
    for end in ["pass", *ends]:
        run(shell, end)
        capsys.readouterr()
        run(shell, "exp.print_state()")
        used_and_free = used_mb(cuda), 16384 - used_mb(cuda), 16384
        assert figures(STATE.search(capsys.readouterr().out)) == used_and_free
    run(shell, "exp.finish(); other.finish()")
    capsys.readouterr()


def test_a_whole_experiment(shell, cuda, capsys):
    """Banner, rows and end: what the tensors are, what the device holds, what came back."""
    run(shell, "exp = X()")
    out, at_rest = capsys.readouterr().out, used_mb(cuda)
    assert out.startswith(BANNER.format(index=0, name=torch.cuda.get_device_name(0), total=16384))
    (state,) = STATE.finditer(out)
    assert figures(state) == (at_rest, torch.cuda.mem_get_info(0)[0] // MB, 16384)
    assert figures(ROW.search(out)) == (0, 0, at_rest)
    for code, consumed, peaked, used in [
        ("x = tensor(300); y = tensor(700); del y", 300, 700, 300),
        ("t = tensor(2000); del t", 0, 2000, 300),
        ("x = tensor(100)", -200, 100, 100),
        ("z = tensor(50); exp.keep_var_names('z')", 50, 0, 150),
    ]:
        run(shell, code)
        assert figures(ROW.search(capsys.readouterr().out)) == (consumed, peaked, at_rest + used)
    assert shell.user_ns["exp"].data.gpu[:2] == (150 * MB, 0)
    run(shell, "exp.finish();")
    out = capsys.readouterr().out
    assert MEMORY.search(out).groups() == ("150", "100", " 66.67%")
    assert figures(STATE.search(out))[0] == at_rest + 50
    assert shell.user_ns["exp"].data.gpu[:2] == (150 * MB, 100 * MB)
    assert torch.cuda.memory_allocated() == 50 * MB


SIZE = st.integers(1, 20).map(lambda size: 2 * size)  # blocks that torch need not round up
SIZES = st.lists(SIZE, max_size=5)


@given(SIZES, SIZES, SIZES, st.just(0) | SIZE)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_consumed_and_reclaimed_are_exact(shell, capsys, deleted, kept, hidden, transient):
    """Consumed is what lives at the end, reclaimed what no kept name and no underscore holds; to the byte."""
    names = shell.user_ns
    for name in [name for name in names if re.fullmatch(r"(d|k|_h)\d", name)]:
        del names[name]  # the last example's
    exp = IPyExperimentsPytorch(cl_enable=False)
    for kind, sizes in (("d", deleted), ("k", kept), ("_h", hidden)):
        names.update({f"{kind}{i}": tensor(size) for i, size in enumerate(sizes)})
    exp.keep_var_names(*(name for name in names if name.startswith("k")))
    if transient:
        tensor(transient)
    alive = sum(deleted) + sum(kept) + sum(hidden)
    free_bytes, _ = torch.cuda.mem_get_info()
    cached_bytes = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    assert exp.data.gpu == (alive * MB, 0, free_bytes + cached_bytes)
    final = exp.finish().gpu
    assert final[:2] == (alive * MB, sum(deleted) * MB)
    assert torch.cuda.memory_allocated() == (sum(kept) + sum(hidden)) * MB
    capsys.readouterr()


def test_a_neighbour_is_not_the_experiment(shell, cuda, exp):
    """What another process takes is neither consumed nor given back, but it is not available."""
    before = exp.data.gpu.available
    cuda.dev[0].add_process(4242, 1024 * MB)
    assert exp.data.gpu == (0, 0, before - 1024 * MB)
    assert exp.finish().gpu[:2] == (0, 0)


def test_the_device_that_is_current_at_the_beginning(shell, cuda, capsys):
    """Only that one is told of, whatever becomes current later."""
    torch.cuda.set_device(1)
    torch.cuda.synchronize()
    run(shell, "exp = X()")
    name = torch.cuda.get_device_name(1)
    assert capsys.readouterr().out.startswith(BANNER.format(index=1, name=name, total=16384))
    at_rest = used_mb(cuda, 1)
    run(shell, "torch.cuda.set_device(0); x = tensor(300); y = tensor(70, 'cuda:1')")
    assert figures(ROW.search(capsys.readouterr().out)) == (70, 0, at_rest + 70)
    exp = shell.user_ns["exp"]
    assert exp.data.gpu.consumed == exp.cl.data.gpu.used_delta == 70 * MB
    assert exp.finish().gpu[:2] == (70 * MB, 70 * MB)
    assert torch.cuda.memory_allocated(0) == 0


def test_seeds(shell, capsys):
    """Each cell begins with the seed on every device; cuDNN is deterministic."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = False, True
    try:
        run(shell, "exp = X(cl_set_seed=11)\nkept = []")
        assert (cudnn.deterministic, cudnn.benchmark) == (True, False)
        draw = "kept.append((torch.rand(1).item(), __import__('random').random()))"
        for code in (draw, "torch.rand(3)", draw):
            run(shell, code)
        assert torch.initial_seed() == torch.cuda.default_generators[1].initial_seed() == 11
        first, again = shell.user_ns["kept"]
        torch.manual_seed(11)
        random.seed(11)
        assert first == again == (torch.rand(1).item(), random.random())
        run(shell, "exp.finish();")
    finally:
        cudnn.deterministic, cudnn.benchmark = before


EXPERIMENT = """
import os
before = set(os.environ)
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("from ipygpulogger.experiments import IPyExperimentsPytorch; exp = IPyExperimentsPytorch()", store_history=True)
shell.run_cell("x = 1", store_history=True)
exp = shell.user_ns["exp"]
print("data", tuple(exp.data.gpu), tuple(exp.cl.data.gpu))
print("final", tuple(exp.finish().gpu)[:2])
print("environment", sorted(name for name in set(os.environ) - before if "GPULOG" in name))
"""


@pytest.mark.parametrize("kind", ["a GPU", "no driver", "hidden"])
def test_in_a_process_of_its_own(kernel_env, driverless_env, kind):
    """The constructor imports torch and makes the context, of which nothing is consumed.

    Without a GPU the banner says so, there is no GPU row, and its figures are 0.
    """
    hidden = {**kernel_env, "CUDA_VISIBLE_DEVICES": ""}
    env = {"no driver": driverless_env, "hidden": hidden}.get(kind, kernel_env)
    command = [sys.executable, "-c", EXPERIMENT]
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    assert "final (0, 0)\n" in out
    assert "environment []\n" in out
    assert "\nCPU:" in out
    if kind != "a GPU":
        assert "\nDevice: none that can be used, RAM only\n" in out
        assert "GPU:" not in out
        assert "data (0, 0, 0) (0, 0, 0)\n" in out
        return
    assert "Device: ID 0, " in out
    found = re.search(r"^data \((\d+), 0, (\d+)\) \((-?\d+), (\d+), (\d+)\)$", out, re.MULTILINE)
    consumed, available, delta, peaked, used = map(int, found.groups())
    assert (consumed, delta, peaked) == (0, 0, 0)
    assert used >= 500 * MB
    assert available > 10000 * MB
