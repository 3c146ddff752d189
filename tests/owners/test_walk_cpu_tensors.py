"""Who holds the memory of torch's CPU tensors: models, views, numpy's arrays, autograd graphs."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import MB
from owned import walked

from ipygpulogger.owners.memory_blocks import array_readers
from ipygpulogger.sources.torch.allocators import Torch

pytestmark = pytest.mark.torch

graphs = pytest.mark.skipif(
    not hasattr(torch._C._autograd.SavedTensor, "data"), reason="this torch does not tell what a graph saved"
)


def held(**names):
    """{name: (bytes, who shares)}, what is below 1 MB left out."""
    owners = walked(names, array_readers()).owners
    return {owner.name: (owner.size_bytes, owner.shared) for owner in owners if owner.size_bytes >= MB}


def mb(size_mb, **how):
    return torch.ones(size_mb * MB // 4, **how)


def test_tied_and_view_of_one_weight_count_once():
    """A model, its weight, a view of that, its optimizer and a dict with the model are one storage."""
    model = torch.nn.Linear(1024, 1024, bias=False)
    names = {
        "model": model,
        "tied": model.weight,
        "view": model.weight[:10],
        "opt": torch.optim.SGD(model.parameters()),
        "cfg": {"m": model},
    }
    assert held(**names) == {"model": (4 * MB, ("tied", "view", "opt", "cfg"))}
    assert held(view=names["view"], model=model) == {"view": (4 * MB, ("model",))}


@pytest.mark.parametrize("first", ["array", "tensor"])
def test_numpy_and_torch_on_one_buffer(first):
    """`torch.from_numpy` and `tensor.numpy()` share; a slice of either holds the whole, whoever comes first."""
    array = np.ones(MB, np.uint8)
    names = {"array": array, "tensor": torch.from_numpy(array[64:])}
    names = {first: names.pop(first), **names}
    (other,) = set(names) - {first}
    assert held(**names) == {first: (MB, (other,))}
    tensor = mb(1)
    names = {"tensor": tensor, "array": tensor.numpy()[10:]}
    names = {first: names.pop(first), **names}
    assert held(**names) == {first: (MB, (other,))}
    assert held(array=tensor.numpy()[10:]) == {"array": (MB, ())}


def test_buffers_of_python_under_tensors():
    """`torch.frombuffer` looks into memory of Python's."""
    buffer = bytearray(MB)
    ((size_bytes, shared),) = held(tensor=torch.frombuffer(buffer, dtype=torch.uint8), buffer=buffer).values()
    assert (size_bytes, shared) == (MB, ("buffer",))


def test_views_that_repeat_what_they_show():
    """An expanded tensor, its array, an array from DLPack: no more than the element that is there."""
    names = {"one": torch.ones(1).expand(1 << 30)}
    names |= {"array": names["one"].numpy(), "capsule": np.from_dlpack(names["one"])}
    names["back"] = torch.from_numpy(np.broadcast_to(np.ones(1), (1 << 20,)).copy()[::2])
    assert held(**names) == {"back": (8 * MB - 8, ())}  # up to the last that it shows
    windows = mb(8).unfold(0, 1000, 1)
    assert held(windows=windows, array=windows.numpy()) == {"windows": (8 * MB, ("array",))}
    assert held(array=windows.numpy()) == {"array": (8 * MB, ())}


LOOKS = {
    "tensor": lambda view: view,
    "numpy": lambda view: view.numpy()[::-1],
    "DLPack": np.from_dlpack,
    "from_numpy": lambda view: torch.from_numpy(view.numpy()),
    "from_dlpack": torch.from_dlpack,
}


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.integers(1, 200), st.integers(0, 2**18), st.sampled_from(list(LOOKS))
        ),
        min_size=1,
        max_size=6,
    )
)
def test_any_views_of_a_tensor(looks):
    """Whatever looks into a tensor's storage, in whatever shape and by whatever library: it counts once."""
    whole = mb(2)
    names = {"whole": whole}
    for place, (stride, size, start, look) in enumerate(looks):
        names[f"n{place}"] = LOOKS[look](whole.as_strided((size, 3), (stride, 1), start))
    found = held(**names)
    assert {name: size_bytes for name, (size_bytes, _) in found.items()} == {"whole": 2 * MB}
    del names["whole"], whole
    leads_to_it = any(look in ("tensor", "numpy") for *_, look in looks)
    assert [size_bytes for size_bytes, _ in held(**names).values()] == [2 * MB] * leads_to_it


