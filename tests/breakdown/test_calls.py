"""The calls behind each row of what was alive at the peak."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipygpulogger import measure
from ipygpulogger.allocator.places import Place
from ipygpulogger.breakdown.rows import LabelledBlock, rows_of
from ipygpulogger.records.explained import OTHERS, CallStack, folded
from ipygpulogger.sources.system.memray import installed

MB = 1 << 20
CALLS = st.builds(
    CallStack, st.just(0), st.lists(st.sampled_from("abcdef"), max_size=3).map(tuple), st.integers(0, 9)
)
PLACES = st.sampled_from([Place("In [1]:2", "x = f()"), Place("In [1]:3", "y"), Place("", OTHERS)])
BLOCKS = st.lists(
    st.builds(
        LabelledBlock,
        st.sampled_from(["variables", "activations"]),
        PLACES,
        st.sampled_from(["", "a"]),
        st.integers(1, 1 << 40),
        st.just(""),
        CALLS,
    ),
    max_size=60,
)


@given(BLOCKS, st.integers(0, 9))
def test_the_calls_of_a_row_add_up_to_it(blocks, most):
    """To the byte; the largest eight by name, in their order, and the rest as one without lines."""
    for row in folded(rows_of("cuda:0", blocks), most):
        if not row.stacks:
            continue
        assert sum(one.size_bytes for one in row.stacks) == row.size_bytes
        named = [one for one in row.stacks if one.frames]
        assert row.stacks[: len(named)] == tuple(named)
        assert len(row.stacks) <= len(named) + 1 <= 9
        truth, libraries = Counter(), {}
        for block in blocks:
            if (block.kind, block.place.place) == (row.kind, row.place):
                truth[block.calls.frames] += block.size_bytes
                libraries.setdefault(block.calls.frames, set()).add(block.calls.library_frames)
        assert all(one.size_bytes == truth[one.frames] for one in named)
        assert all(one.library_frames == max(libraries[one.frames]) for one in named)
        left = [truth[frames] for frames in truth if frames and frames not in {one.frames for one in named}]
        assert max(left, default=0) <= min(one.size_bytes for one in named)


def helper(size_mb):
    return bytearray(size_mb * MB)


def middle(size_mb):
    return helper(size_mb)


@pytest.mark.skipif(not installed(), reason="memray is not installed")
def test_the_calls_of_general_ram():
    """A helper that is called from two lines, with different sizes: both are there, each with its own."""
    with measure(peak="all") as measured:
        kept = [helper(30)]
        kept.append(middle(20))
    row = max(measured.last.at_peak, key=lambda row: row.size_bytes)
    assert row.size_bytes == sum(one.size_bytes for one in row.stacks)
    found = {
        tuple(frame.partition(" ")[2] for frame in one.frames): one.size_bytes // MB for one in row.stacks
    }
    assert {calls[-2:]: size for calls, size in found.items()} == {
        ("test_the_calls_of_general_ram", "helper"): 30,
        ("middle", "helper"): 20,
    }
    assert all(frame.startswith("test_calls.py:") for one in row.stacks for frame in one.frames[-2:])


ROWS = """[(row.name, row.place, row.size_bytes, [[s.size_bytes, s.frames, s.library_frames] for s in row.stacks])
for row in il.record.at_peak if row.device == 'cuda:0' and row.size_bytes >= 1 << 20]"""
BEGIN = [
    "import torch\ntorch.zeros(1, device='cuda');",
    "from ipygpulogger import IPyGPULogger\nil = IPyGPULogger(report='none', peak=True).start()",
]
CELL = """\
def make(mb):
    return torch.zeros(mb << 18, device='cuda')

def deep(n):
    return deep(n - 1) if n else make(8)

a = make(30)
b = [make(10), make(6)]
c = deep(30)
del b[1]
"""
TRAINING = """\
w = torch.ones(1 << 20, device='cuda', requires_grad=True)
def loss_of(x):
    return (w * x).sin().sum()
def step(x):
    loss = loss_of(x)
    loss.backward()
"""


@pytest.mark.torch
@pytest.mark.kernel(gpu=True, begin=BEGIN)
def test_the_calls_of_a_device(kernel):
    """In a notebook: of one cell, of a helper of an earlier one, of a backward pass, below a magic."""

    def rows(code):
        assert kernel.run(code).status == "ok"
        return {row[0]: row[2:] for row in map(tuple, kernel.value(ROWS))}

    def calls(stacks):
        return {tuple(frames): size_bytes >> 20 for size_bytes, frames, _ in stacks}

    found = rows(CELL)
    size_bytes, stacks = found["a, b, c"] if "a, b, c" in found else found["a, c, b"]
    assert calls(stacks) == {
        ("In [1]:7", "In [1]:2 make"): 30,
        ("In [1]:8", "In [1]:2 make"): 10,
        ("In [1]:9", "In [1]:5 deep", "In [1]:2 make"): 8,
    }
    assert sum(one[0] for one in stacks) == size_bytes
    rows(TRAINING)
    found = rows("x = torch.ones(1 << 20, device='cuda')\nstep(x)")
    assert all(sum(one[0] for one in stacks) in (0, size) for size, stacks in found.values())
    line = ("In [3]:2", "In [2]:5 step", "In [2]:3 loss_of")
    frames = [tuple(one[1]) for _, stacks in found.values() for one in stacks]
    assert {line, ("In [3]:1",)} <= set(frames)
    assert all(frame.startswith("In [") for one in frames for frame in one)
    # A backward pass runs in a thread of its own; what waited for it led there.
    found = rows("%%time\nw.grad = None\nfor _ in range(2):\n    step(x)")
    frames = [tuple(one[1]) for _, stacks in found.values() for one in stacks]
    assert ("In [4]:4", "In [2]:6 step") in frames
