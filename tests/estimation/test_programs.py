"""Random small trainings on the simulated device: each estimate is within 2 % of the run, most to the byte."""

import gc

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from ipygpulogger.estimation.run import run

pytestmark = pytest.mark.torch

WIDTH = 64


class Through(nn.Module):
    """Calls a function with a module's input."""

    def __init__(self, call, *modules):
        super().__init__()
        self.call, self.inner = call, nn.ModuleList(modules)

    def forward(self, x):
        return self.call(x, *self.inner)


def attend(x, project):
    query, key, value = project(x).view(-1, 8, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(x.shape)


def multihead(x, attention):
    words = x.view(-1, 8, WIDTH)
    return attention(words, words, words, need_weights=False)[0].reshape(x.shape)


def gated(x):
    first, second = x.chunk(2, -1)
    return torch.cat([first * torch.sigmoid(second), second], -1)


SIMPLE = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "without bias": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "group norm": lambda: nn.GroupNorm(4, WIDTH),
    "dropout": lambda: nn.Dropout(0.3),
    "attention": lambda: Through(attend, nn.Linear(WIDTH, 3 * WIDTH)),
    "multihead": lambda: Through(multihead, nn.MultiheadAttention(WIDTH, 4, dropout=0.1, batch_first=True)),
    "softmax": lambda: Through(lambda x: x.softmax(-1) * x),
    "logsumexp": lambda: Through(lambda x: x - x.logsumexp(-1, keepdim=True)),
    "gated": lambda: Through(gated),
    "normal": lambda: Through(lambda x: (x - x.mean(0)) / (x.std(0) + 1e-3)),
    "in place": lambda: Through(lambda x: (x * 2).add_(1).relu_()),
    "where": lambda: Through(lambda x: torch.where(x > 0, x, x * 0.1).masked_fill(x > 3, 0)),
}
AROUND = {
    "residual": lambda inner: Through(lambda x, inner: x + inner(x), inner),
    "checkpoint": lambda inner: Through(lambda x, inner: checkpoint(inner, x, use_reentrant=False), inner),
    "reentrant": lambda inner: Through(lambda x, inner: checkpoint(inner, x * 1, use_reentrant=True), inner),
}
LOSSES = {
    "cross entropy": lambda out: F.cross_entropy(out, out.new_zeros(len(out), dtype=torch.long)),
    "squares": lambda out: F.mse_loss(out, torch.zeros_like(out)),
    "sum": lambda out: out.float().square().sum(),
}
OPTIMIZERS = {
    "SGD": lambda weights, how: torch.optim.SGD(weights, 0.1, momentum=0.9, **how),
    "Adam": lambda weights, how: torch.optim.Adam(weights, weight_decay=0.1, **how),
    "AdamW": lambda weights, how: torch.optim.AdamW(weights, amsgrad=True, **how),
    "RMSprop": lambda weights, how: torch.optim.RMSprop(weights, **how),
}

layers = st.recursive(
    st.sampled_from(list(SIMPLE)),
    lambda inner: st.tuples(st.sampled_from(list(AROUND)), st.lists(inner, min_size=1, max_size=3)),
    max_leaves=4,
)
programs = st.fixed_dictionaries(
    {
        "layers": st.lists(layers, min_size=1, max_size=4),
        "rows": st.sampled_from([64, 256, 2048]),
        "loss": st.sampled_from(list(LOSSES)),
        "optimizer": st.sampled_from(list(OPTIMIZERS)),
        "how": st.sampled_from([{}, {"foreach": True}, {"foreach": False}]),
        "autocast": st.sampled_from([None, torch.bfloat16]),
        "parts": st.sampled_from([1, 2]),
        "clips": st.booleans(),
        "trains": st.booleans(),
    }
)


def module(layer):
    if isinstance(layer, str):
        return SIMPLE[layer]()
    around, inner = layer
    return AROUND[around](nn.Sequential(*map(module, inner)))


def step_of(program):
    """Return the function and its arguments, on the device."""
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), *map(module, program["layers"]), nn.Linear(WIDTH, 10)
    ).cuda()
    optimizer = OPTIMIZERS[program["optimizer"]](model.parameters(), program["how"])
    kind, loss = program["autocast"], LOSSES[program["loss"]]

    def train(x):
        for _ in range(program["parts"]):
            with torch.autocast("cuda", dtype=kind or torch.bfloat16, enabled=kind is not None):
                cost = loss(model(x))
            cost.backward()
        if program["clips"]:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    @torch.no_grad()
    def predict(x):
        return model(x).argmax(-1)

    return train if program["trains"] else predict, (torch.zeros(program["rows"], WIDTH, device="cuda"),)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # of a reentrant checkpoint
@settings(max_examples=12, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])
@given(programs)
def test_programs(cuda, program):
    """Layers, attention, norms, checkpointing, losses, optimizers, autocast and accumulation in any mixture."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()  # of an example that failed
    fn, args = step_of(program)
    found = run(fn, args, {}, "cuda:0")
    torch.cuda.reset_peak_memory_stats()
    fn(*args)
    assert found.peak_bytes == pytest.approx(torch.cuda.max_memory_allocated() - before, rel=0.02)
    assert sum(row.size_bytes for row in found.rows) == found.peak_bytes
