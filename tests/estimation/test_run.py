"""What a function may do while it is estimated, and what is refused with the operator and the line."""

import copy
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ipygpulogger.allocator.caching_allocator import CachingAllocator
from ipygpulogger.estimation import operators, values
from ipygpulogger.estimation.run import run
from ipygpulogger.estimation.values import EstimateError

pytestmark = pytest.mark.torch

X, Y = torch.ones(256, 64), torch.zeros(256, dtype=torch.long)
INPUT_BYTES = 256 * 64 * 4


@pytest.fixture
def net():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def estimated(fn, *args):
    return run(fn, args, {}, "cuda:0")


def refused(fn, *args, kind=RuntimeError):
    """The message of the error that an estimate raises, with its notes."""
    with pytest.raises(kind) as raised:
        estimated(fn, *args)
    error = raised.value
    notes = getattr(error, "__notes__", None) or ([str(error.__cause__)] if error.__cause__ else [])
    return [str(error), *notes]


def test_values_of_a_loss(net, capsys):
    """A float is 1.0, which a note says; it can be printed and kept, and the list is empty again."""
    losses = []

    def step(x, y):
        loss = F.cross_entropy(net(x), y)
        losses.append(loss.item())
        print(loss, f"{loss:.2f}", f"{float(loss.detach()):.1f}")
        assert np.isfinite(loss.detach().cpu().numpy())
        if torch.isnan(loss) or not torch.isfinite(loss):
            raise ValueError
        loss.backward()

    found = estimated(step, X, Y)
    assert losses == []
    assert "1.00 1.0" in capsys.readouterr().out
    assert "1.0 stands for them (test_run.py:" in " ".join(found.notes)


def test_counts(net):
    """How many predictions are right can be counted and written as a whole number; a count is no size."""
    right, total = 0, 0

    def evaluate(x, y):
        nonlocal right, total
        with torch.inference_mode():
            right += (net(x).argmax(1) == y).sum().item()
        total += len(y)
        return f"{100 * right / total:.1f} {right:>5d} {right + 1 + right:d} {0.5 + right:.1f}"

    found = estimated(evaluate, X, Y)
    assert (right, total) == (0, 0)
    assert "1.0 stands for them (test_run.py:" in " ".join(found.notes)
    for size in (range, [5].__getitem__, torch.zeros):
        notes = refused(lambda y, size=size: size(y.max().item()), Y, kind=TypeError)[1:]
        assert "1.0 stood for values of tensors" in " ".join(notes)


def test_tensors_without_elements():
    """They have no value: models of transformers make one."""
    assert estimated(lambda x: x.cuda() + torch.tensor([]).clone().sum(), X).peak_bytes > INPUT_BYTES


@pytest.mark.parametrize(
    ("decides", "named"),
    [
        (lambda y: "more" if y.sum() > 3 else "less", "aten._local_scalar_dense"),
        (lambda y: X[: int(y.max())], "aten._local_scalar_dense"),
        (lambda y: y[y > 0], "aten.index.Tensor"),
        (torch.unique, "aten._unique2"),
        (lambda y: torch.equal(y, y), "aten.equal"),
    ],
)
def test_what_depends_on_data(decides, named):
    """One sentence with the operator and the line."""
    says, *_ = refused(lambda y: decides(y.cuda()), Y, kind=EstimateError)
    assert "test_run.py:" in says and named in says and "\n" not in says


def test_errors(net, monkeypatch):
    """Notes say the operator, and the line that got 1.0; an endless loop is refused."""
    assert refused(lambda x: net(x.T), X)[1].startswith("aten.addmm.default raised it, at test_run.py:")
    told = refused(lambda _: [5][int(torch.rand(()).item())], X, kind=IndexError)
    assert any(one.startswith("1.0 stood for values of tensors") and "test_run.py:" in one for one in told)
    monkeypatch.setattr(values, "_MOST_READS", 20)

    def train(x):
        loss = 1.0
        while loss > 1e-3:
            loss = net(x).mean().item()

    says, *_ = refused(train, X, kind=EstimateError)
    assert "test_run.py:" in says and "has asked 20 times" in says and "would never end" in says


