"""What grew in a cell: the names and sizes are those of a model that knows who holds what."""

import sys
import tracemalloc
import weakref
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made import plain
from memory import MB

from ipygpulogger.owners import address_space
from ipygpulogger.owners.attribution import Root, WalkResult
from ipygpulogger.owners.growth import Growth, OwnedBlock, Snapshot, bindings, growth
from ipygpulogger.owners.walk import walk
from ipygpulogger.records import DeviceUsage, Owner, Peak, RamUsage, notable
from ipygpulogger.sources import Holding


class Block:
    """A block of memory: an address, which the allocator uses again, and a size."""

    def __init__(self, number, address, size_mb, device):
        self.number = number
        self.address, self.size_bytes, self.device = address, int(size_mb * MB), device


class World:
    """A shell's names, what they hold, and an allocator; the truth about all of it.

    Args:
        reuse: Whether the allocator uses addresses again.
        weak: Whether it is known of each block that it is still the same one.
    """

    def __init__(self, *, reuse=True, weak=False):
        self.names, self.live, self.reuse, self.weak = {}, {}, reuse, weak
        self.hidden, self.base, self.given = [], 100 * MB, 0
        self.cut_short = frozenset()
        self.walks = 0
        self.growth = Growth(self.find, self.used, self.bound)

    def block(self, size_mb, device="cpu"):
        """The lowest free address is used, as allocators do."""
        taken = {block.address for block in self.blocks().values()}
        address = next(i for i in range(len(taken) + 1) if i not in taken) if self.reuse else self.given
        self.given += 1
        block = Block(self.given, address, size_mb, device)
        self.live[block.number] = weakref.ref(block)
        return block

    def find(self, _budget_s, _urgent):
        self.walks += 1
        names = self.names.items()
        roots = [Root(name, "variable", blocks) for name, blocks in names if name not in self.cut_short]
        found = walk(roots, [self.holding], budget_s=60)
        return found._replace(complete=not self.cut_short, cut_short=self.cut_short)

    def holding(self, one):
        if type(one) is not Block:
            return None
        return Holding(str(one.address), one.size_bytes, one.device, owner=one if self.weak else None)

    def blocks(self):
        alive = [block for ref in self.live.values() if (block := ref()) is not None]
        return {block.number: block for block in alive}

    def used(self):
        found = {"cpu": self.base, "cuda:0": 0}
        for block in self.blocks().values():
            found[block.device] += block.size_bytes
        return found

    def bound(self, _only=None):
        return {name.partition(": ")[0]: id(value) for name, value in self.names.items()}

    def cell(self, *steps):
        """The record of a cell that does this."""
        self.growth.refresh()
        before = self.used()
        began = self.growth.begin()
        for step in steps:
            play(self, *step)
        return self.growth.end(began, record(before, self.used()))


def record(before, after, **more):
    gpus = ()
    if after.get("cuda:0") or before.get("cuda:0"):
        used = after["cuda:0"]
        gpus = (
            DeviceUsage(
                before["cuda:0"], used, Peak(used, used, "exact"), index=0, name="Sim", used_bytes=used
            ),
        )
    ram = RamUsage(before["cpu"], after["cpu"], Peak(after["cpu"], after["cpu"], "exact"))
    return plain(gen=ram, gpus=gpus, **{"time_s": 1.0, **more})


def grew(found):
    return {(owner.name, owner.device): owner.size_bytes / MB for owner in found.owners}


@pytest.fixture(params=[(True, True), (True, False), (False, False)], ids=["weakly known", "reused", "new"])
def world(request):
    reuse, weak = request.param
    return World(reuse=reuse, weak=weak)


