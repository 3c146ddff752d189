"""Kinds, names and places of what was alive at the peak, against counts by hand, on the simulated GPU."""

import gc
import linecache

import pytest
import torch
from recorded import recorded
from torch import nn

from ipygpulogger.allocator.replay import Block
from ipygpulogger.breakdown import training
from ipygpulogger.breakdown.kinds import BackwardPass, Kinds, LabelSnapshot, TrainingHistory
from ipygpulogger.breakdown.names import Label, surer

pytestmark = pytest.mark.torch

MB = 2**20
BATCH, LENGTH, WIDTH, WORDS = 2, 24, 40, 96
DEVICE = "cuda:0"


class Transformer(nn.Module):
    """Embedding, attention, layer norms and an MLP: one block."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.first_norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, tokens):
        x = self.embedding(tokens)
        y = self.first_norm(x)
        q, k, v = self.query(y), self.key(y), self.value(y)
        attention = torch.bmm(q, k.transpose(1, 2)).softmax(-1)
        x = x + self.out(torch.bmm(attention, v))
        x = x + self.down(nn.functional.gelu(self.up(self.second_norm(x))))
        if spikes("backward") and x.requires_grad:
            x.register_hook(lambda _: spike())
        return (x * x).mean()


def rounded(*shapes):
    """What tensors of four bytes an element take: blocks of 512 bytes each."""
    return sum(-(-4 * torch.Size(shape).numel() // 512) * 512 for shape in shapes)


TOKEN = BATCH, LENGTH
HIDDEN = *TOKEN, WIDTH
WEIGHTS = (
    [(WORDS, WIDTH)] + 4 * [(WIDTH, WIDTH), (WIDTH,)] + 2 * [(WIDTH,), (WIDTH,)]
    + [(4 * WIDTH, WIDTH), (4 * WIDTH,), (WIDTH, 4 * WIDTH), (WIDTH,)]
)  # fmt: skip
NORM = [HIDDEN, TOKEN, TOKEN]  # input, mean, 1 / deviation
ATTENTION = [
    HIDDEN,
    HIDDEN,
    HIDDEN,
    HIDDEN,
    (BATCH, LENGTH, LENGTH),
    HIDDEN,
]  # y, q, k, v, weights, and their product
MLP = [HIDDEN, (*TOKEN, 4 * WIDTH), (*TOKEN, 4 * WIDTH)]  # before `up`, `gelu` and `down`
SAVED = NORM + ATTENTION + NORM + MLP + [HIDDEN]  # the last for the square
PARAMETERS, ACTIVATIONS = rounded(*WEIGHTS), rounded(*SAVED)


@pytest.fixture(autouse=True)
def warm(cuda):
    """cuBLAS has its workspace; no gradient or graph of an earlier test is left."""
    a = torch.zeros(8, 8, device=DEVICE, requires_grad=True)
    torch.mm(a, a).sum().backward()
    del a
    gc.collect()
    return cuda


def at_peak(run):
    """The rows of a run, which add up to the allocator's own peak."""
    torch.cuda.reset_peak_memory_stats()
    found = recorded(run)
    assert not found.notes
    assert found.bytes() == torch.cuda.max_memory_allocated()
    return found.record.at_peak


def by_kind(rows):
    """Their bytes, without cuBLAS's workspace."""
    found = {}
    for row in rows:
        if "cuBLAS" not in row.name:
            found[row.kind] = found.get(row.kind, 0) + row.size_bytes
    return found


def lines(rows, kind):
    """Names and places of one kind."""
    return {(row.name, row.place.partition(":")[0]) for row in rows if row.kind == kind}


SPIKES = []  # when the next run has its highest moment: "forward", "backward" or "step", of its last step


def spikes(when):
    return [when, True] == SPIKES


def spike():
    torch.empty(64 * MB, dtype=torch.uint8, device=DEVICE)


def train(steps=1, *, when="forward", set_to_none=True):
    """A training of which nothing is left."""
    model = Transformer().to(DEVICE)
    opt = torch.optim.Adam(model.parameters())
    opt.register_step_pre_hook(lambda *_: spike() if spikes("step") else None)
    tokens = torch.zeros(TOKEN, dtype=torch.long, device=DEVICE)
    for step in range(steps):
        SPIKES[:] = when, step == steps - 1
        opt.zero_grad(set_to_none)
        loss = model(tokens)
        if spikes("forward"):
            spike()
        loss.backward()
        opt.step()


@pytest.mark.parametrize(
    ("when", "steps"), [("forward", 1), ("forward", 3), ("backward", 1), ("backward", 2), ("step", 2)]
)
@pytest.mark.parametrize("how", ["set to none", "set to zero", "no time"])
def test_each_kind_to_the_byte(when, steps, how, monkeypatch):
    """Of a function that is over, also of passes that there was no time to look at.

    Gradients are there between steps only if they are set to zero. Within the pass the input of the square has
    been let go of, and within the optimizer the graph.
    """
    if how == "no time":
        for name, value in {"_SURE": 0, "_SURE_AT_PEAKS": 0, "_SHARE": -1.0}.items():
            monkeypatch.setattr(training, name, value)
        steps = 2  # the first optimizer step tells the device
    found = by_kind(at_peak(lambda: train(steps, when=when, set_to_none=how != "set to zero")))
    others = found.pop("temporaries") - 64 * MB, found.pop("variables", 0)  # tokens and loss, where looked at
    assert sum(others) == 1024 if when == "forward" else others[0] >= 0
    freed = {"forward": 0, "backward": rounded(HIDDEN), "step": ACTIVATIONS}[when]
    has_gradients = when == "step" or (how == "set to zero" and steps > 1)
    expected = {
        "parameters": PARAMETERS,
        "optimizer state": 2 * PARAMETERS * (steps > 1),
        "activations": ACTIVATIONS - freed,
        "gradients": PARAMETERS * has_gradients,
    }
    assert found == {kind: size_bytes for kind, size_bytes in expected.items() if size_bytes}