def test_batches_of_a_loader(net, monkeypatch):
    """They stay in general RAM until the function moves them; workers are no processes; samples are real."""

    def train(loader):
        for x, y in loader:
            F.cross_entropy(net(x.to("cuda", non_blocking=True)), y.cuda()).backward()

    data, state = TensorDataset(X, Y), torch.get_rng_state()
    found = estimated(train, DataLoader(data, batch_size=64, shuffle=True))
    with_workers = DataLoader(data, batch_size=64, shuffle=True, num_workers=2, pin_memory=True)
    assert estimated(train, with_workers).peak_bytes == found.peak_bytes
    assert with_workers.num_workers == 2
    assert torch.equal(state, torch.get_rng_state())
    in_ram = estimated(train, [(X[i : i + 64], Y[i : i + 64]) for i in range(0, 256, 64)])
    assert in_ram.peak_bytes == found.peak_bytes
    assert not any(row.kind == "variables" and row.size_bytes >= INPUT_BYTES for row in found.rows)
    called, original = [], operators.Operators.__call__
    monkeypatch.setattr(
        operators.Operators, "__call__", lambda *args: (called.append(None), original(*args))[1]
    )
    counts = []
    for samples in (40, 400):  # which are no operators on fake tensors
        data = TensorDataset(torch.ones(samples, 64), torch.zeros(samples, dtype=torch.long))
        estimated(train, DataLoader(data, batch_size=samples // 4))
        counts.append(len(called))
        called.clear()
    assert counts[0] == counts[1]


def test_a_data_set_on_the_device(net):
    """Samples that a data set moves, or changes in place, are fake ones."""

    class Moving(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return X[index].mul_(2).to("cuda"), Y[index].cuda()

    before = X.sum().item(), X._version
    found = estimated(lambda: [net(x) for x, _ in DataLoader(Moving(), batch_size=4)])
    assert found.peak_bytes > 4 * 64 * 4
    assert (X.sum().item(), X._version) == before


def test_a_device_that_was_chosen_here(net):
    """Where nothing is on a GPU, "cpu" in a variable is the device that there is: it means the estimated one."""
    device = torch.device("cpu")
    plain = estimated(lambda x: net(x).sum().backward(), X)
    moved = estimated(lambda x: net.to(device)(x.to(device)).sum().backward(), X)
    assert plain.peak_bytes == moved.peak_bytes
    assert any(note.startswith("All tensors are on the CPU") for note in plain.notes)
    assert all(weight.device.type == "cpu" for weight in net.parameters())


def test_the_cpu_beside_a_gpu(cuda):
    """Where the function has a tensor on a GPU, "cpu" means the CPU: what is copied there needs nothing."""

    def back(x):
        assert x.to("cpu").is_cpu
        return x * 2

    assert estimated(back, X.cuda()).peak_bytes == 2 * INPUT_BYTES


def test_torch_cuda(net):
    """Functions of torch.cuda answer as where the device is there, streams, events and properties included."""
    asked = ("name", "major", "minor", "total_memory", "multi_processor_count")

    def step(x):
        assert torch.cuda.is_available()
        assert all(hasattr(torch.cuda.get_device_properties(0), one) for one in asked)
        torch.cuda.manual_seed_all(0)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device(0):
            out = net.cuda()(x.pin_memory().cuda())
        out.record_stream(torch.cuda.current_stream())
        assert out.is_cuda and out.get_device() == torch.cuda.current_device() == 0
        assert not x.is_cuda and x.get_device() == -1
        assert len(torch.cuda.get_rng_state_all()) == torch.cuda.device_count() == 1
        assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated() >= INPUT_BYTES
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end)

    assert estimated(step, X).peak_bytes > INPUT_BYTES


def test_gradients_are_taken_as_finite(net):
    """A scaler makes its step, so that the optimizer's state is part of the estimate."""
    optimizer, scaler = torch.optim.Adam(net.parameters()), torch.amp.GradScaler("cuda")

    def step(x, y):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    assert any(row.kind == "optimizer state" for row in estimated(step, X[:8], Y[:8]).rows)
    assert not optimizer.state


def test_models_from_anywhere(net):
    """Made inside, a copy, and one without memory; mocks and liars take no part."""
    made = estimated(lambda: nn.Linear(64, 64).cuda()(torch.ones(256, 64, device="cuda")))
    assert {row.kind for row in made.rows} >= {"temporaries"}

    class Early(nn.Linear):
        def __init__(self, size):
            self.size = size  # before there are tables of parameters
            super().__init__(size, size)

    class Late(nn.Linear):
        def __init__(self, size):
            super().__init__(size, size)
            self.size = size

    early, late = (estimated(lambda x, kind=one: kind(64).cuda()(x.cuda()), X) for one in (Early, Late))
    assert early.peak_bytes == late.peak_bytes
    with torch.device("meta"):
        large = nn.Linear(1 << 16, 1 << 16)
    found = estimated(large, torch.empty(8, 1 << 16, device="meta"))
    assert next(row for row in found.rows if row.kind == "parameters").size_bytes == (1 << 34) + (1 << 18)
    copied = estimated(lambda x: (copy.deepcopy(net), net(x).sum().backward()), X)
    assert copied.peak_bytes > estimated(lambda x: net(x).sum().backward(), X).peak_bytes

    class Lie:
        __class__ = property(lambda _: torch.Tensor)

    held = [Mock(spec=dict), MagicMock(spec=list), Lie()]
    assert estimated(lambda x: (held, net(x))[1], X).peak_bytes


def test_kinds(net):
    """Each block of a step is of the kind that it is, to the byte."""
    optimizer = torch.optim.Adam(net.parameters(), foreach=True)

    def step(x, y):
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()

    def made_inside(x):
        net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 10)).cuda()
        F.cross_entropy(net(x), torch.zeros(len(x), dtype=torch.long, device="cuda")).backward()

    found = {}
    for row in estimated(step, X[:8].clone(), Y[:8]).rows:
        found[row.kind, row.name] = found.get((row.kind, row.name), 0) + row.size_bytes
    weights_bytes = 64 * 64 * 4 + 512 + 10 * 64 * 4 + 512
    assert found["parameters", "net"] == weights_bytes
    assert found["gradients", "loss.backward()"] == weights_bytes
    assert found["variables", "x"] == INPUT_BYTES / 32
    assert found["optimizer state", "optimizer.step()"] == 2 * weights_bytes
    inside = [row for row in estimated(made_inside, X[:8].clone()).rows if row.kind == "parameters"]
    assert sum(row.size_bytes for row in inside) == weights_bytes


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)),
        lambda: nn.ConvTranspose2d(3, 8, 3),
        lambda: nn.Sequential(nn.Flatten(), nn.EmbeddingBag(10, 64)),
    ],
    ids=["convolutions", "transposed", "bag"],
)
def test_a_model_never_runs_elsewhere_unseen(cuda, make, trains):
    """Some operators take fake tensors on two devices: all is on the device, or it is refused as by torch."""
    model, x = make(), torch.ones(4, 3, 64, 64)
    x = x.long() if isinstance(model, nn.Sequential) and len(model) == 2 else x

    def step(x):
        out = model(x)
        return out.sum().backward() if trains else out

    on_cpu = estimated(step, x)
    assert any(note.startswith("All tensors are on the CPU") for note in on_cpu.notes)
    model.cuda()
    assert estimated(step, x.cuda()).peak_bytes == on_cpu.peak_bytes > x.nbytes
    says, note, *_ = refused(step, x)
    assert "same device" in says and "at test_run.py:" in note
    model.cpu()
    elsewhere = torch.ones(4, device="cuda")
    with pytest.raises(EstimateError, match="nothing runs on cuda:0"):
        estimated(lambda: (elsewhere, step(x))[0])