def play(world, verb, *words):
    """Do one step of a cell."""
    names, (name, *rest) = world.names, words
    if verb == "bind":
        names[name] = [world.block(*rest)]
    elif verb == "hide":
        world.hidden.append(world.block(*words))
    elif name in names:
        match verb:
            case "append":
                names[name].append(world.block(*rest))
            case "pop":
                del names[name][:1]
            case "del":
                del names[name]
            case "rename":
                names[rest[0]] = names.pop(name)
            case "alias":
                names[rest[0]] = names[name]
            case "copy":
                names[rest[0]] = list(names[name])


KNOWN, REUSED, FRESH = (True, True), (True, False), (False, False)  # the allocator: see `World`
ANY = KNOWN, REUSED, FRESH
# fmt: off
GROWTHS = [  # the law, the allocators, the steps of the cells (of none: "between"), which names grew in the last one
    ("each memory is judged by itself", ANY, "bind a 50, bind b 50 cuda:0; append b 50 cuda:0, append a 1 cpu", {("b", "cuda:0"): 50}),
    ("what came, not what is there", ANY, "bind a 50; append a 30", {("a", "cpu"): 30}),
    ("renames and aliases grow nothing", ANY, "bind a 50, bind c 20; rename a b, alias c view, bind x 10", {("x", "cpu"): 10}),
    ("rebinding sets off what went", ANY, "bind a 50, bind b 50, bind c 50; bind a 50, bind b 40, bind c 80", {("c", "cpu"): 30}),
    ("an old block that an alias keeps is not set off", [FRESH], "bind a 50, alias a b; bind a 50", {("a", "cpu"): 50}),
    ("what went is set off in every name that held it", [FRESH], "bind a 50, alias a b; del a, bind b 50, bind c 20", {("c", "cpu"): 20}),
    ("a block like the old one in its place needed no memory", [REUSED], "bind a 50; del a, bind b 50, bind c 20", {("c", "cpu"): 20}),
    ("unless it is known that the old one was freed", [KNOWN], "bind a 50; del a, bind b 50, bind c 20", {("b", "cpu"): 50, ("c", "cpu"): 20}),
    ("a block of another size at an old address is new", [REUSED], "bind a 50; del a, bind b 90", {("b", "cpu"): 90}),
    ("a swap within a container moves nothing", [KNOWN], "bind a 100; pop a, append a 100", {}),
    ("it is not of the next cell either", [KNOWN], "bind a 100; pop a, append a 100; bind x 20", {("x", "cpu"): 20}),
    ("nor is a swap that moves little", ANY, "bind a 100, bind b 1; del a, append b 101; bind x 20", {("x", "cpu"): 20}),
    ("what moves between cells is nobody's", ANY, "bind a 10; between append a 90; bind x 20", {("x", "cpu"): 20}),
]
# fmt: on


@pytest.mark.parametrize(
    ("allocator", "cells", "grown"),
    [(allocator, cells, grown) for _, allocators, cells, grown in GROWTHS for allocator in allocators],
)
def test_growth_of_names(allocator, cells, grown):
    """The laws of the table: exactly these names grew, and nothing is unexplained."""
    reuse, weak = allocator
    world, found = World(reuse=reuse, weak=weak), None
    for cell in cells.split("; "):
        steps = [words.split() for words in cell.removeprefix("between ").split(", ")]
        steps = [[int(word) if word.isdigit() else word for word in words] for words in steps]
        if cell.startswith("between "):
            play(world, *steps[0])
        else:
            found = world.cell(*steps)
    assert grew(found) == grown
    assert found.unexplained == ()


def test_a_search_cut_short_says_so(world):
    """What was found is named, what was not is unexplained, and the record says that there was no time."""
    world.cell(("bind", "a", 50), ("bind", "huge", 70))
    world.cut_short = frozenset(["huge"])
    found = world.cell(("bind", "b", 20), ("append", "huge", 30))
    assert grew(found) == {("b", "cpu"): 20}
    assert found.unexplained == (("cpu", 30 * MB),)
    assert not found.owners_complete


