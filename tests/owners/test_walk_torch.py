"""Who holds torch's memory: models, gradients, optimizers, views; counted once, without a warning."""

import warnings

import pytest
import torch

from ipygpulogger.owners.attribution import Root
from ipygpulogger.owners.walk import walk
from ipygpulogger.sources.torch.allocators import Torch

pytestmark = pytest.mark.torch


def held(names):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns whoever reads `.grad` of an intermediate result
        roots = [Root(name, "variable", value) for name, value in names.items()]
        found = walk(roots, [Torch().holding], budget_s=60)
    assert found.complete
    return {owner.name: owner.size_bytes for owner in found.owners if owner.device == "cuda:0"}


def floats(*shape, **how):
    return torch.empty(*shape, device="cuda", **how)


def fill(model):
    """As after a step: gradients and an optimizer's two moments; no kernel need run."""
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
        state = optimizer.state[parameter]
        state["exp_avg"], state["exp_avg_sq"] = torch.empty_like(parameter), torch.empty_like(parameter)
    return optimizer


def model(layers=4):
    net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(layers)])
    net.register_buffer("table", torch.empty(1000))
    net[0].weight = net[1].weight  # tied
    return net.to("cuda")


def test_model_gradients_and_optimizer(cuda):
    """Parameters, buffers and gradients are the model's, the moments the optimizer's, to the byte."""
    net = model()
    optimizer = fill(net)
    weights = sum(p.nbytes for p in net.parameters())
    assert held({"net": net, "optimizer": optimizer}) == {"net": 2 * weights + 4000, "optimizer": 2 * weights}
    assert held({"optimizer": optimizer, "net": net}) == {"optimizer": 4 * weights, "net": 4000}


def test_subclasses_and_attributes(cuda):
    """A subclass, and what hangs on a tensor as an attribute."""

    class Mine(torch.Tensor):
        def __getattr__(self, name):
            raise AttributeError(name)

    tensor = floats(1 << 10).as_subclass(Mine)
    tensor.extra = floats(1 << 11)
    assert held({"a": tensor}) == {"a": (4 << 10) + (4 << 11)}


def test_sparse_meta_and_fake(cuda):
    """What has no storage of its own is passed over; its neighbours are not."""
    indices = torch.zeros((2, 3), dtype=torch.int64)
    sparse = torch.sparse_coo_tensor(indices, torch.ones(3), (5, 5), check_invariants=True)
    assert held({"a": [sparse, torch.empty(5, device="meta"), floats(1 << 10)]}) == {"a": 4 << 10}