def test_a_model_on_another_gpu(cuda):
    """It is refused, without the claim that the model were on the CPU."""
    model, x = nn.Linear(64, 64).to("cuda:1"), torch.ones(8, 64, device="cuda:1")
    with pytest.raises(EstimateError, match="nothing runs on cuda:0: move") as refusal:
        estimated(model, x)
    assert "CPU" not in str(refusal.value)


def test_an_attribute_is_no_global_of_the_same_name():
    """Another model under the name of the attribute takes no part."""

    class Trainer:
        model = None

        def step(self, x):
            return self.model(x).sum()

    trainer, x = Trainer(), torch.ones(4, 64)
    trainer.model = nn.Linear(64, 64)
    needs = estimated(trainer.step, x).peak_bytes
    globals()["model"] = nn.Linear(2048, 2048)
    try:
        assert estimated(trainer.step, x).peak_bytes == needs
    finally:
        del globals()["model"]


def test_the_memory_over_the_allocations(net):
    """By kind: each point is what the simulated allocator had then, the peak is the table's, phases are in order."""
    optimizer = torch.optim.Adam(net.parameters())

    def step(x, y):
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    found = estimated(step, X, Y)
    (one,) = found.timeline
    allocator, blocks, figures = CachingAllocator(), {}, []
    for number, requested_bytes in found.fits_within.args[0]:
        if requested_bytes >= 0:
            blocks[number] = allocator.allocate(requested_bytes)
        else:
            allocator.free(blocks[number])
        figures.append(allocator.allocated_bytes)
    points = [sum(sums) for _, sums in one.points]
    remaining = iter(figures)
    assert all(point in remaining for point in points[:-1])
    assert (max(points), points[-1]) == (max(figures), figures[-1]) == (found.peak_bytes, points[-1])
    table = dict.fromkeys(one.kinds, 0)
    for row in found.rows:
        table[row.kind] += row.size_bytes
    assert dict(zip(one.kinds, one.peak()[1], strict=True)) == table
    numbers = [number for number, _ in one.points]
    assert (numbers[0], sorted(numbers), one.unit) == (0, numbers, "allocations")
    assert [name for name, _, _ in one.phases] == ["forward", "backward", "step"]
    assert one.phases[0][2] == one.phases[1][1] < one.phases[1][2] <= one.phases[2][1] < one.phases[2][2]
    assert estimated(lambda: torch.ones(0, device="cuda")).timeline == ()
