"""What single operators allocate for a moment, against the allocator of a simulated device."""

import copy
import functools
import itertools
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ipygpulogger.estimation.run import run
from ipygpulogger.estimation.values import EstimateError

pytestmark = pytest.mark.torch

WIDTH, HEADS, ROWS = 64, 4, 4096


def excess(fn, *args):
    """Return how much more an estimate is than the peak on the device, with its notes."""
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    found = run(fn, args, {}, "cuda:0")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    fn(*args)
    really = torch.cuda.max_memory_allocated() - before
    return found.peak_bytes - found.held_bytes - really, found.notes


def test_a_layer_of_a_transformer_in_inference(cuda):
    """On the device it is one operator, whose kernels are not known: a note names it, in inference alone."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 256, batch_first=True).cuda().eval()
    x = torch.ones(8, 128, WIDTH, device="cuda")
    says = "MultiheadAttention and TransformerEncoderLayer allocate memory inside that is not counted."
    for around in (torch.no_grad, torch.inference_mode):
        more, notes = excess(around()(layer), x)
        assert notes == (says,) and more > -16384, (around, more)
    assert says not in run(layer, (x,), {}, "cuda:0").notes


def trains(select):
    """Return a step whose loss is a sum of what is selected: the gradient's elements share their memory."""

    def step(x):
        select(x).sum().backward()
        x.grad = None

    return step


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.long, device="cuda")


LOSSES = [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits]
WEIGHTED = functools.partial(F.binary_cross_entropy_with_logits, pos_weight=torch.ones(WIDTH))


def test_losses(cuda):
    """There is a value for each element before they are reduced; some gradients are computed in place."""
    x = torch.ones(ROWS, WIDTH, device="cuda", requires_grad=True)
    for loss, reduction in itertools.product([*LOSSES, WEIGHTED], ("mean", "sum", "none")):
        named = {name: one.cuda() for name, one in getattr(loss, "keywords", {}).items()}
        named |= {"target": torch.zeros_like(x, requires_grad=False), "reduction": reduction}
        fn = functools.partial(getattr(loss, "func", loss), **named)
        assert excess(torch.no_grad()(fn), x)[0] in range(-512, 1025), (loss, reduction)
        assert excess(trains(fn), x) == (0, ()), (loss, reduction)


