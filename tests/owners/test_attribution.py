"""Which name a block is attributed to, and which names share it, against models; each byte counts once."""

import weakref
from itertools import pairwise
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from ipygpulogger.owners import memory_blocks
from ipygpulogger.owners.attribution import GRAPH, Attribution, Root, Span, Traversal
from ipygpulogger.owners.memory_blocks import DEVICE, MemoryBlocks
from ipygpulogger.records import Owner
from ipygpulogger.sources import Holding

MB = 2**20
GPU = "cuda:0"


def path_of(name, *met, rank=0, kind="variable"):
    path = Traversal(Root(name, kind, None), (rank, 0))
    path.found += met
    return path


def found_by(blocks, *paths, in_time=lambda: True, uncounted=()):
    return Attribution(blocks, in_time).result(paths, uncounted)


def blocks_of(*sizes, device=GPU):
    blocks = MemoryBlocks()
    numbers = [blocks.number(Holding((device, 1000 * MB * i), size, device)) for i, size in enumerate(sizes)]
    assert numbers == list(range(len(sizes)))
    return blocks


# -- who reaches what -------------------------------------------------------------------------------


@st.composite
def walks(draw):
    """Paths whose lists hold blocks, and pieces of lists that were there first."""
    paths, pieces = [], []
    for i in range(draw(st.integers(1, 4))):
        path = path_of(f"n{i}", rank=i)
        for _ in range(draw(st.integers(0, 6))):
            known = [one for one in (*paths, path) if one.found]
            if known and draw(st.booleans()):
                of = draw(st.sampled_from(known))
                start = draw(st.integers(0, len(of.found)))
                end = draw(st.integers(start, len(of.found)) | st.just(-1))
                path.found.append(Span(of, start, end))
            else:
                path.found.append(draw(st.integers(0, 9)))
        paths.append(path)
        pieces += [path]
    return paths


def reach(path, start=0, end=None, seen=None):
    """All blocks below a piece of a path's list."""
    seen = set() if seen is None else seen
    found = set()
    for i in range(start, len(path.found) if end is None or end < 0 else end):
        if (path, i) not in seen:
            seen.add((path, i))
            met = path.found[i]
            found |= {met} if type(met) is int else reach(met.traversal, met.start, met.end, seen)
    return found


@settings(max_examples=400)
@given(walks())
def test_whatever_was_met_on_any_path(paths):
    """A path reaches what it met, and all below the pieces of others that it met, once or again and again."""
    blocks = blocks_of(*(1 << i for i in range(10)))
    found = found_by(blocks, *reversed(paths))
    taken, shared = set(), {}
    for path in paths:
        looked_at = set()
        reached = reach(path, seen=looked_at)
        numbers = Attribution(blocks, bool)._reachable(path)
        assert len(numbers) == sum(type(of.found[i]) is int for of, i in looked_at)  # none again and again
        mine = reached - taken
        told = sum(owner.size_bytes for owner in found.owners if owner.name == path.root.name)
        assert told == sum(1 << i for i in mine)
        for i in reached & taken:
            shared.setdefault(next(p.root.name for p in paths if i in reach(p)), set()).add(path.root.name)
        taken |= reached
    assert {owner.name: set(owner.shared) for owner in found.owners if owner.shared} == shared


@given(st.integers(1, 3), st.integers(0, 3))
def test_without_time_only_what_each_path_met_itself(looks, more):
    """Then nothing is complete, and what lies within another block is still that one's."""
    blocks = MemoryBlocks()
    for at, size in ((0, 100), (10, 20), (500, 7)):
        blocks.number(Holding((GPU, at), size, GPU))
    left = [True] * looks
    first = path_of("a", 0, 1)
    paths = [first, path_of("b", 2, Span(first, 0, 2), rank=1), path_of("c", 1, rank=2)]
    found = found_by(blocks, *paths, in_time=lambda: bool(left and left.pop()))
    assert {owner.name: owner.size_bytes for owner in found.owners} == {"a": 100, "b": 7}
    shared = {owner.name: owner.shared for owner in found.owners}
    assert shared == {"a": ("b", "c") if looks > 1 else ("c",), "b": ()}
    assert found.complete == (looks > 2)


def test_what_was_not_seen_to_its_end_is_told():
    """A path with something left to see: its name, and nothing is complete."""
    blocks = blocks_of(5)
    cut = path_of("a", 0)
    cut.push([1, 2])
    found = found_by(blocks, cut, path_of("b", rank=1), uncounted=["z"])
    assert (found.complete, found.cut_short, found.uncounted) == (False, {"a"}, ("z",))
    assert list(cut.pending[0][0]) == [1, 2]
    whole = found_by(blocks, path_of("a", 0))
    assert (whole.complete, whole.cut_short, whole.uncounted) == (True, frozenset(), ())


def test_several_claims_of_one_name():
    """On each device and of each kind it has its own sum, and it shares nothing with itself."""
    blocks = MemoryBlocks()
    for i, device in enumerate([GPU, "cuda:1", GPU, GPU]):
        blocks.number(Holding(i, 10**i, device))
    found = found_by(
        blocks, path_of("x", 0, 1), path_of("x", 2, 0, rank=1), path_of("x", 3, 0, rank=2, kind="output")
    )
    assert found.owners == (
        Owner("x", 1000, GPU, "output"),
        Owner("x", 101, GPU, "variable"),
        Owner("x", 10, "cuda:1", "variable"),
    )


def test_who_shares_large_blocks():
    """Of those of 1 MB and more it is kept, each by its key, and with whom its owner shares anything at all."""
    blocks = blocks_of(MB, MB - 1, 2 * MB)
    found = found_by(blocks, path_of("a", 0, 1), path_of("b", 0, 1, 2, rank=1), path_of("c", 1, 2, rank=2))
    assert found.shared == {(GPU, 0): ("b",), (GPU, 2000 * MB): ("c",)}
    assert {owner.name: owner.shared for owner in found.owners} == {"a": ("b", "c"), "b": ("c",)}


def test_a_graph_is_not_told_beside_its_own_name():
    """Of those who share, an autograd graph is left out if the name that keeps it is listed."""
    blocks = blocks_of(1, MB)
    everybody = [
        path_of(name, 1, rank=i) for i, name in enumerate(["o", f"o{GRAPH}", "p", f"p{GRAPH}", f"q{GRAPH}"])
    ]
    found = found_by(blocks, *everybody)
    assert found.owners[0].shared == found.shared[GPU, 1000 * MB] == ("p", f"q{GRAPH}")


# -- blocks that overlap


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
    asked = []
    monkeypatch.setattr(
        memory_blocks,
        "_residency",
        SimpleNamespace(of=lambda sizes, mapped: asked.append((sizes, mapped)) or {**sizes, 30 * MB: 0}),
    )
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
    ((sizes, may_be_files),) = asked
    assert sizes == {10 * MB: MB, 30 * MB: 4 * MB, 40 * MB: MB}
    assert {10 * MB, 30 * MB} <= may_be_files
    assert 40 * MB not in may_be_files
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
