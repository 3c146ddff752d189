"""`doctor --verify --estimate`: an estimate is held to what it promises, and its error is shown where it promises nothing."""

import sys

import pytest

from ipygpulogger.estimation.kernels import Kernels
from ipygpulogger.verify import estimates
from ipygpulogger.verify.check import Figure, Unchecked

MB = 2**20


def found():
    (check,) = estimates.checks()
    return list(check.found())


@pytest.fixture
def device(cuda, monkeypatch):
    """The simulated device has no cuDNN, and computes nothing."""
    import torch

    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    yield cuda.dev[0]
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (0, 0)


@pytest.fixture
def one(monkeypatch):
    """Of the five models one alone."""
    return lambda name: monkeypatch.setattr(estimates, "_MODELS", {name: estimates._MODELS[name]})


def test_without_torch_or_a_device(monkeypatch):
    """One sentence says what is needed, and names a command."""
    monkeypatch.setitem(sys.modules, "torch", None)
    (unchecked,) = found()
    assert isinstance(unchecked, Unchecked)
    assert "ipygpulogger doctor" in unchecked.reason


@pytest.mark.torch
def test_without_a_cache(device, one, monkeypatch):
    """Then torch counts nothing: the same sentence, and no model is run."""
    one("embedding")
    monkeypatch.setattr(estimates.torch_state, "caches", lambda: False)
    (unchecked,) = found()
    assert isinstance(unchecked, Unchecked)
    assert "its cache" in unchecked.reason


@pytest.mark.torch
def test_five_models(device):
    """Exact where nothing is left out; else about, beside what was needed; the user's random numbers stay."""
    import torch

    before = torch.get_rng_state(), torch.cuda.get_rng_state()
    figures = {figure.case.partition(":")[0]: figure for figure in found()}
    labels = {name: figure.label for name, figure in figures.items()}
    exact = dict.fromkeys(("MLP", "attention", "embedding"), "exact")
    assert labels == exact | dict.fromkeys(("convolution", "LSTM"), "about")
    for name, figure in figures.items():
        lo, hi = figure.truth
        assert 50 * MB < lo == hi < estimates._MOST_BYTES, name
        assert not figure.is_wrong
        assert name not in exact or figure.lo == lo
    assert all(map(torch.equal, before, (torch.get_rng_state(), torch.cuda.get_rng_state())))


@pytest.mark.torch
def test_a_wrong_estimate_is_noticed(device, one, monkeypatch):
    """What is left out without a note makes the figure wrong; with settings of the user's it promises nothing."""
    one("MLP")
    monkeypatch.setattr(Kernels, "_use_cublas", lambda *_: None)
    (figure,) = found()
    assert figure.is_wrong
    assert (figure.label, figure.what, figure.where) == ("exact", "needed, estimated", "cuda:0")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    (figure,) = found()
    assert (figure.label, figure.is_wrong) == ("about", False)


@pytest.mark.torch
def test_what_is_free_is_enough(device, one):
    """A tenth of the device stays free: else the model is not run and the reason said."""
    one("embedding")
    device.base_used = int(0.9 * device.total) - device.reserved - device.mine().used - estimates._MOST_BYTES
    device.mine().peak = 0
    (figure,) = found()
    assert isinstance(figure, Figure) and figure.lo == figure.truth[0]
    assert device.base_used + device.mine().peak + device.reserved <= 0.9 * device.total
    device.base_used += 500 * MB
    (unchecked,) = found()
    assert "nvidia-smi" in unchecked.reason


@pytest.mark.torch
def test_a_model_that_does_not_run(cuda, one):
    """A broken library is no wrong estimate: it is said, and the other models run."""
    one("convolution")
    (unchecked,) = found()
    assert "does not run: cuDNN" in unchecked.reason
