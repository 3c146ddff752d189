"""Wherever a model and its optimizer live, an estimate tells the same and leaves all as it was."""

import contextvars
import signal
import threading
import types
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn

from ipygpulogger import estimate

pytestmark = pytest.mark.torch

WIDTH = 256
X, Y = torch.ones(64, WIDTH), torch.zeros(64, dtype=torch.long)


class Model(nn.Module):
    """Layers with and without buffers, and a buffer and an attribute that each call replaces."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
        self.head = nn.Linear(WIDTH, 10)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.calls, self.kept = 0, None

    def forward(self, x):
        x = self.inner(x)
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        self.calls, self.kept = self.calls + 1, x
        return self.head(x)


class Holder:
    """Has the pair as an attribute of the class."""

    pair = None


GLOBAL = REFERENCES = None
LOCAL, VARIABLE, MADE = threading.local(), contextvars.ContextVar("pair"), {}
exec("class Made: pass", MADE)


def in_a_global(pair):
    global GLOBAL  # noqa: PLW0603 - where notebooks have it
    GLOBAL = pair
    return lambda: GLOBAL


def in_a_class(pair):
    Holder.pair = pair
    return lambda: Holder.pair


def in_a_thread_local(pair):
    LOCAL.pair = pair
    return lambda: LOCAL.pair


def in_a_context_variable(pair):
    VARIABLE.set(pair)
    return VARIABLE.get


def behind_weak_references(pair):
    global REFERENCES  # noqa: PLW0603 - as above
    REFERENCES = [weakref.ref(one) for one in pair]
    return lambda: [one() for one in REFERENCES]


def in_a_mapping_proxy(pair):
    held = types.MappingProxyType({"pair": pair})
    return lambda: held["pair"]


def in_a_generator(pair):
    def forever():
        mine = pair
        while True:
            yield mine

    made = forever()
    next(made)
    return lambda: next(made)


def in_a_class_of_exec(pair):
    MADE["Made"].pair = pair
    return lambda: MADE["Made"].pair


def behind_a_builtin(pair):
    """No walk finds it: an iterator's own method."""
    again = [pair] * 9
    return lambda call=again.__getitem__: call(0)


UNSEEN = [in_a_thread_local, in_a_context_variable, behind_weak_references, behind_a_builtin]
PLACES = [in_a_global, in_a_class, in_a_mapping_proxy, in_a_generator, in_a_class_of_exec, *UNSEEN]


class Mine(BaseException):
    """Not an Exception, as a KeyboardInterrupt is none."""


def step_of(get, change, point, raised):
    """Return a step that fetches the pair itself, and raises at one of its lines."""

    def at(number):
        if point == number and raised is not None:
            raise raised("mine")

    def step(x, y):
        model, optimizer = get()
        at(0)
        change(model, optimizer)
        at(1)
        loss = F.cross_entropy(model(x), y.to(x.device))
        at(2)
        loss.backward()
        at(3)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        at(4)
        optimizer.zero_grad()

    return step


CHANGES = {
    "nothing": lambda *_: None,
    "frozen": lambda model, _: model.inner.requires_grad_(False),
    "evaluated": lambda model, _: model.eval(),
    "converted": lambda model, _: model.double().float(),
    "in place": lambda model, _: model.head.weight.data.mul_(2),
    "moved": lambda model, _: model.to("cuda:0"),
    "rate": lambda _, optimizer: optimizer.param_groups[0].update(lr=0.5),
    "cleared": lambda model, _: [setattr(one, "grad", None) for one in model.parameters()],
    "attribute": lambda model, _: setattr(model.head.weight, "mine", model.head.weight * 2),
}


def made(has_stepped, device):
    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    if has_stepped:
        F.cross_entropy(model(X.to(device)), Y.to(device)).backward()
        optimizer.step()
    return model, optimizer


def _of(tensor):
    return (
        None if tensor is None else
        (id(tensor), type(tensor), tensor.data_ptr(), tensor._version, tensor.requires_grad,
         tensor.detach().cpu().double().sum().item(), dict(getattr(tensor, "__dict__", {})))
    )  # fmt: skip


def state(model, optimizer):
    """All of a model and an optimizer that a step can change."""
    found = {f"{name} itself": _of(one) for name, one in (*model.named_parameters(), *model.named_buffers())}
    found |= {f"{name}.grad": _of(one.grad) for name, one in model.named_parameters()}
    for number, one in enumerate(optimizer.state.values()):
        found |= {f"state {number}.{name}": _of(value) for name, value in one.items()}
    for name, module in model.named_modules():
        found |= {f"{name}/{key}": id(value) for key, value in vars(module).items()}
    groups = [{key: value for key, value in one.items() if key != "params"} for one in optimizer.param_groups]
    return found | {"groups": groups, "random": torch.get_rng_state().tolist()}