def test_what_a_dropped_name_left_is_unexplained(world):
    """Its memory is still in use and no name holds it; of a search that was cut short nothing is told."""
    world.cell(("bind", "a", 50), ("bind", "b", 20))
    before, used = world.growth.refresh(), world.used()
    world.hidden.append(world.names.pop("a"))
    now = record(used, world.used())
    assert world.growth.unexplained(now, before) == {"cpu": 50 * MB}
    assert world.growth.unexplained(now, before._replace(complete=False)) == {}
    world.cut_short = frozenset(["b"])
    assert world.growth.unexplained(now, before) == {}


def test_without_a_whole_baseline_only_names_that_were_seen_or_bound_count(world):
    """A name that the first walk had no time for may have held its memory before; its growth is unknown."""
    play(world, "bind", "huge", 70)
    play(world, "bind", "seen", 5)
    world.cut_short = frozenset(["huge"])
    world.growth.refresh()
    world.cut_short = frozenset()
    found = world.cell(("bind", "err: step.act", 50), ("append", "huge", 30), ("append", "seen", 40))
    assert grew(found) == {("err: step.act", "cpu"): 50, ("seen", "cpu"): 40}
    assert found.unexplained == (("cpu", 30 * MB),)
    assert not found.owners_complete


# -- when it is looked -----------------------------------------------------------------------------


class Counted:
    """A shell of nothing but figures: what is used, what names are bound to, and how often it was walked."""

    def __init__(self):
        self.used, self.bound, self.blocks = {"cpu": 50 * MB}, {}, {}
        self.complete, self.walks = True, 0
        self.growth = Growth(self.find, lambda: dict(self.used), lambda _only=None: dict(self.bound))

    def find(self, budget_s, urgent):
        self.walks += 1
        self.budget_s, self.urgent = budget_s, urgent
        return WalkResult((), self.complete, self.blocks)

    def walked(self):
        """Whether the next cell's beginning walks."""
        walks = self.walks
        self.growth.refresh()
        return self.walks > walks

    def cell(self, grown, *, refresh=True):
        if refresh:
            self.growth.refresh()
        before = {"cuda:0": 0} | self.used
        began = self.growth.begin()
        for device, size in grown.items():
            self.used[device] = self.used.get(device, 0) + size
        return self.growth.end(began, record(before, {"cuda:0": 0} | self.used))


@pytest.mark.parametrize(("device", "before"), [("cpu", 50 * MB), ("cuda:0", 0)])
@pytest.mark.parametrize(("moved", "stale"), [(MB - 1, False), (MB, True), (1 - MB, False), (-MB, True)])
def test_looked_again_where_a_megabyte_moved(device, before, moved, stale):
    """In either direction, since the last look and not since the last cell; a device that is new held nothing."""
    shell = Counted()
    assert shell.walked()
    assert not shell.walked()
    shell.used[device] = before + moved
    assert shell.walked() is stale


@pytest.mark.parametrize(("size", "stale"), [(MB - 1, False), (MB, True)])
def test_a_large_name_that_was_bound_anew(size, stale):
    """To something as large, so that nothing moved: one of several is enough; names of less than 1 MB are no reason."""
    shell = Counted()
    shell.blocks = {("a", "cpu", "variable"): {1: size}, ("b: x", "cpu", "traceback"): {2: 9 * MB}}
    shell.bound = {"a": 1, "b": 2, "c": 3}
    shell.walked()
    shell.bound |= {"a": 7, "c": 7}
    assert shell.walked() is stale
    shell.bound["b"] = 7
    assert shell.walked()


def test_a_cell_that_begins_unannounced():
    """Without a walk before it there is one when it begins; with one there is no second; after it one if it grew."""
    shell = Counted()
    told = record({"cpu": 100 * MB}, {"cpu": 200 * MB})
    assert shell.growth.end(None, told) is told  # of whose beginning nothing is known
    shell.bound = {"x": 1}
    shell.growth.begin()
    assert shell.walks == 1
    began = shell.growth.begin()
    assert shell.walks == 1
    assert shell.growth.end(began, same := record(shell.used, shell.used)) is same
    assert shell.walks == 1


