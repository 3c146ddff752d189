"""One walk of an autograd graph: what its nodes saved, and the leaves; each graph is one whose truth is known."""

import warnings

import pytest

pytestmark = pytest.mark.torch


@pytest.fixture
def torch(cuda):
    import torch

    return torch


@pytest.fixture
def graphs(torch):
    from ipygpulogger.allocator.graph import Graphs

    return Graphs(torch)


@pytest.fixture
def tells(torch):
    """Only where torch tells what a graph saved, which 2.6 does not."""
    if not hasattr(torch._C._autograd.SavedTensor, "data"):
        # The walk finds no saved tensor there, and these tests are about which ones it finds.
        pytest.skip("torch 2.6 does not expose the tensors that a graph saved, so nothing is claimed of them")


@pytest.fixture
def leaf(torch):
    """Make a tensor of 1 KB on the device, of which a gradient is wanted unless told otherwise."""
    return lambda **more: torch.ones(256, device="cuda:0", **({"requires_grad": True} | more))


def where(*found):
    return {(one.get_device(), one.data_ptr()) for one in found}


def same(found, wanted):
    return sorted(map(id, found)) == sorted(map(id, wanted))


@pytest.mark.usefixtures("tells")
def test_what_nodes_saved_and_the_leaves(graphs, leaf):
    """A product keeps both factors, a root its result; a leaf that two nodes share is one."""
    w, b, x = leaf(), leaf(), leaf(requires_grad=False)
    product = w * x
    root = (product + b).abs().sqrt()
    found = graphs.walk([(root * w).sum()])
    assert found.saved >= where(w, x, root)
    assert where(b).isdisjoint(found.saved)
    assert same(found.leaves, [w, b])
    assert not found.packed


@pytest.mark.usefixtures("tells")
def test_what_a_pass_begins_with(torch, graphs, leaf):
    """Tensors, leaves among them, whose own gradients come; or an edge of a graph; nothing of one without graph."""
    w, x = leaf(), leaf(requires_grad=False)
    found = graphs.walk([w, w * x])
    assert (found.saved, len(found.leaves)) == (where(x), 2)
    assert {id(one) for one in found.leaves} == {id(w)}
    edge = torch.autograd.graph.get_gradient_edge(w * x)
    found = graphs.walk([edge])
    assert found.saved == where(x)
    assert same(found.leaves, [w])


def test_a_tensor_without_memory_of_its_own(torch, graphs, leaf):
    """Of a sparse one and of a wrapper, its parts have it; one of the CPU and an empty one have none on a device."""

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, one, other):
            made = torch.Tensor._make_wrapper_subclass(cls, one.shape, dtype=one.dtype, device=one.device)
            made.one, made.other, made.says = one, other, "a wrapper"
            return made

        @classmethod
        def __torch_dispatch__(cls, *_):
            raise AssertionError("the user's code runs")

    one, other = leaf(requires_grad=False), leaf(requires_grad=False)
    places = torch.zeros(1, 256, dtype=torch.int64, device="cuda:0")
    sparse = torch.sparse_coo_tensor(places, one, (512,), check_invariants=False)
    assert graphs.address_of(sparse) is None
    assert set(graphs.addresses_of(sparse)) == where(places, one)
    wrapper = Wrapper(one, other)
    assert graphs.address_of(wrapper) is None
    assert set(graphs.addresses_of(wrapper)) == where(one, other)
    assert set(graphs.addresses_of(one)) == where(one)
    freed = leaf()  # as a sharded parameter between two uses; its gradient is no part of it
    (freed * 2).sum().backward()
    assert graphs.address_of(freed.grad) is not None
    freed.untyped_storage().resize_(0)
    for nothing in (freed, torch.ones(3), torch.ones(0, device="cuda:0"), "no tensor"):
        assert graphs.address_of(nothing) is None
        assert graphs.addresses_of(nothing) == []


def test_a_gradient_is_read_without_a_warning(graphs, leaf):
    """A leaf's, and one that was asked to be kept; any other has none, and torch would warn of the question."""
    w, x = leaf(), leaf(requires_grad=False)
    plain, kept = w * x, w * x
    kept.retain_grad()
    (plain + kept).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert graphs.gradient_of(w) is w.grad is not None
        assert graphs.gradient_of(kept) is kept.grad is not None
        assert graphs.gradient_of(plain) is None
        assert graphs.gradient_of(x) is None


@pytest.mark.usefixtures("tells")
def test_what_hooks_packed_is_said(torch, graphs, leaf):
    """What they moved to the CPU cannot be found; what they hand on as it is can."""
    w, x = leaf(), leaf(requires_grad=False)
    put_away = []
    for pack in (lambda one: ("packed", one), put_away.append):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda _: None):
            hidden = (w * x).sum()
        assert graphs.walk([hidden])[::2] == (set(), True)
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, lambda one: one):
        open_ = (w * x).sum()
    assert graphs.walk([open_])[::2] == (where(x), False)


def test_a_torch_that_does_not_tell_what_was_saved(graphs, leaf):
    """The leaves are found, and it is said that more may have been saved."""
    w, x = leaf(), leaf(requires_grad=False)
    graphs._readable = False
    assert graphs.walk([w * x]) == (set(), [w], True)


@pytest.mark.usefixtures("tells")
def test_a_function_of_the_users(torch, graphs, leaf):
    """What it saved, and what it set on its context; its class is not kept."""

    class Masked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, one, mask):
            ctx.save_for_backward(one)
            ctx.mask, ctx.name = mask, "a mask"
            return one * mask

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.mask, None

    w, mask = leaf(), leaf(requires_grad=False)
    result = Masked.apply(w, mask)
    assert graphs.walk([result]).saved == where(w, mask)
    result.sum().backward()
    assert graphs.walk([result]).saved == where(mask)  # the pass released what was saved
    assert not any(kind.__name__.startswith("Masked") for kind in graphs._readers)
