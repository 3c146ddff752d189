"""What is asked of torch, on stand-ins of its versions: to leave a function alone, and the allocator's snapshot."""

import pickle
from types import SimpleNamespace

import pytest

from ipygpulogger.sources.torch import snapshot, state


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


@pytest.mark.parametrize("error", state.TORCH_ERRORS)
def test_an_allocator_without_a_name(error):
    """A sentence says that there is no history, and nothing is raised."""

    def refuse():
        raise error("no such build")

    memory = SimpleNamespace(get_allocator_backend=refuse)
    why = snapshot.why_not(SimpleNamespace(cuda=SimpleNamespace(memory=memory)))
    assert why == "torch does not name its allocator: no such build"


def test_what_a_snapshot_has():
    """The blocks that are allocated, on all devices, and the events but for the one of the snapshot itself."""
    states = [
        ["active_allocated", "inactive"],
        ["active_pending_free", "active_allocated", "active_allocated"],
    ]
    actions = [["alloc", "free_requested", "snapshot"], [], ["alloc", "snapshot"]]
    found = {
        "segments": [{"blocks": [{"state": one} for one in each]} for each in states],
        "device_traces": [[{"action": one} for one in each] for each in actions],
    }
    file = snapshot.file_of(found)
    assert (file.blocks, file.events) == (3, 3)
    assert pickle.loads(file.content) == found
    assert snapshot.file_of(found, has_events=False).events is None