@pytest.mark.parametrize(("held", "asked"), [(0, True), (10 * MB, True), (50 * MB, False), (90 * MB, False)])
@pytest.mark.parametrize("imported", [True, False])
def test_imported_libraries_are_asked_for_what_no_name_explains(held, asked, imported, monkeypatch):
    """Between the two looks of the cell; where all of RAM is explained, or nothing was imported, nothing is said."""
    shell, looks = Counted(), []
    found = (("torch",), 30 * MB) if imported else ((), 0)
    monkeypatch.setattr(address_space, "libraries", lambda: looks.append("before") or looks)
    monkeypatch.setattr(address_space, "libraries_since", lambda before: looks.append(before) or found)
    shell.growth.refresh()
    shell.blocks = {("a", "cpu", "variable"): {1: held}}
    told = shell.cell({"cpu": 50 * MB}, refresh=False)
    assert len(looks) == 1 + asked
    named = asked and imported
    assert [owner.size_bytes for owner in told.owners if owner.kind == "other"] == [30 * MB] * named
    assert dict(told.unexplained).get("cpu", 0) == 50 * MB - held - 30 * MB * named


# -- two walks --------------------------------------------------------------------------------------


def stand(blocks, *, complete=True, cut_short=(), bound=None):
    """Names with what they hold, by block."""
    made = {
        key: OwnedBlock(name, "variable", device, size, ()) for key, (name, size, device) in blocks.items()
    }
    names = {claim.name: 1 for claim in made.values()} if bound is None else bound
    return Snapshot(made, complete, frozenset(cut_short), {}, names, frozenset(), ())


@pytest.mark.parametrize(("held", "named"), [(61 * MB, True), (61 * MB + 1, False)])
@pytest.mark.parametrize("went", [0, 20 * MB])
def test_more_than_was_consumed_cannot_have_come(held, named, went):
    """Where not all was seen before: what seems to have come may be what was consumed and what went, or 1 MB more."""
    before = stand({1: ("gone", went, "cpu")} if went else {}, complete=False, bound={})
    after = stand({2: ("new", held + went, "cpu")})
    found = growth(before, after, {"new"}, {"cpu": 60 * MB})
    assert (bool(found[0]), found[1]) == (named, {"cpu": went})


@pytest.mark.parametrize("cut", ["", "a", "a: frame"])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("anew", [True, False])
def test_what_may_have_been_there_all_the_time(cut, known, anew):
    """Of a name bound before the cell, and not seen whole then, nothing counts that was not met before."""
    before = stand({}, complete=False, cut_short={cut}, bound={"a": 1} if known else {})
    after = stand({1: ("a: frame", 5 * MB, "cpu")})
    owners, _ = growth(before, after, {"a"} if anew else set(), {"cpu": 60 * MB})
    assert bool(owners) == (anew or (known and not cut))


@pytest.mark.parametrize("count", [16, 17, 18])
def test_sixteen_names_of_a_megabyte_are_told(count):
    """The smaller ones of each device as one, and so is what is smaller than a megabyte."""
    sizes = {i: (f"n{i:02}", (30 - i) * MB, "cpu") for i in range(count)}
    small = {i: (f"s{i}", MB - 1, "cuda:0") for i in range(100, 102)}
    owners, _ = growth(stand({}), stand(sizes), (), {"cpu": 1 << 40})
    assert [owner.name for owner in owners[:16]] == [f"n{i:02}" for i in range(16)]
    rest = [(owner.name, owner.size_bytes, owner.kind) for owner in owners[16:]]
    left = [(30 - i) * MB for i in range(16, count)]
    name = "1 smaller name" if len(left) == 1 else f"{len(left)} smaller names"
    assert rest == ([(name, sum(left), "other")] if left else [])
    few, _ = growth(stand({}), stand(small | {1: ("x", MB, "cpu")}), (), {"cpu": 1 << 40, "cuda:0": 1 << 40})
    assert [(o.name, o.size_bytes) for o in few] == [("x", MB), ("2 smaller names", 2 * MB - 2)]


