"""The proof that a dropped object is garbage, with tensors: what C++ refers to is reachable."""

import gc
import weakref

import pytest
import torch
from memory import MB

from ipygpulogger.owners.garbage import garbage_below
from ipygpulogger.owners.snapshot import OwnedBlock
from ipygpulogger.sources.torch.allocators import Torch

pytestmark = pytest.mark.torch


class Node:
    def __init__(self, value):
        self.me, self.value = self, value


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
    on_device = weakref.ref(Node(torch.empty(30 << 18, device="cuda")))
    on_cpu = weakref.ref(Node(torch.nn.Parameter(torch.ones(20 << 18))))
    assert found(on_device) == {"cuda:0": 30 * MB}
    assert found(on_cpu) == {"cpu": 20 * MB}
    gc.collect()
    assert found(on_device) == found(on_cpu) == {}


def test_what_a_graph_in_c_saved_is_alive(quiet):
    """A backward node keeps the tensor, whose Python object is in a dropped cycle."""
    value = torch.ones(20 << 18)
    weight = torch.ones(1, requires_grad=True)
    loss = (value * weight).sum()
    root = weakref.ref(Node(value))
    del value
    assert found(root) == {}
    del loss
    assert found(root) == {"cpu": 20 * MB}


def test_a_view_somewhere_is_alive(quiet):
    """The storage stays as long as any tensor stands on it."""
    value = torch.ones(30 << 18)
    part = value[5:9]
    root = weakref.ref(Node(value))
    del value
    assert found(root) == {}
    del part
    assert found(root) == {"cpu": 30 * MB}


def test_numpy_on_a_tensor_s_memory_is_alive(quiet):
    """An array that shares the storage holds it."""
    value = torch.ones(30 << 18)
    shared = value.numpy()
    root = weakref.ref(Node(value))
    del value
    assert found(root) == {}
    del shared
    assert found(root) == {"cpu": 30 * MB}
