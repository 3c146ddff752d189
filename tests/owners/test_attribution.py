"""Which name a block is attributed to, and which names share it, against a model that follows every entry."""

from hypothesis import given, settings
from hypothesis import strategies as st
from traversals import GPU, MB, blocks_of, found_by, path_of

from ipygpulogger.owners.attribution import GRAPH, Attribution, Span
from ipygpulogger.owners.memory_blocks import MemoryBlocks
from ipygpulogger.records import Owner
from ipygpulogger.sources import Holding

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
    """With something left to see nothing is complete."""
    blocks = blocks_of(5)
    cut = path_of("a", 0)
    cut.push([1, 2])
    found = found_by(blocks, cut, path_of("b", rank=1), uncounted=["z"])
    assert (found.complete, found.uncounted) == (False, ("z",))
    assert list(cut.pending[0][0]) == [1, 2]
    whole = found_by(blocks, path_of("a", 0))
    assert (whole.complete, whole.uncounted) == (True, ())


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