def test_a_block_that_grew_at_its_place():
    """Counts by as much as it grew; one that shrank set free what it lost, unless it was only not found."""
    before, after, grown = (
        stand({1: ("a", 10 * MB, "cpu")}),
        stand({1: ("a", 13 * MB, "cpu")}),
        {"cpu": 1 << 30},
    )
    (owner,), _ = growth(before, after, (), grown)
    assert (owner.name, owner.size_bytes) == ("a", 3 * MB)
    assert growth(after, before, (), grown) == ((), {"cpu": 3 * MB})
    assert growth(before, stand({}), (), grown)[1] == {"cpu": 10 * MB}
    assert growth(before, stand({}, complete=False), (), grown)[1] == {"cpu": 0}
    assert growth(before, stand({}), (), {"cuda:0": 60 * MB})[1] == {"cuda:0": 0}


@pytest.mark.parametrize("grown", [0, 1, 5 * MB])
def test_who_shares_what_came(grown):
    """Those that reach what is new, and not those that reach what was there."""
    before, after = stand({1: ("a", 10 * MB, "cpu")}), stand({1: ("a", 10 * MB + grown, "cpu")})
    after.blocks[1] = after.blocks[1]._replace(shared=("b",))
    after.blocks[2] = OwnedBlock("a", "variable", "cpu", 7 * MB, ("c", "d"))
    (owner,), _ = growth(before, after, (), {"cpu": 1 << 30})
    assert owner == Owner("a", 7 * MB + grown, "cpu", "variable", ("b", "c", "d") if grown else ("c", "d"))


# -- a shell ----------------------------------------------------------------------------------------


def test_what_the_names_of_a_shell_are_bound_to(monkeypatch):
    """Variables, outputs and the last traceback, each by the id of its value; whatever stands there instead."""
    value, error = object(), ValueError()
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    names = {"x": value, 7: value, "_oh": {3: value}}
    bound = {"x": id(value), "_oh": id(names["_oh"]), "last traceback": id(error)}
    assert bindings(SimpleNamespace(user_ns=names)) == {**bound, "Out[3]": id(value)}
    monkeypatch.delattr(sys, "last_value")
    names["_oh"] = None
    bound = {"x": id(value), "_oh": id(None), "last traceback": id(None)}
    assert bindings(SimpleNamespace(user_ns=names)) == bound


def test_a_quiet_cell_costs_the_same_however_many_names_there_are():
    """IPython adds one or two for each cell: of those that hold nothing large, none is looked at."""
    names = {f"_i{i}": "" for i in range(50_000)} | {"big": "x" * MB, "gone": "y" * MB}
    before = Snapshot(
        {},
        True,
        frozenset(),
        {},
        {**dict.fromkeys(names, 0), "big": id(names["big"])},
        frozenset({"big", "gone"}),
        (),
    )
    ours = Growth(None, None, partial(bindings, SimpleNamespace(user_ns=names)))
    del names["gone"]
    tracemalloc.start()
    assert ours.rebound(before) == {"gone"}
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 20_000