SELECTED = {
    "max": lambda x: x.max(1)[0],
    "gather": lambda x: x.gather(1, zeros(ROWS, 2)),
    "take": lambda x: x.take(zeros(8)),
    "trace": torch.trace,
    "mm": lambda x: x @ x[:WIDTH].T,
    "bmm": lambda x: x.view(-1, WIDTH, WIDTH) @ x.view(-1, WIDTH, WIDTH),
    "roll": lambda x: x.roll(3, 0),
    "embedding": lambda x: F.embedding(zeros(1024), x),
    "layer_norm": lambda x: F.layer_norm(x, (WIDTH,)),
    "log_softmax": lambda x: x.log_softmax(-1),
    "two uses": lambda x: (x * 1).add_(x),
    "a learned bias of attention": lambda x: F.scaled_dot_product_attention(
        *[x.view(4, 16, 64, 64)] * 3, attn_mask=(x * 1).view(4, 16, 64, 64)
    ),
    "a bias of attention with the heads last": lambda x: F.scaled_dot_product_attention(
        *[x.view(4, 16, 64, 64)] * 3, attn_mask=(x * 1).view(4, 64, 64, 16).permute(0, 3, 1, 2)
    ),
    "the same with dropout": lambda x: F.scaled_dot_product_attention(
        *[x.view(4, 16, 64, 64)] * 3, attn_mask=x.view(4, 64, 64, 16).permute(0, 3, 1, 2), dropout_p=0.1
    ),
    "attention to transposed words": lambda x: F.scaled_dot_product_attention(
        *[x.view(4, 16, 64, 64).mT] * 3
    ),
    "roll of two dimensions": lambda x: (x * 1).roll((1, 2), (0, 1)),
    "batch_norm of data": lambda x: F.batch_norm(x.detach(), None, None, x[0], x[1], training=True),
}
INSIDE = {
    "var_mean": lambda x: torch.var_mean(x, 0),
    "logsumexp": lambda x: x.logsumexp(0),
    "sum in doubles": lambda x: x.sum(dtype=torch.float64),
    "cumsum of bool": lambda x: (x > 0).cumsum(-1),
    "one_hot": lambda x: F.one_hot(zeros(len(x)), 100),
    "attention of groups": lambda x: F.scaled_dot_product_attention(
        x.half().view(4, 16, 64, 64), *[x.half().view(4, 16, 64, 64)[:, :4]] * 2, enable_gqa=True
    ),
    "out=": lambda x: torch.exp(x, out=torch.empty(0, device="cuda")),
    "cat into an empty one": lambda x: torch.cat([x, x], out=torch.empty(0, device="cuda")),
    "one dimension of a square": lambda x: torch.linalg.vector_norm(x.repeat(4, 16)[:1024], dim=1),
    "a matrix of every other column": lambda x: x[:, ::2] @ x[: WIDTH // 2],
    "a matrix as its columns stand": lambda x: x[:WIDTH].T @ x[:WIDTH],
    "a matrix and a vector": lambda x: x @ x[0],
    "a matrix and one number as a vector": lambda x: x @ x[0, :1].expand(WIDTH),
    "resize_": lambda x: (x * 1).resize_(4 * ROWS, WIDTH),
}


def test_gradients(cuda):
    """The engine writes to what it has just made, and to the first gradient of several."""
    for name, select in SELECTED.items():
        x = torch.ones(ROWS, WIDTH, device="cuda", requires_grad=True)
        assert excess(trains(select), x) == (0, ()), name


def test_operators(cuda):
    """Casts before sums, copies, counts and indices that are there for a moment; kernels of CUDA's own."""
    x = torch.ones(ROWS, WIDTH, device="cuda")
    for name, fn in INSIDE.items():
        more, notes = excess(torch.no_grad()(fn), x)
        assert abs(more) <= 16384 and not notes, (name, more, notes)


def test_models_that_are_copied(cuda):
    """A copy is of the same kind, and is used like the original."""
    model, x = nn.Linear(512, 512).cuda(), torch.ones(64, 512, device="cuda")
    optimizer = torch.optim.Adam(model.parameters())

    def step(x):
        best = copy.deepcopy(model)
        model(x).sum().backward()
        optimizer.step()
        copy.deepcopy(optimizer.state_dict())
        model.load_state_dict(best.state_dict())
        best(x).sum().backward()

    assert excess(step, x)[0] in (0, -512)  # Adam counts its steps, which are copied with the rest


def test_models_that_are_converted(cuda):
    """Each parameter's memory is replaced, and the old one is freed."""
    x = torch.ones(64, 256, device="cuda")
    most_bytes = 4 * (256 * 256 * 8 + 2048)
    for change in (nn.Module.half, nn.Module.double, lambda model: model.to("cuda", torch.bfloat16)):
        model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]).cuda()

        def step(x, model=model, change=change):
            changed = change(model)
            changed(x.to(changed[0].weight.dtype)).sum().backward()

        found = run(step, (x,), {}, "cuda:0")
        assert sum(row.size_bytes for row in found.rows if row.kind == "parameters") <= most_bytes, change
        assert excess(step, x) == (0, ()), change


def test_autocast_within_inference_mode(cuda):
    model, x = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)).cuda(), torch.ones(64, 64, device="cuda")

    def predict(x):
        with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
            return model(x).softmax(-1)

    assert excess(predict, x) == (0, ())


def test_what_torch_checks_itself(cuda):
    """Arguments of distributions and masks of transformers are taken as valid; the user's decide."""
    x = torch.ones(64, 64, device="cuda")
    normal = torch.distributions.Normal
    assert not run(lambda x: normal(x, x.exp()).log_prob(x), (x,), {}, "cuda:0").notes
    layer = nn.TransformerDecoder(nn.TransformerDecoderLayer(64, 4, 64), 1).cuda()
    mask = nn.Transformer.generate_square_subsequent_mask(64, device="cuda")
    assert run(lambda x: layer(x, x, tgt_mask=mask), (x,), {}, "cuda:0").peak_bytes
    with pytest.raises(EstimateError):
        run(lambda x: bool((x > 0).all()), (x,), {}, "cuda:0")


LIBRARY = {"__name__": "library"}  # that starts a thread, as tqdm does
exec("import threading\ndef begin():\n    threading.Thread(target=int).start()", LIBRARY)
NOTES = [
    (lambda x: (x.sort(), x.count_nonzero()), "count_nonzero and sort allocate memory inside that is not"),
    (lambda x: x.cumprod(-1).sum().backward(), "The backward pass of cumprod may need less"),
    (lambda x: nn.LSTM(64, 64, device="cuda")(x)[0], "LSTM has kernels on CUDA that keep other tensors"),
    (lambda x: F.conv1d(x, x[:, :, None]), "convolution allocates memory inside"),
    (lambda _: LIBRARY["begin"](), r"is started \(test_inside_operators.py:\d+\)"),
]


def test_notes(cuda, monkeypatch):
    """What is not counted as it is on the device is named."""
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    x = torch.ones(64, 64, device="cuda", requires_grad=True)
    for fn, says in NOTES:
        assert re.search(says, " ".join(run(fn, (x,), {}, "cuda:0").notes)), says
