"""The exact size of a failed allocation, where torch's message rounds it to hundredths of a GiB."""

import gc
from types import SimpleNamespace

import pytest
import torch
from memory import MB

from ipygpulogger.owners import oom_asked
from ipygpulogger.owners.exceptions import message_of
from ipygpulogger.owners.oom_asked import exactly_asked_bytes
from ipygpulogger.owners.oom_message import read
from ipygpulogger.sources.torch import Torch

pytestmark = pytest.mark.torch
GPU = {"device": "cuda"}


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(90_001, 1000, device="cuda"))
        self.options = {"size": [8000, MB]}

    def linear(self, x):
        return torch.nn.functional.linear(x, self.weight)

    def product(self, x):
        return x @ self.weight.T

    def from_options(self):
        return torch.empty(self.options["size"], dtype=torch.uint8, device="cuda")


def gpu(size_mb):
    return torch.empty(int(size_mb * 2**20), dtype=torch.uint8, device="cuda")


def wrapped(function, *args, **kwargs):
    return function(*args, **kwargs)


def under_a_device(size_mb):
    with torch.device("cuda"):
        return torch.ones(size_mb << 18)


def on_several_lines(size_mb):
    return [
        torch.zeros(
            (size_mb, 1 << 10),
            dtype=torch.float64, device="cuda",
        )
        for _ in "a"
    ]  # fmt: skip


def floats(*shape):
    return torch.empty(*shape, device="cuda")


CASES = {
    "8000": (lambda: gpu(8000), 8000),
    "8001": (lambda: gpu(8001), 8002),  # torch asks for whole multiples of 2 MB
    "floats": (lambda: torch.ones(8000 << 18, **GPU), 8000),
    "a shape": (lambda: torch.full((4000, 2**20), 1, device="cuda"), 32000),
    "wrapped": (lambda: wrapped(torch.empty, 8000 << 18, dtype=torch.int16, device="cuda"), 4000),
    "in a mode": (lambda: under_a_device(9002), 9002),
    "lines": (lambda: on_several_lines(1_500_000), 11720),
    "arithmetic": (lambda: wrapped(lambda x: x * 2, torch.empty((), **GPU).expand(2002 << 18)), 2002),
    "broadcast": (lambda: wrapped(lambda a, b: a + b, floats(50_001, 1), floats(100_003)), 19076),
    "compared": (lambda: wrapped(lambda x: x > 0, torch.empty((), **GPU).expand(9002 << 20)), 9002),
    "cast": (lambda: wrapped(lambda x: x.double(), torch.empty((), **GPU).expand(4001 << 18)), 8002),
    "linear": (lambda: Layer().linear(floats(50_003, 1000)), 17168),
    "product": (lambda: Layer().product(floats(50_003, 1000)), 17168),
    "options": (lambda: Layer().from_options(), 8000),
    "to the device": (lambda: wrapped(lambda x: x.cuda(), torch.empty(()).expand(9002 << 18)), 9002),
    "joined": (lambda: wrapped(lambda x: torch.cat([x, x]), torch.empty((), **GPU).expand(1501 << 18)), 3002),
    "repeated": (
        lambda: wrapped(lambda x: x.repeat(3, 2), torch.empty((), **GPU).expand(10, 149 << 18)),
        8940,
    ),
}


def failure(make):
    """The error of a process that may reserve little more than a GiB."""
    gc.collect()  # the operands of the test before, which its error holds
    torch.cuda.set_per_process_memory_fraction(0.08)
    try:
        make()
    except torch.OutOfMemoryError as error:
        return error
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    raise AssertionError("it fitted")


@pytest.mark.parametrize("how", CASES)
def test_the_size_is_exact(how):
    """Whatever allocates: the message's figure with all its digits."""
    make, size_mb = CASES[how]
    error = failure(make)
    said = read(message_of(error))
    assert abs(said.asked_bytes - size_mb * MB) <= said.rounding_bytes, message_of(error)
    assert exactly_asked_bytes(said, error, [Torch()]) == size_mb * MB


@pytest.mark.parametrize("how", ["8000", "wrapped", "in a mode", "lines", "linear"])
def test_the_size_is_exact_without_positions(how, monkeypatch):
    """Python 3.10 knows the line of the call only."""
    monkeypatch.setattr(oom_asked, "sys", SimpleNamespace(version_info=(3, 10)))
    make, size_mb = CASES[how]
    error = failure(make)
    assert exactly_asked_bytes(read(message_of(error)), error, [Torch()]) == size_mb * MB


class Theirs(torch.Tensor):
    """A tensor whose code the search must not run."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is not torch.Tensor.mul:
            raise SystemExit
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_is_not_asked():
    """Its shape is read in C."""
    x = torch.empty((), device="cuda").expand(2002 << 18).as_subclass(Theirs)
    error = failure(lambda: torch.Tensor.mul(x, 2))
    assert exactly_asked_bytes(read(message_of(error)), error, [Torch()]) == 2002 * MB


def opaque():
    return 8000 << 18


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(opaque(), device="cuda"),
        lambda: eval("torch.empty(8000 << 18, device='cuda')", {"torch": torch}),  # without source text
        lambda: torch.empty(8000 << 18 if opaque() else 1, device="cuda"),
    ],
)
def test_it_is_unknown_without_running_code(make):
    """Where a function would have to be called, the size is not guessed."""
    error = failure(make)
    said = read(message_of(error))
    assert said.rounding_bytes
    assert exactly_asked_bytes(said, error, [Torch()]) is None


def test_other_figures_do_not_agree():
    """A size computed from the source counts only if the message says the same."""
    error = failure(lambda: gpu(8000))
    said = read(message_of(error))
    for wrong in (said._replace(asked_bytes=said.asked_bytes + 16 * MB), said._replace(asked_bytes=None)):
        assert exactly_asked_bytes(wrong, error, [Torch()]) is None
    assert exactly_asked_bytes(said._replace(rounding_bytes=0), error, [Torch()]) is None
    assert exactly_asked_bytes(said, RuntimeError("no traceback"), [Torch()]) is None
