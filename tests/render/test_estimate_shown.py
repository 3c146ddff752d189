"""An estimate as text."""

from dataclasses import replace

import pytest
from memory import MB

from ipygpulogger import AtPeak, Estimate
from ipygpulogger.records.estimate import BatchEstimate

ROWS = (
    AtPeak("cuda:0", "activations", "loss = step(batch)", "In [7]:3", 5120 * MB, 96),
    AtPeak("cuda:0", "parameters", "model", "before the cell", 2410 * MB, 12),
    AtPeak("cuda:0", "gradients", "loss.backward()", "In [7]:4", 2312 * MB, 12),
)
ERROR = "RuntimeError: shape '[8, 64]' is invalid for input of size 1024, and so on and so forth"
BATCHES = (
    BatchEstimate(8, 9842 * MB, 9900 * MB, fits=True, short_bytes=0),
    BatchEstimate(16, 14962 * MB, 15000 * MB, fits=False, short_bytes=2 * MB),
    BatchEstimate(128, None, None, None, None, ERROR),
)
FITS = Estimate(
    "step", "cuda:0", 9842 * MB, 9900 * MB, ROWS, 2410 * MB, 16384 * MB, 14960 * MB, True, 0,
    batches=BATCHES, batched="the leading dimension 8 of images and labels", notes=("A note.",),
)  # fmt: skip


def test_text():
    """The headline first, then what it is compared with, the rows, the batches, the notes."""
    assert repr(FITS).splitlines() == [
        "Needs 7432 MB on cuda:0: fits, 5118 MB left (step)",
        "  Available: 12550 MB of 16384 MB.",
        "  With the 2410 MB already there: highest 9842 MB.",
        "  The allocator would reserve 9900 MB, cached memory included.",
        *repr(FITS).splitlines()[4:7],
        "  batch   highest",
        "      8   9842 MB  fits, 5118 MB left  <- the largest that fits",
        "     16  14962 MB  2 MB short",
        "    128            cannot be estimated: RuntimeError: shape '[8, 64]' is invali…",
        "  A batch size replaces the leading dimension 8 of images and labels.",
        "  A note.",
    ]


UNKNOWN = {"fits": None, "short_bytes": None, "available_bytes": None, "unknown": "no GPU"}


@pytest.mark.parametrize(
    ("changed", "headline"),
    [
        ({"fits": False, "short_bytes": 1204 * MB}, "Needs 7432 MB on cuda:0: 1204 MB short (step)"),
        (UNKNOWN, "Needs 7432 MB on cuda:0 (step)"),
        (
            {"peak_bytes": 3, "held_bytes": 0, "available_bytes": 3 + MB},
            "Needs <1 MB on cuda:0: fits, 1 MB left (step)",
        ),
        ({"label": "\x1b[31m<b>&\n"}, "Needs 7432 MB on cuda:0: fits, 5118 MB left (?[31m<b>&?)"),
    ],
)
def test_headline(changed, headline):
    """One plain line: what is needed besides what is there, and whether it fits; unknown is not said to fit."""
    lines = repr(replace(FITS, **changed)).splitlines()
    assert lines[0] == headline
    assert max(map(len, lines)) <= 80
