"""Garbage on a device, where every byte is known."""

import gc
import weakref

import cyclic_programs
import pytest
import torch
from cyclic_programs import live
from memory import MB
from owned import proven

from ipygpulogger import IPyGPULogger
from ipygpulogger.runtime import collector
from ipygpulogger.sources.torch.allocators import Torch

pytestmark = pytest.mark.torch


TORCHS = [Torch().holding]


@pytest.fixture
def run_at(shell, cuda, run, monkeypatch):
    """Runs a cell where a full collection costs so much, and returns its record."""
    shell.user_ns.update(Node=cyclic_programs.Node, torch=torch, gc=gc, MB=MB)

    def run_at(cost_s, source):
        monkeypatch.setattr(collector, "cost_s", lambda: cost_s)
        return run(source)

    return run_at


MAKES = "n = Node(); n.me = n; n.t = torch.empty(50 * MB, dtype=torch.uint8, device='cuda')"
LEAVES = f"def leave():\n    {MAKES}; gc.collect(1); gc.collect(1)\n"


def test_memory_that_no_name_accounts_for_is_collected(run_at):
    """On a device also after a cell that succeeded; its own garbage is in no figure."""
    run_at(0.01, LEAVES)
    record = run_at(0.01, "leave()")
    assert record.gpus[0].consumed_bytes == 0
    assert not record.notes
    record = run_at(100, "leave()")
    assert record.gpus[0].consumed_bytes == 50 * MB
    assert not record.notes
    run_at(100, "import time")
    record = run_at(0.0, "time.sleep(0.001)")
    assert record.notes == ("garbage of earlier cells: \u221250 MB on cuda:0",)


def test_what_is_too_dear_is_said_once(run_at):
    """As of RAM: of the dropped name, and what its tensors hold."""
    run_at(100, MAKES)
    assert run_at(100, "del n").notes == ("n was dropped, its 50 MB are not yet free: %gpulog free",)
    assert run_at(100, "pass").notes == ()
    assert run_at(0.0, "x = [1] * 100_000").notes == ("garbage of earlier cells: \u221250 MB on cuda:0",)


@pytest.mark.parametrize("cost_s", [0.0, 0.01, 100.0])
def test_each_sentence_is_true(run_at, shell, cost_s):
    """Tensors of 1 to 100 MB in cycles: whatever a full collection costs."""
    run_at(cost_s, "pass")

    def make_block(size_bytes):
        return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")

    # A child cannot ask the driver, so the truth is what was waiting at most: all that lives.
    cyclic_programs.check_what_is_said(shell, make_block, 8, lambda: sum(live.values()))


MODULES = [
    "import gc, time, torch; from torch import nn; MB = 2 ** 20",
    """class Block(nn.Module):
    def __init__(self, parent, size):
        super().__init__(); self.parents = [parent]; self.lin = nn.Linear(size, size)
    def forward(self, x): return torch.relu(self.lin(x))
class Net(nn.Module):
    def __init__(self, size=1024, depth=6):
        super().__init__(); self.layers = nn.ModuleList(Block(self, size) for _ in range(depth))
    def forward(self, x):
        for layer in self.layers: x = layer(x)
        return x""",
    "net = Net(); opt = torch.optim.Adam(net.parameters())",
    "for _ in range(3):\n    opt.zero_grad(); net(torch.randn(256, 1024)).sum().backward(); opt.step()",
    "net = Net(); opt = torch.optim.Adam(net.parameters())",
    "losses = [net(torch.randn(256, 1024)).sum() for _ in range(3)]",
    "net.layers[2] = Block(net, 1024)",
    "del net.layers[3:]",
    "hook = net.layers[0].register_forward_hook(lambda m, i, o: None); same = net",
    "net = None",
    "net = Net(); net(torch.randn(3, 4))",
    "del net, same, opt",
    "losses.clear()",
    "time.sleep(8)",
    "nets = [Net() for _ in range(4)]; nets[0].layers[0].parents.append(nets[1])",
    "nets.pop(0); None",
    "del nets",
    "time.sleep(0.5)",
]


@pytest.mark.parametrize("cost_s", [None, 0.0, 0.1, 100.0])
def test_a_notebook_of_modules(shell, monkeypatch, request, capsys, cost_s):
    """On the CPU, where a forked child can tell what a collection frees: every sentence holds."""
    if cost_s is not None:
        monkeypatch.setattr(collector, "cost_s", lambda: cost_s)
        request.getfixturevalue("patient")
    il = IPyGPULogger(report="none").start()
    try:
        said = cyclic_programs.run_checked(shell, il, MODULES)
    finally:
        il.stop()
        shell.user_ns.clear()
        gc.collect()
    assert said or cost_s != 100.0


# -- the proof that a dropped object is garbage: what C++ refers to is reachable --------------------


@pytest.fixture
def quiet(cuda):
    gc.disable()
    yield
    gc.enable()


def test_a_tensor_in_a_cycle(quiet):
    """On any device, a parameter too."""
    on_device = weakref.ref(cyclic_programs.node_of(torch.empty(30 << 18, device="cuda")))
    on_cpu = weakref.ref(cyclic_programs.node_of(torch.nn.Parameter(torch.ones(20 << 18))))
    assert proven(on_device, TORCHS) == {"cuda:0": 30 * MB}
    assert proven(on_cpu, TORCHS) == {"cpu": 20 * MB}
    gc.collect()
    assert proven(on_device, TORCHS) == proven(on_cpu, TORCHS) == {}


@pytest.mark.parametrize(
    "holder",
    [
        lambda value: (value * torch.ones(1, requires_grad=True)).sum(),
        lambda value: value[5:9],
        lambda value: value.numpy(),
    ],
    ids=["a graph in C", "a view", "numpy's array"],
)
def test_what_something_else_holds_is_alive(quiet, holder):
    """The storage stays as long as anything stands on it, though the tensor's object is in a dropped cycle."""
    value = torch.ones(30 << 18)
    held = holder(value)
    root = weakref.ref(cyclic_programs.node_of(value))
    del value
    assert proven(root, TORCHS) == {}
    del held
    assert proven(root, TORCHS) == {"cpu": 30 * MB}
