"""What `estimate` is asked for: devices, capacities, batch sizes, functions; and one sentence for bad input."""

import functools
from collections import UserDict
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import ipygpulogger
from ipygpulogger.estimation.estimate import (
    Arguments,
    batched,
    capacity_bytes,
    device_index,
    label_of,
    limit_of,
    sizes_of,
)

pytestmark = pytest.mark.torch
GB = 2**30


NO_DEVICES = [
    *[(-1, "'cuda:-1' is not a CUDA device"), (10**30, "is not a CUDA device")],
    *[(one, f"'{one}' is not a CUDA device: give 'cuda:0'") for one in ("cuda:999", "gpu", "cpu")],
    *[(one, f"{one} is not a CUDA device") for one in (None, True, 1.0, ["cuda:0"])],
]


def test_devices(cuda):
    """A device is named as torch names it, or by its index; one sentence says what is wrong with another."""
    for index, devices in enumerate(
        [("cuda:0", "cuda", torch.device("cuda"), 0), ("cuda:1", 1, torch.device("cuda", 1))]
    ):
        assert [device_index(device, torch) for device in devices] == [index] * len(devices)
    for device, says in NO_DEVICES:
        with pytest.raises(ValueError, match=r"cuda|device") as raised:
            device_index(device, torch)
        assert says in str(raised.value) and "\n" not in str(raised.value), device
    assert limit_of(device_index(7, torch), torch).unknown.startswith(
        "cuda:7 is not a device of this machine"
    )


NO_CAPACITIES = ["16", "many", "", "0GB", "-1GB", 0, -5, True, 1.5, [], b"1GB"]
NO_SIZES = [[], 8, "8", None, [0], [-8], [1.5], [True], ["8"], [8, None]]