def test_a_lazy_clone_stays_one():
    """It shares its memory until somebody writes; looking does not."""
    tensor = mb(2)
    clone = torch._lazy_clone(tensor)
    part = clone[100:]
    assert held(part=part, tensor=tensor, clone=clone) == {"part": (2 * MB, ("tensor", "clone"))}
    assert torch._C._is_cow_tensor(clone)
    assert torch._C._is_cow_tensor(part)


def test_a_model_that_only_shows_a_file(tmp_path):
    """Weights loaded with mmap are the file's pages, no memory of the process's own."""
    torch.save({"weight": mb(2)}, tmp_path / "model.pt")
    shown = torch.load(tmp_path / "model.pt", mmap=True)
    loaded = torch.load(tmp_path / "model.pt")
    assert held(shown=shown, loaded=loaded) == {"loaded": (2 * MB, ())}


# -- graphs ----------------------------------------------------------------------------------------


def a_loss(weight):
    """Keeps the result of the exponential for its backward pass, as large as the weight."""
    return weight.exp().sum()


@graphs
def test_a_loss_keeps_its_graph():
    """What a loss saved for its backward pass has a name; after that pass it is nothing."""
    weight = mb(2, requires_grad=True)
    loss = a_loss(weight)
    assert held(weight=weight, loss=loss) == {
        "weight": (2 * MB, ("loss (autograd graph)",)),
        "loss (autograd graph)": (2 * MB, ()),
    }
    assert held(loss=loss, weight=weight)["loss (autograd graph)"] == (2 * MB, ())
    loss.backward()
    found = held(weight=weight, loss=loss)
    assert found == {"weight": (4 * MB, ("loss (autograd graph)",))}  # with its gradient


class Doubles(torch.autograd.Function):
    """Keeps one tensor for its backward pass, and one as an attribute."""

    @staticmethod
    def forward(ctx, value):
        ctx.save_for_backward(value * 3)
        ctx.beside = mb(2)
        return value * 2

    @staticmethod
    def backward(_ctx, gradient):
        return gradient * 2


@graphs
def test_functions_of_ones_own():
    """What a `torch.autograd.Function` saves, and what it puts on its context."""
    weight = mb(1, requires_grad=True)
    found = held(weight=weight, loss=Doubles.apply(weight).sum())
    assert found["loss (autograd graph)"] == (3 * MB, ())


def test_what_is_a_node():
    """A node has no memory of its own; a class of the user's with such an attribute is none, and not asked."""
    weight = torch.ones(3, requires_grad=True)
    built_in, own = (weight * 2).grad_fn, Doubles.apply(weight).grad_fn
    for node in (built_in, own):
        assert Torch().may_hold(type(node))
        held = Torch().holding(node)
        assert (held.key, held.size_bytes) == (None, 0)
    users = type("Users", (), {"next_functions": property(lambda _: 1 / 0)})
    assert not Torch().may_hold(users)
    assert Torch().holding(users()) is None


@graphs
def test_unpack_hooks_are_not_run():
    """With hooks a graph keeps what they packed, and looking neither unpacks nor computes again."""

    def unpack(_):
        raise AssertionError("nobody asked for this")

    weight = mb(1, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: ["packed", saved.repeat(3)], unpack):
        loss = (weight * weight).sum()
    assert held(weight=weight, loss=loss)["loss (autograd graph)"] == (6 * MB, ())

    ran = []

    def block(value):
        ran.append(1)
        return value.exp().exp()

    loss = torch.utils.checkpoint.checkpoint(block, weight, use_reentrant=False).sum()
    ran.clear()
    assert "loss (autograd graph)" not in held(weight=weight, loss=loss)
    assert ran == []


