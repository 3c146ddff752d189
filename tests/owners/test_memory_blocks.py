"""Blocks that overlap, against the bytes themselves: each byte counts once."""

import weakref
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from traversals import GPU, MB, found_by, path_of

from ipygpulogger.owners import memory_blocks
from ipygpulogger.owners.memory_blocks import DEVICE, MemoryBlocks
from ipygpulogger.records import Owner
from ipygpulogger.sources import Holding


class Memory:
    """What dies with its block."""


holdings = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 15), st.sampled_from([GPU, "cuda:1"])), max_size=8
)


@settings(max_examples=400)
@given(st.lists(holdings, min_size=1, max_size=3))
def test_every_byte_has_one_owner(names):
    """Blocks that overlap are one and the first name's; those that only touch are two."""
    blocks = MemoryBlocks()
    paths = [
        path_of(
            f"n{i}",
            *(blocks.number(Holding((device, at), size, device)) for at, size, device in held),
            rank=i,
        )
        for i, held in enumerate(names)
    ]
    found = found_by(blocks, *paths)
    expected = {}
    for device in (GPU, "cuda:1"):
        joined = []
        placed = sorted(
            (at, at + size, i) for i, held in enumerate(names) for at, size, on in held if on == device
        )
        for start, end, i in placed:
            if joined and start < joined[-1][1]:
                joined[-1] = joined[-1][0], max(end, joined[-1][1]), min(i, joined[-1][2])
            else:
                joined.append((start, end, i))
        for start, end, i in joined:
            expected.setdefault((f"n{i}", device, "variable"), {})[device, start] = end - start
    assert found.blocks == expected
    assert {(o.name, o.device, o.kind): o.size_bytes for o in found.owners} == {
        claimant: sum(sizes.values()) for claimant, sizes in expected.items()
    }
    assert all(a.size_bytes >= b.size_bytes for a, b in pairwise(found.owners))
    assert found.complete


def test_what_has_no_address_overlaps_nothing():
    """Keys of any kind: only a device and an address say where a block lies."""
    blocks = MemoryBlocks()
    keys = ["a", 7, (GPU, "b"), ("cuda:1", 3), (GPU, 3)]
    numbers = [blocks.number(Holding(key, 10, GPU)) for key in keys]
    assert found_by(blocks, path_of("x", *numbers)).owners == (Owner("x", 50, GPU, "variable"),)


def test_what_only_shows_a_file_is_nobodys(monkeypatch):
    """Looked up from 1 MB on, of memory that may be mapped and has an address in RAM."""
    asked = set()
    monkeypatch.setattr(memory_blocks, "of_files", lambda places: asked.update(places) or {30 * MB})
    blocks = MemoryBlocks()
    for key, size, device, mapped in (
        ((DEVICE, 10 * MB), MB, DEVICE, True),
        ((DEVICE, 20 * MB), MB - 1, DEVICE, True),
        ((DEVICE, 30 * MB), 4 * MB, DEVICE, True),
        ((DEVICE, 40 * MB), MB, DEVICE, False),
        ((GPU, 60 * MB), MB, GPU, True),
        ("nowhere", MB, DEVICE, True),
    ):
        blocks.number(Holding(key, size, device, mapped=mapped))
    found = found_by(blocks, path_of("x", *range(6)), path_of("y", 2, rank=1))
    assert asked == {10 * MB, 30 * MB}
    assert {o.device: o.size_bytes for o in found.owners} == {DEVICE: MB + MB - 1 + MB + MB, GPU: MB}
    assert not any(owner.shared for owner in found.owners)


def test_what_dies_with_a_block():
    """Of those of 1 MB and more that have such a thing."""
    memory, blocks = Memory(), MemoryBlocks()
    blocks.number(Holding("large", MB, GPU, owner=memory))
    blocks.number(Holding("small", MB - 1, GPU, owner=memory))
    blocks.number(Holding("hidden", MB, GPU))
    assert {key: weak() for key, weak in blocks.alive.items()} == {"large": memory}
    assert all(type(weak) is weakref.ref for weak in blocks.alive.values())
    assert found_by(blocks, path_of("x", 0)).alive is blocks.alive
