"""A decorated function that runs out of GPU memory gives it back, to torch and to the device."""

import warnings

import pytest
import torch
from guards import caught
from memory import MB

from ipygpulogger.compat.tracebacks import gpu_mem_restore

pytestmark = pytest.mark.torch


def gpu(size_mb):
    return torch.empty(size_mb * MB, dtype=torch.uint8, device="cuda")


def step(size_mb=2048):
    act = gpu(size_mb)
    return act, gpu(99000)


def closure():
    batch = gpu(2048)

    def loss():
        return batch, gpu(99000)

    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]).step(loss)


class Layer(torch.nn.Module):
    def forward(self, x):
        mid = x.new_empty(1024 * MB)
        return mid, gpu(99000)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", gpu(1024))
        self.layer = Layer()
        self.layer.register_forward_pre_hook(lambda _, args: (args[0].clone(),))

    def forward(self, x):
        return self.layer(x)


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(gpu(1024))
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        mid = gpu(1024)
        return mid, ctx.saved_tensors, gpu(99000 + len(gradient))


WAYS = {
    "a function": step,
    "an optimizer's closure": closure,
    "modules and hooks": lambda: Net()(gpu(128)),
    "a backward pass": lambda: Function.apply(torch.ones(8, device="cuda", requires_grad=True)).backward(
        torch.empty(8, device="cuda")
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_gives_its_memory_back(cuda, shell, way):
    """Torch has none of it any more, nor has the driver, while the exception is still held."""
    before = cuda.dev[0].mine().used
    without = caught(WAYS[way])
    assert torch.cuda.memory_allocated() >= 2048 * MB
    del without
    torch.cuda.empty_cache()
    error = caught(gpu_mem_restore(WAYS[way]))
    assert torch.cuda.memory_allocated() == 0
    assert cuda.dev[0].mine().used == before
    assert error.__traceback__.tb_next is not None


def test_a_failed_assert(cuda, shell):
    """The words are CUDA's; the function's memory is let go, and the user is told to restart."""

    @gpu_mem_restore
    def run():
        act = gpu(2048)
        cuda.fault("cudaStreamSynchronize", 710, count=1)
        return act[:1].cpu()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        error = caught(run)
    assert "device-side assert triggered" in str(error)
    assert ["you must restart the kernel" in str(one.message) for one in said] == [True]
    assert torch.cuda.memory_allocated() == 0