@graphs
def test_a_deep_graph():
    """As many nodes as a long training chains together; looking leaves the graph as it was."""
    weight = mb(1, requires_grad=True)
    loss = weight
    for _ in range(20):
        loss = loss.exp()
    for _ in range(5000):
        loss = loss + 1
    names = {"weight": weight, "loss": loss.sum()}
    del loss
    assert held(**names)["loss (autograd graph)"] == (20 * MB, ())
    names["loss"].backward()
    assert held(**names) == {"weight": (2 * MB, ("loss (autograd graph)",))}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_tensors():
    """By their indices and values."""
    values, indices = mb(1), torch.arange(MB // 4)
    sparse = torch.sparse_coo_tensor(indices[None], values, (MB // 4,), check_invariants=True)
    rows = torch.tensor([0, MB // 4])
    compressed = torch.sparse_csr_tensor(rows, indices, mb(1), (1, MB // 4), check_invariants=False)
    assert held(sparse=sparse, values=values, indices=indices) == {"sparse": (3 * MB, ("values", "indices"))}
    assert held(compressed=compressed) == {"compressed": (3 * MB + rows.nbytes, ())}


# -- on a device -----------------------------------------------------------------------------------


def on_the_device(**names):
    owners = walked(names, [Torch().holding]).owners
    return {owner.name: owner.size_bytes for owner in owners if owner.device == "cuda:0"}


def test_a_models_gradients_and_its_optimizer(cuda):
    """Parameters, buffers and gradients are the model's, the moments the optimizer's, to the byte."""
    net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
    net.register_buffer("table", torch.empty(1000))
    net[0].weight = net[1].weight  # tied
    net.to("cuda")
    optimizer = torch.optim.Adam(net.parameters())
    for parameter in net.parameters():  # as after a step; no kernel need run
        parameter.grad = torch.empty_like(parameter)
        optimizer.state[parameter] = {name: torch.empty_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
    weights = sum(p.nbytes for p in net.parameters())
    assert on_the_device(net=net, optimizer=optimizer) == {
        "net": 2 * weights + 4000,
        "optimizer": 2 * weights,
    }
    assert on_the_device(optimizer=optimizer, net=net) == {"optimizer": 4 * weights, "net": 4000}


def test_attributes_and_what_has_no_storage(cuda):
    """What hangs on a tensor of a subclass counts; meta and sparse CPU tensors are passed over, not neighbours."""
    tensor = torch.empty(1 << 10, device="cuda").as_subclass(type("Mine", (torch.Tensor,), {}))
    tensor.extra = torch.empty(1 << 11, device="cuda")
    indices = torch.zeros((2, 3), dtype=torch.int64)
    sparse = torch.sparse_coo_tensor(indices, torch.ones(3), (5, 5), check_invariants=True)
    found = on_the_device(a=[sparse, torch.empty(5, device="meta"), tensor])
    assert found == {"a": (4 << 10) + (4 << 11)}


def test_growth_on_a_device_is_exact(cuda, run, shell):
    """The allocator's bytes are explained to the last one; RAM is judged by itself."""
    shell.user_ns["torch"] = torch
    record = run("net = torch.empty(64 << 18, device='cuda'); torch.empty(9 << 18, device='cuda'); None")
    grown = {owner.name: owner.size_bytes / MB for owner in record.owners if owner.device == "cuda:0"}
    assert (grown, "cuda:0" in dict(record.unexplained)) == ({"net": 64}, False)
    # The allocator serves the same block again.
    record = run(
        "del net; b = torch.empty(64 << 18, device='cuda'); c = torch.empty(32 << 18, device='cuda')"
    )
    assert {owner.name: owner.size_bytes / MB for owner in record.owners if owner.device == "cuda:0"}[
        "c"
    ] == 32
    assert "cuda:0" not in dict(record.unexplained)
