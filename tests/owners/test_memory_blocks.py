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
    st.tuples(st.integers(0, 40), st.integers(1, 15), st.sampled_from([GPU, "cuda:1"]), st.booleans()),
    max_size=8,
)


def joined(pieces):
    """Ranges of overlapping bytes, those that only touch apart."""
    found = []
    for start, end in sorted(pieces):
        if found and start < found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


@settings(max_examples=400)
@given(st.lists(holdings, min_size=1, max_size=3))
def test_every_byte_has_one_owner(names):
    """Blocks that overlap are one and the first name's; a borrowed one is the block that it begins in.

    Where it begins in none, it is what of it lies before the next one. What is told adds up to the bytes.
    """
    blocks = MemoryBlocks()
    paths = [
        path_of(
            f"n{i}",
            *(
                blocks.number(Holding((device, at), size, device, borrowed=borrowed))
                for at, size, device, borrowed in held
            ),
            rank=i,
        )
        for i, held in enumerate(names)
    ]
    found = found_by(blocks, *paths)
    expected = {}
    for device in (GPU, "cuda:1"):
        every = [one for held in names for one in held if one[2] == device]
        known = {at for at, _, _, borrowed in every if not borrowed}
        largest = {}
        for at, size, _, borrowed in every:
            if at not in known or not borrowed:
                largest[at] = max(size, largest.get(at, 0))
        own = joined([(at, at + size) for at, size in largest.items() if at in known])
        inside = {byte for start, end in own for byte in range(start, end)}
        lent = joined(
            [(at, at + size) for at, size in largest.items() if at not in known and at not in inside]
        )
        for start, end in own + lent:
            reaching = [
                i
                for i, held in enumerate(names)
                if any(
                    on == device and start <= at < end and ((at in inside) == ((start, end) in own))
                    for at, _, on, _ in held
                )
            ]
            others = set() if (start, end) in own else inside
            stop = next((at for at in range(start, end) if at in others), end)
            claimant = f"n{reaching[0]}", device, "variable"
            expected.setdefault(claimant, {})[device, start] = stop - start
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


def test_only_of_large_ranges_the_system_is_asked(monkeypatch):
    """Borrowed memory of this machine's RAM, from 1 MB on: what of it is resident, beside what has an owner."""
    asked = []
    monkeypatch.setattr(
        memory_blocks, "resident_bytes", lambda ranges: [asked.append(one) or 7 for one in ranges]
    )
    blocks = MemoryBlocks()
    for at, size, device, borrowed in (
        (0, MB, DEVICE, True),
        (10 * MB, MB - 1, DEVICE, True),
        (20 * MB, 3 * MB, DEVICE, True),
        (21 * MB, MB, DEVICE, False),
        (30 * MB, MB, DEVICE, False),
        (0, MB, GPU, True),
    ):
        blocks.number(Holding((device, at), size, device, borrowed=borrowed))
    found = found_by(blocks, path_of("x", *range(6)))
    assert asked == [(0, MB), (20 * MB, 21 * MB)]
    told = {owner.device: owner.size_bytes for owner in found.owners}
    assert told == {DEVICE: 7 + MB - 1 + 7 + MB + MB, GPU: MB}


def test_what_is_not_resident_is_nobodys(monkeypatch):
    """A borrowed block of which nothing is in memory."""
    monkeypatch.setattr(memory_blocks, "resident_bytes", lambda ranges: [0 for _ in ranges])
    blocks = MemoryBlocks()
    number = blocks.number(Holding((DEVICE, 0), MB, DEVICE, borrowed=True))
    found = found_by(blocks, path_of("x", number), path_of("y", number, rank=1))
    assert (found.owners, found.shared) == ((), {})


def test_what_only_shows_a_file_is_nobodys(monkeypatch):
    """Asked from 1 MB on, of memory that may be mapped and has an address in RAM."""
    asked = set()
    monkeypatch.setattr(memory_blocks, "of_files", lambda places: asked.update(places) or {30 * MB})
    monkeypatch.setattr(memory_blocks, "resident_bytes", lambda ranges: [9 for _ in ranges])
    blocks = MemoryBlocks()
    for key, size, device, mapped, borrowed in (
        ((DEVICE, 10 * MB), MB, DEVICE, True, False),
        ((DEVICE, 20 * MB), MB - 1, DEVICE, True, False),
        ((DEVICE, 30 * MB), 4 * MB, DEVICE, True, False),
        ((DEVICE, 40 * MB), MB, DEVICE, False, False),
        ((DEVICE, 50 * MB), MB, DEVICE, True, True),
        ((GPU, 60 * MB), MB, GPU, True, False),
        ("nowhere", MB, DEVICE, True, False),
    ):
        blocks.number(Holding(key, size, device, mapped=mapped, borrowed=borrowed))
    found = found_by(blocks, path_of("x", *range(7)), path_of("y", 2, rank=1))
    assert asked == {10 * MB, 30 * MB}
    assert {o.device: o.size_bytes for o in found.owners} == {DEVICE: MB + MB - 1 + MB + 9 + MB, GPU: MB}
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
