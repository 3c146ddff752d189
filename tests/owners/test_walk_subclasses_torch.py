"""Looking at tensor subclasses that see every operation, as DTensor's and torchao's do, runs none of them."""

import gc
import sys
import weakref

import pytest
import torch
from memory import MB
from owned import proven, walked

from ipygpulogger.owners.memory_blocks import array_readers

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")]

asked = []  # by us: what was called with a function of the package on the stack


def note(what):
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "ipygpulogger":
            asked.append(f"{what}, from {frame.f_globals['__name__']}.{frame.f_code.co_name}")
            return
        frame = frame.f_back


class Watched(torch.Tensor):
    """Each of its operations is code of the user's."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        note(f"function {func}")
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        note(f"dispatch {func}")
        args = [one.inner if isinstance(one, Wrapper) else one for one in args]
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))

    def __repr__(self):
        note("repr")
        return "Watched"


class Wrapper(Watched):
    """Has no storage: its memory is that of the tensor within."""

    @staticmethod
    def __new__(cls, inner, **how):
        how = {"dtype": inner.dtype, "device": inner.device, "requires_grad": inner.requires_grad, **how}
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, **how)

    def __init__(self, inner, **_):
        self.inner = inner

    def __tensor_flatten__(self):
        note("flatten")
        return ["inner"], None


class Mode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        note(f"mode {func}")
        return func(*args, **(kwargs or {}))


def sparse(size_mb):
    places = torch.arange(size_mb * MB // 8)
    return torch.sparse_coo_tensor(places[None], places + 1, (len(places),), check_invariants=False)


def compressed():
    return torch.sparse_csr_tensor(
        torch.tensor([0, MB]), torch.arange(MB), torch.ones(MB), (1, MB), check_invariants=False
    )


POLICIES = {
    "wrapper": {},
    "layout": {"dispatch_layout": True},
    "device": {"dispatch_device": True},
    "sizes": {"dispatch_sizes_strides_policy": "sizes"},
    "strides": {"dispatch_sizes_strides_policy": "strides"},
    "sparse wrapper": {"layout": torch.sparse_coo},
    "compressed wrapper": {"layout": torch.sparse_csr},
}
MADE = {name: lambda how=how: Wrapper(torch.ones(4 * MB // 4), **how) for name, how in POLICIES.items()}
MADE |= {
    "parameter": lambda: torch.nn.Parameter(Wrapper(torch.ones(4 * MB // 4, requires_grad=True))),
    "subclass": lambda: torch.ones(4 * MB // 4).as_subclass(Watched),
    "view": lambda: torch.ones(4 * MB // 4).as_subclass(Watched)[5:9],
}


@pytest.fixture(autouse=True)
def nothing_asked():
    asked.clear()
    yield
    assert asked == []


def held(**names):
    owners = walked(names, array_readers()).owners
    return {owner.name: owner.size_bytes for owner in owners if owner.size_bytes >= MB}


@pytest.mark.parametrize("kind", MADE)
def test_its_memory_is_found_without_asking_it(kind):
    """By its storage, or by the tensors within."""
    assert held(x=MADE[kind]()) == {"x": 4 * MB}


def test_what_it_computed_and_its_gradient():
    """A graph of such tensors, and the gradient of a leaf, are looked at without a question either."""
    leaf = Wrapper(torch.ones(MB // 4), requires_grad=True)
    plain = torch.ones(MB // 4, requires_grad=True)
    loss = (plain.as_subclass(Watched) * 2).exp().sum() + leaf.inner.sum()
    plain.grad = torch.ones(MB // 4)
    assert held(leaf=leaf, plain=plain, loss=loss)["plain"] == 2 * MB


@pytest.mark.parametrize("make", [lambda: sparse(1), compressed], ids=["coo", "csr"])
def test_parts_only_of_sparse_tensors_and_past_every_mode(make):
    """Their parts are asked for where there are any, and not by way of a mode that is on."""
    with Mode():
        found = held(sparse=make(), dense=torch.ones(MB // 4))
    assert found.keys() == {"sparse", "dense"}
    assert found["dense"] == MB
    assert found["sparse"] >= 2 * MB


def test_in_a_cycle_that_waits_for_the_collector():
    """Found as any other garbage, without a question."""
    gc.collect()
    gc.disable()
    try:
        cycle = type("Cycle", (), {})()
        cycle.me = cycle
        cycle.values = [Wrapper(torch.ones(MB // 4), **how) for how in POLICIES.values()]
        cycle.values.append(
            torch.ones(3 * MB // 4).as_subclass(Watched)
        )  # has a base, which only C code sees
        root = weakref.ref(cycle)
        walked({"cycle": cycle}, array_readers())
        del cycle
        assert proven(root, array_readers()) == {"cpu": len(POLICIES) * MB}
    finally:
        gc.enable()


# -- every door ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def names(shell, cuda):
    """What the cells know."""
    shell.user_ns.update(torch=torch, Wrapper=Wrapper, Watched=Watched, policies=list(POLICIES.values()))


MANY = "[Wrapper(torch.ones(4 << 18), **how) for how in ({}, *policies)]"
WATCHED = "torch.ones(4 << 18).as_subclass(Watched)"


def test_cells(run):
    """Who grew, what waits for the collector, who holds memory, and giving it back."""
    record = run(f"many, one = {MANY}, {WATCHED}")
    sizes = {owner.name: owner.size_bytes for owner in record.owners}
    assert sizes == {"many": 4 * MB * (1 + len(POLICIES)), "one": 4 * MB}, str(record.to_dict())
    run.logger.gc_collect = False
    run(f"cycle = [{MANY}, {WATCHED}]; cycle.append(cycle); cycle = torch.ones(5 << 18)")
    run(f"def fail():\n    held, other = {MANY}, {WATCHED}\n    raise ValueError\nfail()")
    run(f"{WATCHED}")
    assert {"many", "one"} <= {owner.name for owner in run.logger.owners()}
    run.logger.free()