@pytest.mark.parametrize(
    ("ran_s", "changed_mb", "budget_s"),
    [(0, 0, 0.003), (0.1, -100, 0.004 + 0.02 * 100 / 1024), (2, 0, 0.02), (0, 1024, 0.02)],
)
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_walk_takes_time_in_proportion_to_the_cells(ran_s, changed_mb, budget_s, device):
    """To how long those since the last walk ran, and to the memory that changed; 20 ms at most."""
    shell = Counted()
    shell.used = {"cpu": 4096 * MB, "cuda:0": 4096 * MB}
    shell.growth.refresh()
    for part_s in (ran_s / 4, ran_s * 3 / 4):
        began = shell.growth.begin()
        shell.growth.end(began, record(shell.used, shell.used, time_s=part_s))
    shell.used[device] += changed_mb * MB
    shell.bound["x"] = 1  # whatever was large, so that it is walked at all
    shell.growth._take(dict(shell.used))
    assert shell.budget_s == pytest.approx(budget_s)
    shell.growth._last = None
    shell.growth.refresh()
    assert shell.budget_s == 0.02


def test_names_that_were_bound_since_the_last_walk_are_urgent():
    """And those that are new; a first walk knows of none."""
    shell = Counted()
    shell.bound = {"same": 1, "rebound": 2, "deleted": 3}
    shell.cell({})
    assert (shell.walks, shell.urgent) == (1, set())
    shell.bound = {"same": 1, "rebound": 4, "new": 5}
    shell.cell({"cpu": 50 * MB})
    assert (shell.walks, shell.urgent) == (2, {"rebound", "new"})
    shell.bound["new"] = 6
    shell.cell({"cpu": 50 * MB})
    assert (shell.walks, shell.urgent) == (3, {"new"})


# -- any program -----------------------------------------------------------------------------------

NAMES = st.sampled_from("abcd")
SIZES = st.integers(3, 90)
DEVICES = st.sampled_from(["cpu", "cuda:0"])
STEPS = st.one_of(
    st.tuples(st.just("bind"), NAMES, SIZES, DEVICES),
    st.tuples(st.just("append"), NAMES, SIZES, DEVICES),
    st.tuples(st.just("pop"), NAMES),
    st.tuples(st.just("del"), NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("alias"), NAMES, NAMES),
    st.tuples(st.just("copy"), NAMES, NAMES),
    st.tuples(st.just("hide"), SIZES, DEVICES),
)
PROGRAMS = st.lists(st.lists(STEPS, max_size=5), min_size=1, max_size=4)


SWAP = [("pop", "a"), ("hide", 3, "cpu")]  # which moves nothing notable


@given(PROGRAMS, st.booleans())
@example([[("bind", "a", 50, "cpu")], [("alias", "a", "b"), ("bind", "a", 50, "cpu")]], False)
@example([[("bind", "a", 3, "cpu")], SWAP, [("bind", "a", 3, "cpu")]], True)
@settings(max_examples=300, deadline=None)
def test_owners_and_the_unexplained_add_up_to_what_was_consumed(program, reuse):
    """The owners are names that hold new blocks; with what no name holds they add up to what was consumed."""
    world = World(reuse=reuse, weak=True)
    for cell in program:
        was, used, hidden = set(world.blocks()), world.used(), len(world.hidden)
        held = {name: {block.number for block in blocks} for name, blocks in world.names.items()}
        found = world.cell(*cell)
        now, left = world.used(), set(world.blocks())
        for device in ("cpu", "cuda:0"):
            owners = {o.name: o.size_bytes for o in found.owners if o.device == device}
            if not notable(now[device] - used[device], now[device]):
                assert not owners
                continue
            came = {
                name: {b.number: b.size_bytes for b in blocks if b.number not in was and b.device == device}
                for name, blocks in world.names.items()
            }
            for name, size_bytes in owners.items():
                assert size_bytes <= sum(came[name].values())
            hidden_bytes = sum(b.size_bytes for b in world.hidden[hidden:] if b.device == device)
            told = dict(found.unexplained).get(device, 0)
            assert told == hidden_bytes or (not told and not notable(hidden_bytes, now[device]))
            for name, blocks in came.items():
                alone = not any(blocks.keys() & others.keys() for n, others in came.items() if n != name)
                if alone and held.get(name, set()) <= left:
                    assert owners.get(name, 0) == sum(blocks.values())