def test_sizes():
    """A capacity is a size as in a budget, or bytes; each batch size counts once; one sentence says what is wrong."""
    for given, expected in [(None, None), ("16GB", 16 * GB), (" 1.5 gib ", 3 * GB // 2), (512, 512)]:
        assert capacity_bytes(given) == expected
    for given, expected in [
        ([8, 16], (8, 16)),
        (range(1, 4), (1, 2, 3)),
        ((8, 8, 4), (8, 4)),
        (iter([5]), (5,)),
    ]:
        assert sizes_of(given) == expected
    for read, says, values in [(capacity_bytes, "capacity", NO_CAPACITIES), (sizes_of, "batch", NO_SIZES)]:
        for given in values:
            with pytest.raises(ValueError, match=says) as raised:
                read(given)
            assert "\n" not in str(raised.value)


def test_the_room_on_a_device(gpu, cuda):
    """What is free, and the cache of this process; a limit of the user's counts, and the context is made."""
    total = torch.cuda.mem_get_info(0)
    empty = limit_of(0, torch)
    assert (empty.available_bytes, empty.capacity_bytes) == (total[0], gpu.dev[0].total)
    kept = torch.empty(100 << 20, dtype=torch.uint8, device="cuda:0")
    assert limit_of(0, torch).available_bytes == total[0] - (100 << 20)
    del kept  # into the cache
    assert limit_of(0, torch).available_bytes == total[0]
    try:
        torch.cuda.set_per_process_memory_fraction(0.25, 0)
        assert limit_of(0, torch).available_bytes == total[1] // 4
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)
    assert not limit_of(0, torch).note


class Pair(NamedTuple):
    """A batch."""

    images: Any
    labels: Any


X, Y, W = torch.zeros(8, 3), torch.zeros(8), torch.zeros(5, 2)


def named(batch, labels=None, *rest, batch_size=1, **more):
    """A function with every kind of parameter."""


@pytest.mark.parametrize(
    ("args", "kwargs", "shapes", "described"),
    [
        ((Pair(X, {"y": [Y]}),), {}, [(32, 3), (32,)], "the leading dimension 8 of batch"),
        ((W, UserDict(a=X)), {"mask": Y}, [(32, 2), (8, 3), (8,)], "the leading dimension 5 of batch"),
        ((nn.Parameter(W), torch.tensor(1.0), X), {}, [(5, 2), (), (32, 3)],
         "the leading dimension 8 of argument 3"),
        ((W, X), {"batch_size": 8}, [(5, 2), (32, 3), 32], "batch_size and the leading dimension 8 of labels"),
        ((W, X), {"batch_size": 4}, [(5, 2), (8, 3), 32], "batch_size"),
        ((X, Y, X), {}, [(32, 3), (32,), (32, 3)],
         "the leading dimension 8 of batch, labels and argument 3"),
    ],
)  # fmt: skip
def test_what_a_batch_size_replaces(args, kwargs, shapes, described):
    """The leading dimension of the first tensor and of those that share it, or a number named batch_size."""
    found = batched(named, Arguments(args, kwargs), torch)
    assert found.described == described
    again, sizes = found.resized(32)
    leaves = torch.utils._pytree.tree_leaves([*again.args, *again.kwargs.values()])
    leaves = [leaf for one in leaves for leaf in (one.values() if isinstance(one, UserDict) else [one])]
    assert [
        (sizes.get(id(one), one.shape[0]), *one.shape[1:]) if isinstance(one, torch.Tensor) and one.dim() else
        () if isinstance(one, torch.Tensor) else one for one in leaves
    ] == shapes  # fmt: skip


def test_a_resized_tensor_is_like_the_given_one(cuda):
    """It has the same type and need of a gradient, one given twice stays one, and another view its own size."""
    images = torch.zeros(8, 3, dtype=torch.half).requires_grad_()

    def fn(first, others, *, part=images[:2]):
        assert first is others[0] and first.requires_grad and first.dtype is torch.half
        assert len(first) == first.shape[0] and part.shape == (2, 3)
        return first.cuda()

    found = ipygpulogger.estimate(fn, images, [images], batch_sizes=[1 << 20])
    assert (found.peak_bytes, found.batches[0].peak_bytes, images.shape) == (512, 6 << 20, (8, 3))


def test_a_size_that_the_function_does_not_take(cuda, capsys):
    """Its error stands in the place of the figures, which the other sizes have; the given size runs once."""

    def fn(x):
        print(len(x))
        return x.cuda().view(4, -1)

    found = ipygpulogger.estimate(fn, X[:, 0].contiguous(), batch_sizes=[1 << 20, 3, 8])
    assert [one.peak_bytes for one in found.batches] == [4 << 20, None, found.peak_bytes]
    assert [one.error.partition(":")[0] for one in found.batches] == ["", "RuntimeError", ""]
    assert capsys.readouterr().out.split().count("8") == 1


def test_nothing_to_replace():
    """What cannot be varied is refused in one sentence."""
    for args in [(), ("x", 1, 2), (None, 7), (True,), (torch.tensor(1.0),), (nn.Linear(2, 2),)]:
        with pytest.raises(ValueError, match="batch_sizes can only vary what fn is called with"):
            batched(print, Arguments(args, {}), torch)


async def coroutine(x):
    """Not run by a call."""


def generator(x):
    """Not run by a call."""
    yield x


class Called:
    """An object that is called."""

    async def __call__(self, x):
        """Not run by a call."""


NOT_CALLED = [
    (5, (), "not 5: write estimate(step, batch), not estimate(step(batch))"),
    (torch.zeros(3), (), "takes a function"),
    (coroutine, (1,), "coroutine is a coroutine function"),
    (Called(), (1,), "Called is a coroutine function"),
    (functools.partial(generator, 1), (), "give estimate a function that runs when it is called"),
    (lambda: 0, (1,), "takes 0 positional arguments but 1 was given"),
]


def test_what_cannot_be_called():
    """One sentence says why a function cannot be estimated."""
    for fn, args, says in NOT_CALLED:
        with pytest.raises(TypeError) as raised:
            ipygpulogger.estimate(fn, *args)
        assert says in str(raised.value) and "\n" not in str(raised.value)


def test_labels():
    """A function is called as it is named, whatever wraps it."""

    def inner():
        pass

    layer, wrapped = nn.Linear(1, 1), functools.partial(functools.partial(inner), 1)
    named = inner, wrapped, layer, layer.forward, lambda: 0, torch.matmul
    assert [*map(label_of, named)] == ["inner", "inner", "Linear", "Linear.forward", "<lambda>", "matmul"]


def test_a_module_is_called_as_its_forward(cuda):
    """Its arguments have the names that `forward` gives them."""
    found = ipygpulogger.estimate(nn.Linear(64, 64), torch.zeros(4, 64), batch_sizes=[8])
    assert found.batched == "the leading dimension 4 of input"
    assert {row.name for row in found.at_peak if row.kind == "variables"} >= {"input"}


def test_nothing_on_the_device(cuda):
    """A function that has nothing there is not said to fit without a word."""
    found = ipygpulogger.estimate(lambda: 5)
    assert (found.peak_bytes, found.fits) == (0, True)
    assert found.notes == ("No tensor of the function is on cuda:0, and it moves none there.",)
