"""The scope that the callbacks of training frameworks hold: begun, ended, dropped, copied, never outliving its call."""

import copy
import pickle

import pytest
from memory import Block

from ipygpulogger.blocks.epoch_scope import EpochScope, caller
from ipygpulogger.engine.machine import machine
from ipygpulogger.engine.scope import Scope


def nothing_left():
    return not machine().scopes


class Stop(Exception):
    """Ends a loop."""


def test_the_end_of_nothing_is_nothing():
    """An epoch that never began has no figures, and dropping it is no error."""
    scope = EpochScope()
    assert scope.end("epoch 0") is None
    scope.drop()
    assert not scope.is_open()


def test_beginning_again_drops_the_first():
    """A second begin, after a fit that died, measures from there and leaves no other scope."""
    scope = EpochScope()
    scope.begin()
    block = Block(64)
    scope.begin()
    assert len(machine().scopes) == 1
    figures = scope.end("epoch 0").memory()
    assert max(map(abs, figures)) <= 2, "the block is in the first"
    block.free()
    assert nothing_left()


def training(scope, error):
    scope.within(caller(__name__, "training"))
    scope.begin()
    raise error


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
@pytest.mark.parametrize("then", ["scope", "tick", "end", "dropped", "again"])
def test_no_epoch_outlives_its_call(error, then):
    """A training that died without a word: the next scope, the sampler's tick, or the callback's end closes it."""
    scope = EpochScope()
    with pytest.raises(error):
        training(scope, error)
    if then == "scope":
        Scope().open().close()
    elif then == "tick":
        machine().sample()
    elif then == "end":
        assert scope.end("epoch 0") is None
    elif then == "dropped":
        del scope
    else:
        with pytest.raises(error):
            training(scope, error)
        scope.within(None)
    assert nothing_left()


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda scope: pickle.loads(pickle.dumps(scope))]
)
def test_a_copy_measures_nothing(copied):
    """An open epoch does not stand in the way of copying its callback, and stays with the original."""
    scope = EpochScope()
    scope.within(caller(__name__, "test_a_copy_measures_nothing"))
    scope.begin()
    other = copied(scope)
    assert not other.is_open()
    assert other.end("epoch 0") is None
    assert scope.end("epoch 0").label == "epoch 0"
    scope.within(None)


def test_the_nearest_call_is_found():
    """The caller is the innermost call of that name in that package, and of no other package."""

    def fit(depth):
        frame = caller(__name__, "fit")
        assert frame.f_locals["depth"] == depth
        if depth < 2:
            fit(depth + 1)
        assert caller("somewhere.else", "fit") is None
        assert caller(__name__[:-1], "fit") is None
        assert caller(__name__, "transform") is None
        assert caller(__name__, "transform", "test_the_nearest_call_is_found", "fit") is frame

    fit(0)


@pytest.mark.parametrize("device", ["cpu", None, "cuda:0", "cuda", "cuda:1", "mps:0"])
def test_without_a_device_its_figures_are_0(device):
    """Where there is no accelerator, whatever a framework says it trains on, the GPU figures are 0."""
    scope = EpochScope()
    scope.begin()
    assert scope.end("epoch 0", device).memory()[2:] == (0, 0)


@pytest.mark.torch
def test_an_interrupted_fit_leaves_torch_alone(cuda):
    """An epoch whose framework says nothing when it dies is over at the sampler's next look."""
    import torch

    reads, scope = torch._C._cuda_memoryStats, EpochScope()
    with pytest.raises(KeyboardInterrupt):
        training(scope, KeyboardInterrupt)
    machine().sample()
    assert nothing_left()
    assert torch._C._cuda_memoryStats is reads
