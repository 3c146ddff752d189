"""Some of torch's operators, drawn by chance, and all that were ever wrong: estimated and run (`nox -s operators`)."""

import gc
import random

import pytest
import torch
from estimation import every_operator

from ipygpulogger.estimation.run import run

pytestmark = pytest.mark.torch

DRAWN = 15
WERE_WRONG = [
    "addmm", "addmv", "addr", "bmm", "cat", "clamp", "cholesky_inverse", "exp", "fft.fftshift",
    "index_reduce.mean", "isin", "isinf", "ldexp", "masked_scatter", "max.reduction_no_dim",
    "nn.functional.avg_pool3d", "nn.functional.binary_cross_entropy", "nn.functional.cosine_similarity",
    "nn.functional.group_norm", "nn.functional.interpolate.bilinear", "nn.functional.linear",
    "nn.functional.max_pool2d", "nn.functional.pad.reflect", "nn.functional.soft_margin_loss",
    "nn.functional.unfold", "normal", "renorm", "sgn", "scatter_reduce.mean", "sort",
    "torch.ops.aten._safe_softmax.default", "var_mean", "vdot",
]  # fmt: skip


@pytest.fixture(scope="module")
def operators():
    found = {op.full_name: op for op in every_operator.op_db()}
    gc.collect()
    gc.freeze()  # the list is never garbage
    yield found
    gc.unfreeze()


def wrong(found):
    return [
        (one.operator, one.call, one.how, one.excess_bytes, one.notes) for one in found if not one.is_right
    ]


def test_what_was_wrong(cuda, operators):
    """Too little, or too much, without a word: forward, backward, in place, and into an empty tensor."""
    found = [one for name in WERE_WRONG for one in every_operator.of_operator(operators[name], 1)]
    assert sum(not one.reason for one in found) > 2 * len(WERE_WRONG)
    assert not wrong(found)


def test_a_sample(cuda, operators):
    """Others than those, always the same; torch's own names decide which, so another torch may draw others."""
    names = random.Random(7).sample(sorted(operators), DRAWN)
    found = [one for name in names for one in every_operator.of_operator(operators[name], 1)]
    assert sum(not one.reason for one in found) > DRAWN
    assert not wrong(found)


def test_what_is_not_in_the_list(cuda):
    """`op_db` has neither operators without an input nor those that need cuDNN."""
    found = run(lambda: torch.randperm(1 << 20, device="cuda"), (), {}, "cuda:0")
    assert found.notes == ("randperm allocates memory inside that is not counted.",)


def test_it_notices(cuda, operators, monkeypatch):
    """The comparison itself: a missing note and a wrong figure are found."""
    from ipygpulogger.estimation import kernels
    from ipygpulogger.estimation import run as notes

    monkeypatch.setattr(notes, "_INSIDE", "")
    assert wrong(every_operator.of_operator(operators["isin"], 1))
    monkeypatch.setattr(kernels.Kernels, "use", lambda *_: None)
    assert wrong(every_operator.of_operator(operators["mm"], 1))