def test_names_and_lines():
    """Variables of a function that is over, and of what has none the line."""
    rows = at_peak(lambda: train(3, set_to_none=False))
    assert lines(rows, "parameters") == {("model", "test_kinds.py")}
    assert lines(rows, "optimizer state") == {("opt", "test_kinds.py")}
    assert lines(rows, "gradients") == {("loss.backward()", "test_kinds.py")}
    assert {row.name for row in rows if row.kind == "variables"} == {"tokens", "loss"}
    spiked = next(row for row in rows if row.kind == "temporaries" and row.size_bytes > MB)
    assert spiked.name == "torch.empty(64 * MB, dtype=torch.uint8, device=DEVICE)"
    file, _, line = spiked.place.partition(":")
    assert file == "test_kinds.py"
    assert linecache.getline(__file__, int(line)).strip() == spiked.name


def test_a_local_variable_that_the_graph_has_let_go_of():
    """After the backward pass the variable alone holds it, as it holds what no graph kept."""

    def work():
        x = torch.zeros(4 * MB, device=DEVICE)
        leaf = torch.zeros(1, device=DEVICE, requires_grad=True)
        hidden = leaf.expand(4 * MB) * 2
        (hidden * hidden * x).sum().backward()
        spike()

    rows = at_peak(work)
    assert {
        (row.name, row.size_bytes) for row in rows if row.kind == "variables" and row.size_bytes > MB
    } == {("x", 16 * MB), ("hidden", 16 * MB)}
    assert "activations" not in by_kind(rows)


def test_a_torch_without_the_function_that_is_watched(monkeypatch):
    """No table, for its kinds would be wrong, and one sentence says why."""
    monkeypatch.delattr(torch.autograd, "_engine_run_backward")
    found = recorded(spike)
    assert not found.record.at_peak
    assert ["does not tell when backward passes run" in note for note in found.notes] == [True]


def test_of_two_findings_the_surer_one_stays():
    """Whichever came first: of a variable and a graph the graph, if autograd made what the variable holds."""
    graph = Label("activations")
    for variable, kind in [
        (Label("variables", "y", computed=True), "activations"),
        (Label("variables", "y"), "variables"),
        (Label("parameters", "y"), "parameters"),
    ]:
        found = {surer(one, other)[:2] for one, other in [(variable, graph), (graph, variable)]}
        assert found == {(kind, "y")}


def test_what_the_engine_makes_and_leaves_is_a_gradient():
    """In a pass whose graph was not walked: of a thread of its own or of this one; not what a hook's line makes."""
    step = BackwardPass((), retained=False, inner=False, begin={0: 5}, end={0: 10})
    kinds, made = Kinds(0, 12, TrainingHistory(passes=(step,)), {}), Block(512, 512, 7, ())
    engine, hook = ("graph.py", 1, "_engine_run_backward"), ("user.py", 2, "hook")
    found = [kinds.label_of(made, stack).kind for stack in ([], [engine], [hook, engine])]
    assert found == ["gradients", "gradients", "variables"]
    step.walked = True
    assert kinds.label_of(made, []).kind == "gradients"  # as what was found at its end is no longer kept
    kinds = Kinds(0, 12, TrainingHistory((LabelSnapshot(step.end, {}),), (step,)), {})
    assert kinds.label_of(made, []).kind == "variables"  # then the gradients are known


@pytest.mark.parametrize("move", [nn.Module.cuda, nn.Module.half], ids=["to the GPU", "to half precision"])
def test_a_module_that_was_known_before_its_memory_changed(move):
    """What it holds is looked at anew: parameters without gradients too, of which nothing is left at the end."""
    frozen = nn.Linear(512, 512, bias=False).requires_grad_(False)
    if move is nn.Module.half:
        frozen = nn.Sequential(nn.Sequential(nn.Identity()), frozen).to(DEVICE)

    def run():
        kind = move(frozen)
        scale = torch.ones(1, device=DEVICE, requires_grad=True)
        for step in range(2):
            loss = (kind(torch.zeros(8, 512, device=DEVICE).to(next(kind.parameters()).dtype)) * scale).sum()
            if step:
                spike()
            loss.backward()
        frozen.cpu().float()

    found = by_kind(at_peak(run))
    assert found["parameters"] >= 512 * 512 * (2 if move is nn.Module.half else 4)


def test_a_variable_of_the_size_of_a_workspace_is_a_variable():
    """cuBLAS's has 32 MB on some devices, and so have many tensors: a name decides."""
    held = {}

    def work():
        held["mine"] = torch.empty(32 * MB, dtype=torch.uint8, device=DEVICE)

    (row,) = [row for row in at_peak(work) if row.size_bytes == 32 * MB]
    assert (row.kind, row.name) == ("variables", "held")
