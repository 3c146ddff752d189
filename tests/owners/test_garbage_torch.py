"""Garbage on a device, where every byte is known."""

import gc
import weakref

import cyclic_programs
import pytest
import torch
from cyclic_programs import live
from memory import MB

from ipygpulogger import IPyGPULogger
from ipygpulogger.owners import garbage, growth
from ipygpulogger.owners.garbage import garbage_below
from ipygpulogger.owners.growth import OwnedBlock
from ipygpulogger.runtime import collector
from ipygpulogger.sources.torch.allocators import Torch

pytestmark = pytest.mark.torch


@pytest.fixture
def run(shell, cuda, monkeypatch, capsys):
    """Runs a cell at a cost, and returns its record."""
    monkeypatch.setattr(growth, "BUDGET_S", 10)
    monkeypatch.setattr(garbage, "_LOOK_S", 10)
    monkeypatch.setattr(garbage, "_PROOF_S", 10)
    shell.user_ns.update(Node=cyclic_programs.Node, torch=torch, gc=gc, MB=MB)
    il = IPyGPULogger(report="none").start()

    def run(source, cost_s):
        monkeypatch.setattr(collector, "cost_s", lambda: cost_s)
        shell.run_cell(source, store_history=True)
        return il.record

    yield run
    il.stop()
    shell.user_ns.clear()


MAKES = "n = Node(); n.me = n; n.t = torch.empty(50 * MB, dtype=torch.uint8, device='cuda')"
LEAVES = f"def leave():\n    {MAKES}; gc.collect(1); gc.collect(1)\n"


def test_memory_that_no_name_accounts_for_is_collected(run):
    """On a device also after a cell that succeeded; its own garbage is in no figure."""
    run(LEAVES, 0.01)
    record = run("leave()", 0.01)
    assert record.gpus[0].consumed_bytes == 0
    assert not record.notes
    record = run("leave()", 100)
    assert record.gpus[0].consumed_bytes == 50 * MB
    assert not record.notes
    run("import time", 100)
    record = run("time.sleep(0.001)", 0.0)
    assert record.notes == ("garbage of earlier cells: \u221250 MB on cuda:0",)


def test_what_is_too_dear_is_said_once(run):
    """As of RAM: of the dropped name, and what its tensors hold."""
    run(MAKES, 100)
    assert run("del n", 100).notes == ("n was dropped, its 50 MB are not yet free: %gpulog free",)
    assert run("pass", 100).notes == ()
    assert run("x = [1] * 100_000", 0.0).notes == ("garbage of earlier cells: \u221250 MB on cuda:0",)


@pytest.mark.parametrize("cost_s", [0.0, 0.01, 100.0])
def test_each_sentence_is_true(run, shell, monkeypatch, cost_s):
    """Tensors of 1 to 100 MB in cycles: whatever a full collection costs."""
    run("pass", cost_s)

    def make_block(size_bytes):
        return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")

    waits = []

    def collectable_bytes():
        """A child cannot ask the driver, so the truth is what was waiting at most: all that lives."""
        waits.append(1)
        return sum(live.values())

    cyclic_programs.check_what_is_said(shell, make_block, 8, collectable_bytes)
    assert waits


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
def test_a_notebook_of_modules(shell, monkeypatch, capsys, cost_s):
    """On the CPU, where a forked child can tell what a collection frees: every sentence holds."""
    if cost_s is not None:
        monkeypatch.setattr(collector, "cost_s", lambda: cost_s)
        for of, budget in ((growth, "BUDGET_S"), (garbage, "_LOOK_S"), (garbage, "_PROOF_S")):
            monkeypatch.setattr(of, budget, 10)  # what a slow machine needs
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


class Any_:
    """Every key is that of a large block which the name held."""

    def get(self, key):
        return OwnedBlock("name", "variable", key[0], 1 << 40, ())


def found(root):
    return {
        block.device: block.size_bytes
        for block in garbage_below([root], Any_(), [Torch().holding], 60).values()
    }


def test_a_tensor_in_a_cycle(quiet):
    """On any device, a parameter too."""
    on_device = weakref.ref(cyclic_programs.node_of(torch.empty(30 << 18, device="cuda")))
    on_cpu = weakref.ref(cyclic_programs.node_of(torch.nn.Parameter(torch.ones(20 << 18))))
    assert found(on_device) == {"cuda:0": 30 * MB}
    assert found(on_cpu) == {"cpu": 20 * MB}
    gc.collect()
    assert found(on_device) == found(on_cpu) == {}


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
    assert found(root) == {}
    del held
    assert found(root) == {"cpu": 30 * MB}
