"""An estimate leaves all as it was, however it ends, and tells the same each time and everywhere."""

import gc
import io
import json
import random
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from estimation import models
from interrupt_injection import SIGNALS, strike
from untouched import Training, difference, forget

from ipygpulogger import estimate, measure

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _forgotten():
    """What a step left in globals is on no device afterwards."""
    yield
    forget()


class Mine(BaseException):
    """Not an Exception, as a KeyboardInterrupt is none."""


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("raises", [None, ValueError, KeyboardInterrupt, Mine])
def test_nothing_changes(cuda, device, raises):
    """No tensor, no module, optimizer, generator, list or global; nothing is allocated, whatever is raised."""
    training = Training(device)
    expected = estimate(training.step, training.words)
    training.raises = error = None if raises is None else raises("mine")
    before = training.state()
    if raises is None:
        found = estimate(training.step, training.words, batch_sizes=[8, 4])
        assert found.to_dict() | {"batches": (), "batched": "", "largest_batch": None} == expected.to_dict()
    else:
        with pytest.raises(raises) as raised:
            estimate(training.step, training.words, batch_sizes=[8, 4])
        assert raised.value is error
        error.__traceback__ = None
    assert not difference(before, training.state())
    training.raises = None
    assert estimate(training.step, training.words) == expected


def test_an_interrupt_changes_nothing(kernel_env):
    """Real signals at random moments: all is as it was, and the next estimate is right."""
    strike(kernel_env, "signals", "estimate", SIGNALS)


ALONE = """
import json, sys
sys.path[:0] = [sys.argv[1]]
import models, torch
from ipygpulogger import estimate
from ipygpulogger.sources.nvidia import driver
from torch.utils.checkpoint import checkpoint

def recomputes(x):  # in the first backward pass of the process
    checkpoint(lambda x: x.exp().sin().cos(), x.cuda(), use_reentrant=False).sum().backward()

first, again = (estimate(recomputes, torch.ones(1 << 20, requires_grad=True)) for _ in range(2))
assert first == again and [row.kind for row in first.at_peak].count("activations"), first.at_peak
step, args = models.mixed_precision("cpu")
found = estimate(step, *args, batch_sizes=[8])
print(json.dumps([found.fits, found.unknown, found.peak_bytes, found.reserved_bytes, len(found.at_peak)]))
assert not torch.cuda.is_initialized()
assert not driver.contexts(), driver.contexts()
"""


@pytest.mark.parametrize("hidden", [False, True])
def test_in_a_process_without_a_context(kernel_env, cuda, hidden):
    """No context is created; where CUDA shows no device whether it fits is not guessed; the figures are the same."""
    env = {**kernel_env, "OMP_NUM_THREADS": "1"} | ({"CUDA_VISIBLE_DEVICES": ""} if hidden else {})
    told = [sys.executable, "-c", ALONE, str(Path(__file__).parent)]
    done = subprocess.run(told, env=env, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    unknown = "CUDA_VISIBLE_DEVICES hides every device from this process" if hidden else ""
    step, args = models.mixed_precision("cpu")
    here = estimate(step, *args)
    figures = [here.peak_bytes, here.reserved_bytes, len(here.at_peak)]
    assert json.loads(done.stdout) == [None if hidden else True, unknown, *figures]


@pytest.mark.parametrize("peak", [False, True])
def test_while_something_is_measured(cuda, peak):
    """Within a measurement the estimate is the same, and the measurement sees nothing of it."""
    training = Training("cuda:0")
    expected = estimate(training.step, training.words)
    with measure(peak=peak) as measured:
        assert estimate(training.step, training.words) == expected
    found = [row for row in measured.at_peak if row.device == "cuda:0"]
    assert {row.place for row in found} <= {"before the cell"}
    assert not any(gpu.consumed_bytes or gpu.peaked_bytes for gpu in measured.gpus)


def test_a_training_in_another_thread(cuda):
    """It goes on, saves and asks for the device as if nothing was estimated, and the estimate is the same."""
    training, errors, rounds, total = Training("cuda:0"), [], [], torch.cuda.mem_get_info()[1]
    expected = estimate(training.step, training.words, capacity="1GB")
    done = threading.Event()
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5)).cuda()
    optimizer = torch.optim.AdamW(net.parameters())

    def one_round():
        net(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.save(net.state_dict(), io.BytesIO())
        stream, kept = torch.cuda.Stream(), torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
        with torch.cuda.device(0), torch.cuda.stream(stream), torch.autocast("cuda"):
            assert torch.cuda.current_stream() == stream and isinstance(stream, torch.cuda.Stream)
        assert torch.cuda.memory_allocated() >= kept.nbytes
        assert (torch.cuda.is_initialized(), torch.cuda.mem_get_info()[1]) == (True, total)
        other = threading.Thread(target=lambda: None)
        other.start()
        other.join()

    def train():
        while not done.is_set():
            try:
                rounds.append(one_round())
            except Exception as error:
                errors.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        found = [estimate(training.step, training.words, capacity="1GB") for _ in range(20)]
    finally:
        done.set()
        thread.join()
    assert not errors
    assert rounds
    assert all(one == expected for one in found)


def test_within_another():
    """An estimate of a function that estimates is refused in one sentence, and the next one is right."""
    training = Training()
    with pytest.raises(RuntimeError, match="one function at a time is estimated"):
        estimate(estimate, training.step, training.words)
    assert estimate(training.step, training.words).peak_bytes


def test_nothing_is_kept(cuda):
    """What was estimated is the user's to free at once, with no garbage collection in between."""
    training = Training()
    estimate(training.step, training.words, batch_sizes=[4])
    kept = weakref.ref(training.model), weakref.ref(training.model.norm.weight)
    training.history.clear()
    forget()
    gc.collect()
    gc.disable()
    try:
        estimate(training.step, training.words, batch_sizes=[4])
        training.optimizer = training.scheduler = training.model = None
        assert [one() for one in kept] == [None, None]
    finally:
        gc.enable()


def test_the_state_that_a_first_step_makes(cuda):
    """The first step tells what the next one begins with; a function that makes two tells nothing more."""
    model = torch.nn.Linear(1024, 1024, device="cuda")
    optimizer = torch.optim.Adam(model.parameters())

    def step(x):
        model(x).sum().backward()
        optimizer.step()

    x = torch.ones(8, 1024, device="cuda")
    first = estimate(step, x)
    assert [note for note in first.notes if note.startswith("The call makes 8 MB of optimizer state")]
    assert not [note for note in estimate(lambda: [step(x) for _ in range(2)]).notes if "state" in note]
    step(x)
    assert not [note for note in estimate(step, x).notes if "optimizer state" in note]


def test_generators_that_the_function_reaches():
    """Those of numpy, of Python and of torch are as they were."""
    makers = np.random.default_rng, np.random.RandomState, random.Random
    held = [make(0) for make in makers]

    def drawn(generators):
        return [generators[0].random(), generators[1].rand(), generators[2].random()]

    estimate(lambda: drawn(held))
    assert drawn(held) == drawn([make(0) for make in makers])
