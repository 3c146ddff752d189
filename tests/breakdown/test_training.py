"""Watching training changes nothing for the user: results, errors, warnings, what runs, and what is left."""

import gc
import sys
import threading
import warnings

import pytest

pytestmark = pytest.mark.torch

import torch  # noqa: E402 - where it is not, this file is not opened
from torch.autograd import _engine_run_backward as torchs_own  # noqa: E402
from torch.optim import optimizer as optimizers  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from ipygpulogger.breakdown.training import Training  # noqa: E402


@pytest.fixture
def watched(cuda):
    """A watch on training; afterwards torch is as it was."""
    hooks = [dict(optimizers._global_optimizer_pre_hooks), dict(optimizers._global_optimizer_post_hooks)]
    training = Training()
    training.begin(training)
    assert torch.autograd._engine_run_backward is not torchs_own
    yield training
    for user in list(training._users):
        training.end(user)
    assert torch.autograd._engine_run_backward is torchs_own
    assert [optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks] == hooks


class Doubled(torch.autograd.Function):
    """A function with Python code on the way back, and a pass within the pass."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.mask = x > 0
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            (again,) = torch.autograd.grad((inner * 2).sum(), inner)
        return gradient * again * ctx.mask.logical_or(~ctx.mask)


def leaf():
    torch.manual_seed(0)
    return torch.randn(4, 3, requires_grad=True)


def twice(x):
    loss = (x.sin() ** 2).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return x.grad


def second_order(x):
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    first.sum().backward()
    return x.grad


def batched(x):
    y = x * x
    return torch.autograd.grad(y, x, torch.eye(12).reshape(12, 4, 3), is_grads_batched=True)[0]


def checkpointed(x, *, reentrant):
    checkpoint(lambda h: h.sin() * h, x, use_reentrant=reentrant).sum().backward()
    return x.grad


def from_an_edge(x):
    edge = torch.autograd.graph.get_gradient_edge((x * x).sum())
    return torch.autograd.grad(edge, x, torch.ones(()))[0]


def packed(x):
    calls = []
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda t: calls.append("pack") or t, lambda t: calls.append("unpack") or t
    )
    with hooks:
        loss = (x.sin() * x).sum()
    loss.backward()
    assert sorted(calls) == ["pack"] * 3 + ["unpack"] * 3
    return x.grad


RUNS = {
    "twice": twice,
    "second order": second_order,
    "batched": batched,
    "checkpointed": lambda x: checkpointed(x, reentrant=False),
    "checkpointed, reentrant": lambda x: checkpointed(x, reentrant=True),
    "Function": lambda x: Doubled.apply(x.sin()).sum().backward() or x.grad,
    "an edge": from_an_edge,
    "packed": packed,
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_results_are_the_same(run, request):
    """And nothing warns."""
    bare = run(leaf())
    training = request.getfixturevalue("watched")
    training._devices.add(0)  # as if memory of the GPU was seen, so that every pass is kept
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(run(leaf()), bare)
    assert training.end(training).passes


def test_the_users_code_of_a_subclass_does_not_run(watched):
    """Not the torch function of a tensor's class."""
    asked = []

    class Telling(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            asked.append(getattr(function, "__name__", function))
            return super().__torch_function__(function, types, args, kwargs)

    def run():
        asked.clear()
        x = leaf().detach().as_subclass(Telling).requires_grad_()
        (x * x).sum().backward()
        return list(asked)

    seen = run()
    watched.end(watched)
    assert run() == seen


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_errors_pass_through(kind, watched):
    """The same object, and one frame of ours, which IPython and pytest hide."""
    x, error = leaf(), kind("from a hook")

    def fails(_):
        raise error

    y = x * 2
    y.register_hook(fails)
    with pytest.raises(kind) as caught:
        y.sum().backward()
    assert caught.value is error
    ours = [
        one for one in caught.traceback if "ipygpulogger" in str(one.path) and "tests" not in str(one.path)
    ]
    assert len(ours) == 1
    assert ours[0].locals["__tracebackhide__"]
    (x * 2).sum().backward()
    assert x.grad is not None


def test_our_own_failures_do_not_reach_the_user(watched, monkeypatch):
    """A walk that fails, a position that cannot be read, an optimizer that is unlike others."""
    watched._devices.add(0)

    def fails(*_, **__):
        raise RuntimeError("ours")

    x = leaf()
    for name in ("_walk", "_positions"):
        monkeypatch.setattr(watched, name, fails)
        (x * 2).sum().backward()
    optimizer = torch.optim.SGD([x], lr=0.1, momentum=0.9)
    monkeypatch.setattr(watched._values, "of_optimizer", fails)
    optimizer.step()
    assert not watched.end(watched).passes


def test_recordings_that_overlap_share_one_watch(watched):
    """The first that ends sees what it needs; the last takes everything off."""
    watched._devices.add(0)
    (leaf() * 2).sum().backward()
    watched.begin("another")
    assert len(watched.end("another").passes) == 1
    assert not watched.end("another").passes
    (leaf() * 2).sum().backward()
    assert torch.autograd._engine_run_backward is not torchs_own
    assert len(watched.end(watched).passes) == 2
    assert torch.autograd._engine_run_backward is torchs_own
    assert not watched.end(watched).passes


def test_passes_of_many_threads_at_once(watched, restless):
    """Each is kept, with the line that waited for it."""
    watched._devices.add(0)

    def work():
        for _ in range(20):
            (leaf() * 2).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    passes = watched.end(watched).passes
    assert len(passes) == 80
    assert {one.stack[-1][2] for one in passes} == {"work"}
    assert all(one.end for one in passes)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
def test_the_compiler_leaves_us_alone(watched):
    """It compiles as many graphs as without us, and none of our code."""
    from torch._dynamo import utils

    x = leaf()
    optimizer = torch.optim.SGD([x], lr=0.1)

    def step():
        (x * x).sum().backward()
        optimizer.step()

    def graphs():
        torch._dynamo.reset()
        utils.counters.clear()
        compiled = torch.compile(step, backend="eager")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own
            for _ in range(3):
                compiled()
        return utils.counters["stats"]["unique_graphs"], sorted(utils.counters["graph_break"])

    seen = graphs()
    watched.end(watched)
    assert graphs() == seen
    torch._dynamo.reset()


def test_looking_at_a_graph_starts_no_garbage_collection(watched):
    """It creates more containers than the user's step does."""
    within = []

    def collecting(phase, _):
        frame, names = sys._getframe(), set()
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        within.append(names & {"_walk", "addresses_of", "_look_at"})

    x, thresholds = leaf(), gc.get_threshold()
    y = x
    for _ in range(500):
        y = y * 2
    gc.callbacks.append(collecting)
    gc.set_threshold(50)
    try:
        y.sum().backward()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(collecting)
    assert not any(within)
    assert gc.get_threshold() == thresholds
