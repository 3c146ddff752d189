"""Which block is whose: against the bytes themselves, each of which has one owner."""

import weakref
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ipygpulogger.owners import blocks as claims
from ipygpulogger.owners.blocks import GRAPH, Blocks, Claims, Link, Node, Path
from ipygpulogger.owners.host_arrays import DEVICE
from ipygpulogger.owners.walk import Root
from ipygpulogger.records import Owner
from ipygpulogger.sources import Holding

MB = 2**20
GPU = "cuda:0"


class Memory:
    """What dies with its block."""


def path_of(name, *met, rank=0, kind="variable", label=""):
    path = Path(Root(name, kind, None, label), (rank, 0))
    path.met += met
    return path


def found_by(blocks, *paths, seen=None, in_time=lambda: True, uncounted=()):
    return Claims(blocks, seen or {}, in_time).found(paths, uncounted)


def blocks_of(*sizes, device=GPU):
    blocks = Blocks()
    numbers = [blocks.number(Holding((device, 1000 * MB * i), size, device)) for i, size in enumerate(sizes)]
    assert numbers == list(range(len(sizes)))
    return blocks


# -- blocks and the bytes under them ----------------------------------------------------------------

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

    Where it begins in none, it is what of it lies beside the others. What is told adds up to the bytes.
    """
    blocks = Blocks()
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
            bytes_left = set(range(start, end)) - (set() if (start, end) in own else inside)
            claimant = f"n{reaching[0]}", device, "variable"
            expected.setdefault(claimant, {})[device, start] = len(bytes_left)
    assert found.blocks == expected
    assert {(o.name, o.device, o.kind): o.size_bytes for o in found.owners} == {
        claimant: sum(sizes.values()) for claimant, sizes in expected.items()
    }
    assert all(a.size_bytes >= b.size_bytes for a, b in pairwise(found.owners))
    assert found.complete


def test_what_has_no_address_overlaps_nothing():
    """Keys of any kind: only a device and an address say where a block lies."""
    blocks = Blocks()
    keys = ["a", 7, (GPU, "b"), ("cuda:1", 3), (GPU, 3)]
    numbers = [blocks.number(Holding(key, 10, GPU)) for key in keys]
    assert found_by(blocks, path_of("x", *numbers)).owners == (Owner("x", 50, GPU, "variable"),)


def test_only_of_large_ranges_the_system_is_asked(monkeypatch):
    """Borrowed memory of this machine's RAM, from 1 MB on: what of it is resident, beside what has an owner."""
    asked = []
    monkeypatch.setattr(claims, "resident_bytes", lambda ranges: [asked.append(one) or 7 for one in ranges])
    blocks = Blocks()
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
    assert asked == [[(0, MB)], [(20 * MB, 21 * MB), (22 * MB, 23 * MB)]]
    told = {owner.device: owner.size_bytes for owner in found.owners}
    assert told == {DEVICE: 7 + MB - 1 + 7 + MB + MB, GPU: MB}


def test_what_is_not_resident_is_nobodys(monkeypatch):
    """A borrowed block of which nothing is in memory."""
    monkeypatch.setattr(claims, "resident_bytes", lambda ranges: [0 for _ in ranges])
    blocks = Blocks()
    number = blocks.number(Holding((DEVICE, 0), MB, DEVICE, borrowed=True))
    found = found_by(blocks, path_of("x", number), path_of("y", number, rank=1))
    assert (found.owners, found.shared) == ((), {})


def test_what_only_shows_a_file_is_nobodys(monkeypatch):
    """Asked from 1 MB on, of memory that may be mapped and has an address in RAM."""
    asked = set()
    monkeypatch.setattr(claims, "of_files", lambda places: asked.update(places) or {30 * MB})
    monkeypatch.setattr(claims, "resident_bytes", lambda ranges: [9 for _ in ranges])
    blocks = Blocks()
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


# -- who reaches what -------------------------------------------------------------------------------


@st.composite
def walks(draw):
    """Paths whose lists hold blocks, and pieces of lists that were there first."""
    paths, pieces = [], []
    for i in range(draw(st.integers(1, 4))):
        path = path_of(f"n{i}", rank=i)
        for _ in range(draw(st.integers(0, 6))):
            known = [one for one in (*paths, path) if one.met]
            if known and draw(st.booleans()):
                of = draw(st.sampled_from(known))
                start = draw(st.integers(0, len(of.met)))
                end = draw(st.integers(start, len(of.met)) | st.just(-1))
                path.met.append(Node(of, start, end))
            else:
                path.met.append(draw(st.integers(0, 9)))
        paths.append(path)
        pieces += [path]
    return paths


