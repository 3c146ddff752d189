"""What torch's core offers for its compiler to leave a function alone, on stand-ins of its versions."""

from types import SimpleNamespace

import pytest

from ipygpulogger.sources.torch import state


def of_torch(**core):
    """A torch whose core has these functions."""
    return SimpleNamespace(_C=SimpleNamespace(_dynamo=SimpleNamespace(eval_frame=SimpleNamespace(**core))))


def function():
    """It is to run as it is."""


CODE = function.__code__
KINDS = {
    "_FrameAction": SimpleNamespace(SKIP="skip", DEFAULT="default"),
    "_FrameExecStrategy": lambda *both: both,
}


def test_each_version_is_told():
    """torch 2.6 has a function for it; later ones are told to skip the function, but not what it calls."""
    told = []
    assert state.leave_alone(of_torch(skip_code=told.append), function)
    assert told == [CODE]
    later = of_torch(set_code_exec_strategy=lambda *both: told.append(both), **KINDS)
    assert state.leave_alone(later, function)
    assert told[1:] == [(CODE, ("skip", "default"))]


@pytest.mark.parametrize(
    "torch", [of_torch(), of_torch(**KINDS), of_torch(skip_code=lambda: None), SimpleNamespace(_C=None)]
)
def test_a_version_that_cannot_be_told(torch):
    """Without that function, with another one of the name, without a compiler: no, and nothing is raised."""
    assert state.leave_alone(torch, function) is False