@settings(max_examples=30, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    place=st.sampled_from(PLACES),
    change=st.sampled_from(list(CHANGES)),
    point=st.integers(0, 4),
    raised=st.sampled_from([None, ValueError, KeyboardInterrupt, Mine]),
    has_stepped=st.booleans(),
    device=st.sampled_from(["cpu", "cuda:0"]),
)
@example(in_a_class_of_exec, "rate", 0, None, False, "cpu")
@example(behind_a_builtin, "converted", 0, None, True, "cpu")
@example(behind_a_builtin, "attribute", 4, KeyboardInterrupt, True, "cuda:0")
@example(in_a_class, "nothing", 0, None, False, "cpu")
@example(in_a_thread_local, "nothing", 0, None, True, "cpu")
def test_wherever_it_lives(cuda, place, change, point, raised, has_stepped, device):
    """The figure is that of a global, and nothing changes, however it ends."""
    # What an optimizer that no walk finds has for a rate is known when it makes a step.
    if change == "rate" and place in UNSEEN:
        change = "nothing"
    pair, other = made(has_stepped, device), made(has_stepped, device)
    step = step_of(place(pair), CHANGES[change], point, raised)
    before = state(*pair)
    if raised is None:
        found = estimate(step, X.to(device), Y.to(device), capacity="1GB")
        plain = step_of(in_a_global(other), CHANGES[change], point, None)
        expected = estimate(plain, X.to(device), Y.to(device), capacity="1GB")
        assert (found.peak_bytes, found.reserved_bytes) == (expected.peak_bytes, expected.reserved_bytes)
        assert found.held_bytes == expected.held_bytes
        del plain
    else:
        with pytest.raises(raised) as error:
            estimate(step, X.to(device), Y.to(device), capacity="1GB")
        error.value.__traceback__ = None
        del error
    assert state(*pair) == before
    in_a_global(None)
    for name in (Holder, MADE["Made"], LOCAL):
        name.pair = None
    VARIABLE.set(None)


def test_compiled_code_that_holds_a_parameter():
    """TorchScript has the real parameters in C++: refused before they get a gradient."""
    script = torch.jit.script(nn.Linear(8, 8))
    before = [_of(one) for one in script.parameters()]
    with pytest.raises(RuntimeError, match="compiled code gave it a parameter"):
        estimate(lambda x: script(x).sum().backward(), torch.ones(4, 8))
    assert [_of(one) for one in script.parameters()] == before
    assert all(one.grad is None for one in script.parameters())


def test_threads_of_the_function(cuda):
    """Work in another thread, new or not, is refused before it begins: torch is as it was there."""
    model = nn.Linear(8, 8)

    def train():
        model(torch.ones(4, 8)).sum().backward()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        for starts in (
            lambda: pool.submit(train).result(),
            lambda: list(pool.map(torch.Tensor.sum, [model.weight])),
            lambda: threading.Thread(target=train).start(),
        ):
            with pytest.raises(
                RuntimeError, match=r"test_anywhere.py:\d+ cannot be estimated: it starts work"
            ):
                estimate(starts)
        assert model.weight.grad is None
        pool.submit(train).result()
    assert model.weight.grad is not None


def test_the_rate_of_an_optimizer_that_nothing_reaches(cuda):
    """The limit that the page tells: it stays as it was set, or as it was at the step."""
    optimizer = torch.optim.SGD(nn.Linear(8, 8).parameters(), lr=0.1)
    again = [optimizer] * 9

    def step(steps, call=again.__getitem__):
        call(0).param_groups[0]["lr"] = 0.5
        if steps:
            call(0).step()
            call(0).param_groups[0]["lr"] = 0.7

    estimate(step, True)
    assert optimizer.param_groups[0]["lr"] == 0.5
    optimizer.param_groups[0]["lr"] = 0.1
    estimate(step, False)
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_lazy_module():
    """It would become another class: refused before."""
    lazy = nn.LazyLinear(8)
    with pytest.raises(RuntimeError, match="call it once before it is estimated"):
        estimate(lazy, torch.ones(4, 8))
    assert type(lazy) is nn.LazyLinear
    assert lazy(torch.ones(4, 8)).shape == (4, 8)


@pytest.mark.parametrize("strike", [0, 1])
def test_an_interrupt_while_the_handler_is_changed(monkeypatch, strike):
    """Whichever of these moments it comes at, and raises its error: the handler is as it was."""
    model, real, calls = nn.Linear(8, 8), signal.signal, count()

    def ring(*_):
        raise Mine

    def struck(number, handler):
        real(number, handler)
        if next(calls) == strike:
            signal.raise_signal(signal.SIGINT)

    earlier = real(signal.SIGINT, ring)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(signal, "signal", struck)
            with pytest.raises(Mine):
                estimate(model, torch.ones(4, 8))
        assert signal.getsignal(signal.SIGINT) is ring
        assert next(calls) > strike
    finally:
        real(signal.SIGINT, earlier)