def reach(path, start=0, end=None, seen=None):
    """All blocks below a piece of a path's list."""
    seen = set() if seen is None else seen
    found = set()
    for i in range(start, len(path.met) if end is None or end < 0 else end):
        if (path, i) not in seen:
            seen.add((path, i))
            met = path.met[i]
            found |= {met} if type(met) is int else reach(met.path, met.start, met.end, seen)
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
        numbers, _ = Claims(blocks, {}, bool)._reached(path)
        assert len(numbers) == sum(type(of.met[i]) is int for of, i in looked_at)  # none again and again
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
    blocks = Blocks()
    for at, size in ((0, 100), (10, 20), (500, 7)):
        blocks.number(Holding((GPU, at), size, GPU))
    left = [True] * looks
    first = path_of("a", 0, 1)
    paths = [first, path_of("b", 2, Node(first, 0, 2), rank=1), path_of("c", 1, rank=2)]
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
    assert list(cut.open[0][0]) == [1, 2]
    whole = found_by(blocks, path_of("a", 0))
    assert (whole.complete, whole.cut_short, whole.uncounted) == (True, frozenset(), ())


def test_several_claims_of_one_name():
    """On each device and of each kind it has its own sum, and it shares nothing with itself."""
    blocks = Blocks()
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


def test_what_dies_with_a_block():
    """Of those of 1 MB and more that have such a thing."""
    memory, blocks = Memory(), Blocks()
    blocks.number(Holding("large", MB, GPU, owner=memory))
    blocks.number(Holding("small", MB - 1, GPU, owner=memory))
    blocks.number(Holding("hidden", MB, GPU))
    assert {key: weak() for key, weak in blocks.alive.items()} == {"large": memory}
    assert all(type(weak) is weakref.ref for weak in blocks.alive.values())
    assert found_by(blocks, path_of("x", 0)).alive is blocks.alive


# -- graphs and frames, which bear another's name ---------------------------------------------------


def test_what_lies_behind_a_link():
    """A path begun below another has a name of its own; whoever reaches it by another way shares it."""
    blocks = blocks_of(1, 2, 4, 8)
    graph = path_of(f"a{GRAPH}", 0, 1, rank=5)
    deeper = path_of(f"b{GRAPH}", 3, rank=6)
    graph.met.append(Link(deeper, 8, "a"))
    seen = {7: Node(graph, 1, 3), 8: Node(deeper, 0, 1)}
    own, other = path_of("a", Link(graph, 7, "a")), path_of("b", 2, Link(graph, 7, "a"), rank=1)
    found = found_by(blocks, own, other, graph, deeper, seen=seen)
    told = {owner.name: (owner.size_bytes, owner.shared) for owner in found.owners}
    assert told == {
        "b": (4, ()),
        f"a{GRAPH}": (3, ("b",)),  # by a piece of it; `a` itself goes without saying
        f"b{GRAPH}": (8, ("b", f"a{GRAPH}")),
    }


def test_links_in_a_circle_end():
    """Two graphs that lead to each other are looked through once."""
    blocks = blocks_of(1, 2)
    one, two = path_of("one", 0, rank=5), path_of("two", 1, rank=6)
    one.met.append(Link(two, 2, "other"))
    two.met.append(Link(one, 1, "other"))
    seen = {1: Node(one, 0, 2), 2: Node(two, 0, 2)}
    found = found_by(blocks, path_of("x", Link(one, 1, "other")), one, two, seen=seen)
    assert {owner.name: set(owner.shared) for owner in found.owners} == {
        "one": {"x", "two"},
        "two": {"x", "one"},
    }


def test_without_time_nothing_behind_a_link():
    """What is shared through graphs is not looked for any more, and nothing is complete."""
    blocks = blocks_of(1)
    graph = path_of("g", 0, rank=5)
    paths = [path_of("x", Link(graph, 7, "other")), graph]
    left = [False, True, True]
    found = found_by(blocks, *paths, seen={7: 0}, in_time=left.pop)
    assert (found.owners, found.complete) == ((Owner("g", 1, GPU, "variable"),), False)


def test_what_a_path_is_called():
    """Its label, where it has one, else its name, is what shares; a graph is not told beside its own name."""
    blocks = blocks_of(1, MB)
    graph = path_of("g", 0, rank=5)
    paths = [
        path_of("x", Link(graph, 7, "y"), label="frame of x"),
        path_of("y", Link(graph, 7, "y"), rank=1),
        graph,
    ]
    found = found_by(blocks, *paths, seen={7: 0})
    assert [(owner.name, owner.shared) for owner in found.owners] == [("g", ("frame of x",))]
    everybody = [
        path_of(name, 1, rank=i) for i, name in enumerate(["o", f"o{GRAPH}", "p", f"p{GRAPH}", f"q{GRAPH}"])
    ]
    found = found_by(blocks, *everybody)
    assert found.owners[0].shared == found.shared[GPU, 1000 * MB] == ("p", f"q{GRAPH}")
