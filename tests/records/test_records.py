"""The arithmetic of a record: every figure against a truth that was there first."""

import dataclasses
import json
from datetime import datetime, timezone

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ipygpulogger.records import (
    CPU,
    DRIVER,
    LIBRARIES,
    CellRecord,
    ChildrenUsage,
    Data,
    DeviceUsage,
    Heap,
    Held,
    LineUsage,
    Measurement,
    Metric,
    Owner,
    Peak,
    RamUsage,
    Usage,
    came_back,
    growing_names,
    held_bytes,
    moved_between,
    notable,
)

MB = 2**20
BEGIN = datetime(2024, 5, 6, 7, 8, 9, tzinfo=timezone.utc)
SIZES = st.integers(0, 1 << 40)
CHANGES = st.integers(-(1 << 40), 1 << 40)


def ram(before=0, after=0, peak=None, heap_before=None, heap_after=None):
    peak = max(before, after) if peak is None else peak
    return RamUsage(before, after, Peak(peak, peak, "exact"), heap_before, heap_after)


def gpu(index=0, before=0, after=0, peak=None, **fields):
    peak = max(before, after) if peak is None else peak
    return DeviceUsage(before, after, Peak(peak, peak, "exact"), index=index, name="a card", **fields)


def measured(gen=None, *gpus):
    return Measurement(label="x", started_at=BEGIN, time_s=1.5, gen=gen or ram(), gpus=gpus)


def cell(gen=None, *gpus, **fields):
    fields = {"execution_count": 1, "cell_id": None, "source": "x", "status": "ok"} | fields
    return CellRecord(label="In [1]", started_at=BEGIN, time_s=1.5, gen=gen or ram(), gpus=gpus, **fields)


def test_a_device_is_named_as_torch_names_it():
    """ "cuda:0"; a key tells slices of one card apart as well."""
    assert (gpu(3, backend="xpu").id, gpu(3, uuid="MIG-1").key) == ("xpu:3", ("cuda", 3, "MIG-1"))


@given(SIZES, CHANGES, SIZES, st.none() | SIZES, st.sampled_from([0, 512]))
def test_runs_in_sum(first, change, peaked, most, grain):
    """The usage of several runs has their sum as consumed, the most of one as peaked, within its bounds."""
    found = Usage.of_runs(first, change, (peaked, most), grain)
    assert (found.before_bytes, found.consumed_bytes, found.peaked_bytes) == (first, change, peaked)
    if most is None:
        assert (found.peak.quality, found.peaked_at_most_bytes) == ("sampled", None)
    else:
        assert found.peaked_at_most_bytes == max(peaked, most)
        assert found.peak.quality == ("exact" if most - peaked <= grain else "bounded")


# -- consumed and peaked ----------------------------------------------------------------------------


@given(st.lists(SIZES, min_size=1))
@example([0])
@example([1])
@example([0, 1, 0])
def test_consumed_and_peaked_make_what_a_scope_needed(course):
    """From where it began, what stays and what was needed for a moment lead to the highest point."""
    before, after, highest = course[0], course[-1], max(course)
    usage = Usage(before, after, Peak(highest, highest, "exact"))
    assert before + usage.consumed_bytes == after
    assert max(before, after) + usage.peaked_bytes == highest


@given(SIZES, SIZES, st.integers(1, 1 << 20))
def test_peaked_is_never_negative(before, after, missed):
    """Also where the counter's grain put the peak below an end."""
    usage = Usage(before, after, Peak(max(before, after) - missed, None, "sampled"))
    assert usage.peaked_bytes == 0


@given(SIZES, SIZES, SIZES)
def test_what_a_scope_needed_at_once(before, after, highest):
    """From what was in use before it up to its highest moment, whatever it gave back."""
    highest = max(before, after, highest)
    usage = Usage(before, after, Peak(highest, highest, "exact"))
    if after >= before:
        assert usage.needed_bytes == highest - before
    else:
        assert usage.needed_bytes == highest - max(before, after)
    assert usage.needed_bytes >= 0


@given(SIZES, SIZES)
@example(0, MB)
@example(0, MB + 1)
@example(500 * MB, 5 * MB)
@example(500 * MB, 5 * MB + 1)
def test_a_coarse_grain_is_over_a_megabyte_and_a_hundredth(size, precision):
    """Just as much is not more."""
    peak = Peak(size, size, "exact", precision)
    assert peak.coarse == (precision > MB and precision > size // 100)


# -- what malloc keeps ------------------------------------------------------------------------------


@given(SIZES, SIZES, CHANGES, CHANGES, CHANGES)
@example(0, 0, 0, 0, 0)
@example(10, 10, 1, 1, 1)
@example(10, 10, -1, 1, 1)
def test_what_malloc_keeps_of_what_was_consumed(in_use, kept, handed_out, newly_kept, elsewhere):
    """Resident memory is what malloc handed out, what it keeps, and what other means took.

    Of what was consumed it keeps no more than it keeps newly, nor more than is left beside what it handed out.
    """
    heaps = Heap(in_use, kept), Heap(in_use + handed_out, kept + newly_kept)
    consumed = handed_out + newly_kept + elsewhere
    usage = ram(1 << 45, (1 << 45) + consumed, None, *heaps)
    assert usage.newly_kept_bytes == newly_kept
    assert usage.newly_in_use_bytes == (max(0, handed_out))
    part = usage.kept_of_consumed_bytes
    if handed_out >= 0 and elsewhere >= 0:
        assert part == (max(0, newly_kept))
    beside = consumed - usage.newly_in_use_bytes
    assert part >= 0
    assert not part or (part in (newly_kept, beside) and part <= newly_kept and part <= beside)
    assert part or newly_kept <= 0 or beside <= 0


@pytest.mark.parametrize(("before", "after"), [(None, Heap(5, 7)), (Heap(5, 7), None), (None, None)])
def test_an_allocator_that_tells_nothing_keeps_nothing(before, after):
    """Where one end is unknown the change is, and nothing is taken off what was consumed."""
    usage = ram(0, 100, None, before, after)
    assert (usage.newly_kept_bytes, usage.newly_in_use_bytes, usage.kept_of_consumed_bytes) == (0, 0, 0)


# -- the ladder of a device -------------------------------------------------------------------------

parts = st.fixed_dictionaries(
    dict.fromkeys(("tensors", "cached", "context", "others", "free", "drivers"), SIZES)
)


@given(
    parts,
    st.booleans(),
    st.booleans(),
    st.sampled_from(["both", "allocated alone", "nothing"]),
    st.booleans(),
)
def test_the_ladder_adds_up(truth, neighbours_known, driver_known, allocator, on_the_way):
    """Every rung is what was put there; what is not told apart stands together; the sum is the total."""
    taken = truth["tensors"] + truth["cached"] + truth["context"] + truth["others"]
    drivers = truth["drivers"] if driver_known else 0
    usage = gpu(
        total_bytes=taken + truth["free"] + drivers,
        used_bytes=taken + on_the_way,  # of another moment: the rungs are made from what is free
        free_bytes=truth["free"],
        allocated_bytes=None if allocator == "nothing" else truth["tensors"],
        reserved_bytes=truth["tensors"] + truth["cached"] if allocator == "both" else None,
        neighbours_bytes=truth["others"] if neighbours_known else None,
        driver_bytes=drivers if driver_known else None,
    )
    expected, outside = [], truth["context"]
    if allocator == "nothing":
        outside += truth["tensors"]
    else:
        expected.append(("tensors", truth["tensors"]))
    if allocator == "both":
        expected.append(("cached", truth["cached"]))
    else:
        outside += truth["cached"]
    if neighbours_known:
        expected += [("context and libraries", outside), ("other processes", truth["others"])]
    else:
        expected.append(("context, libraries, other processes", outside + truth["others"]))
    expected.append(("free", truth["free"]))
    if drivers:
        expected.append(("the driver's own", drivers))
    assert list(usage.ladder) == expected
    assert sum(rung.size_bytes for rung in usage.ladder) == usage.total_bytes


@pytest.mark.parametrize("unknown", ["total_bytes", "used_bytes", "free_bytes"])
def test_a_ladder_needs_the_whole_device(unknown):
    """Without the total, what is used or what is free there is none, rather than one that does not add up."""
    sizes = {"total_bytes": 100, "used_bytes": 60, "free_bytes": 40, "allocated_bytes": 10}
    assert gpu(**sizes).ladder
    assert gpu(**sizes | {unknown: None}).ladder == ()


@given(parts, SIZES, st.none() | SIZES, st.booleans())
@example(
    dict.fromkeys(("tensors", "context", "others", "free", "drivers"), 0) | {"cached": 5}, 0, None, False
)
def test_what_could_still_be_allocated(truth, pools, limit, pools_known):
    """What is free, up to the limit, and the cache that is not another pool's."""
    reserved = truth["tensors"] + truth["cached"]
    usage = gpu(
        free_bytes=truth["free"],
        allocated_bytes=truth["tensors"],
        reserved_bytes=reserved,
        pools_bytes=pools if pools_known else None,
        limit_bytes=limit,
    )
    room = truth["free"]
    if limit is not None and limit - reserved < room:
        room = limit - reserved if limit > reserved else 0
    cache = truth["cached"] - (pools if pools_known else 0)
    assert usage.headroom_bytes == room + (max(0, cache))


def test_headroom_without_an_allocator():
    """All that is free; where that is unknown, unknown."""
    assert gpu(free_bytes=100).headroom_bytes == 100
    assert gpu(free_bytes=100, limit_bytes=70).headroom_bytes == 70
    assert gpu(free_bytes=None, allocated_bytes=1, reserved_bytes=5).headroom_bytes is None


@given(SIZES, SIZES)
def test_a_context_made_within_the_scope_was_not_held_before(held, context):
    """What stood there when the scope began, before the context came."""
    assert gpu(before=held + context, context_bytes=context).held_before_bytes == held


def test_what_a_record_is_unless_said_otherwise():
    """A device is attributed, has memory of its own and nothing else to tell; lines and owners are complete."""
    usage = gpu()
    assert (usage.backend, usage.attributed, usage.unified) == ("cuda", True, False)
    assert (usage.unattributed_bytes, usage.unknown_rise_bytes, usage.context_bytes) == (0, 0, 0)
    assert (usage.metrics, usage.timeline) == ((), ())
    assert Peak(1, 1, "exact").precision_bytes == 0
    assert LineUsage(1, "x", 1, 0.5, ram()).complete
    assert (cell().owners_complete, cell().gpulog_only, ram().precision_bytes) == (True, False, 0)
    assert Held(CPU, 1).outside_bytes is None
    assert not ChildrenUsage(0, 0, Peak(0, 0, "exact"), 0).at_least


@given(SIZES, SIZES, SIZES)
def test_what_is_taken_is_what_is_not_free(used, drivers, free):
    """The driver's own included; where the total or what is free is unknown, what is used."""
    sizes = {"total_bytes": used + drivers + free, "used_bytes": used, "free_bytes": free}
    assert gpu(**sizes).taken_bytes == used + drivers
    assert gpu(**sizes | {"total_bytes": None}).taken_bytes == used
    assert gpu(**sizes | {"free_bytes": None}).taken_bytes == used
    assert gpu(total_bytes=100).taken_bytes is None


@given(SIZES, SIZES, SIZES)
@example(0, 0, 5)
@example(3, 0, 5)
@example(0, 3, 5)
def test_what_neighbours_held_for_a_moment(before, after, highest):
    """Above both ends, as peaked of our own; 0 where one of the three is unknown."""
    sizes = {"neighbours_before_bytes": before, "neighbours_bytes": after, "neighbours_peak_bytes": highest}
    ends = max(before, after)
    assert gpu(**sizes).neighbours_rise_bytes == (highest - ends if highest > ends else 0)
    for name in sizes:
        assert gpu(**sizes | {name: None}).neighbours_rise_bytes == 0


# -- what is worth a name ---------------------------------------------------------------------------


@given(CHANGES, SIZES)
@example(MB, 0)
@example(MB + 1, 0)
@example(2 * MB, 200 * MB)
@example(2 * MB + 1, 200 * MB)
def test_notable_is_more_than_a_megabyte_and_a_hundredth(moved, used):
    """Just as much is not more; what was given back is not growth."""
    assert notable(moved, used) == (moved > MB and 100 * moved > used)


@given(st.lists(st.tuples(SIZES, SIZES, SIZES), max_size=4))
def test_the_busiest_device(courses):
    """The one on which this process's memory lay the furthest above its lower end."""
    gpus = [
        gpu(i, before, after, max(course))
        for i, course in enumerate(courses)
        for before, _, after in [course]
    ]
    busiest = measured(None, *gpus).busiest_gpu()
    spans = [max(course) - min(course[0], course[2]) for course in courses]
    assert (busiest.index if busiest else None) == (spans.index(max(spans)) if spans else None)


def test_a_device_is_asked_for_by_its_index():
    """Those of frameworks come first: the driver's index is another; without one, the first."""
    raw, first, second = gpu(1, backend=DRIVER), gpu(0), gpu(1)
    both = measured(None, raw, first, second)
    assert both.gpu(1) is second
    assert both.gpu(None) is first
    assert both.gpu(2) is None
    assert measured(None, raw).gpu(1) is raw
    assert measured(None, raw).gpu(0) is None
    assert measured(None).gpu(None) is None


def test_whose_memory_is_known():
    """General RAM, and the devices whose figures are this process's."""
    mine, theirs = gpu(0), gpu(1, attributed=False)
    record = measured(ram(), mine, theirs)
    assert record.memories() == {CPU: record.gen, "cuda:0": mine}


def test_what_is_held_now():
    """Resident memory, and what live arrays hold on the devices of frameworks; unknown is None, not left out."""
    now = measured(ram(5, 7), gpu(0, allocated_bytes=3), gpu(1), gpu(2, backend=DRIVER, allocated_bytes=4))
    assert held_bytes(now) == {"cuda:0": 3, "cuda:1": None, CPU: 7}


# -- what came, what went, what nobody explains -----------------------------------------------------

owned = st.lists(st.tuples(st.sampled_from([CPU, "cuda:0"]), st.integers(1, 1 << 30)), max_size=5)


@settings(max_examples=200)
@given(owned, owned, CHANGES, CHANGES, st.integers(0, 1 << 30), st.booleans())
@example([(CPU, 100 * MB)], [(CPU, 40 * MB)], 0, 0, 0, True)
def test_what_the_names_do_not_explain(came, went, more_ram, more_gpu, kept, complete):
    """All that came is what was consumed and what went elsewhere: the owners' and the unexplained, no byte lost.

    What malloc merely keeps is neither.
    """
    base = 1 << 45
    rest = {CPU: more_ram, "cuda:0": more_gpu}
    gone = {device: sum(size for on, size in went if on == device) for device in rest}
    held = {device: sum(size for on, size in came if on == device) for device in rest}
    grown = {device: held[device] + rest[device] - gone[device] for device in rest}
    heaps = Heap(5, 3), Heap(5, 3 + (kept if grown[CPU] > 0 else 0))
    usage = ram(base, base + grown[CPU] + (kept if grown[CPU] > 0 else 0), None, *heaps)
    record = cell(usage, gpu(0, base, base + grown["cuda:0"]))
    owners = tuple(Owner(f"n{i}", size, device, "variable") for i, (device, size) in enumerate(came))
    told = record.explained(owners, gone, complete=complete)
    expected = [
        (device, rest[device])
        for device in rest
        if notable(grown[device], record.memories()[device].after_bytes)
        and notable(abs(rest[device]), record.memories()[device].after_bytes)
    ]
    assert list(told.unexplained) == expected
    assert (told.owners, told.owners_complete) == (owners, complete)


def test_what_went_makes_room_for_what_came():
    """100 MB came where 40 went: 60 were consumed, and nothing is unexplained; as for a device, so for RAM."""
    record = cell(ram(0, 60 * MB), gpu(0, 0, 60 * MB))
    owners = tuple(Owner("x", 100 * MB, device, "variable") for device in (CPU, "cuda:0"))
    assert not record.explained(owners, {CPU: 40 * MB, "cuda:0": 40 * MB}, complete=True).unexplained
    unknown = record.explained(owners, {}, complete=True).unexplained
    assert unknown == ((CPU, -40 * MB), ("cuda:0", -40 * MB))


@given(st.integers(-50 * MB, 50 * MB), st.integers(0, 50 * MB), SIZES)
@example(5 * MB, MB, 0)
@example(5 * MB, MB - 1, 0)
@example(MB - 1, 5 * MB, 0)
@example(5 * MB, 5 * MB, 0)
@example(0, 5 * MB, 0)
def test_what_libraries_account_for(rest, most, used):
    """What no name explains, up to the most that they may have brought, from 1 MB on; nothing is told twice."""
    unexplained = ((CPU, rest), ("cuda:0", 7 * MB)) if rest else (("cuda:0", 7 * MB),)
    owners = (Owner("a", 60 * MB, CPU, "variable"), Owner("b", 3, CPU, "variable"))
    record = cell(ram(0, used), owners=owners, unexplained=unexplained)
    told, theirs = record.with_libraries(["torch", "numpy"], most), min(rest, most)
    if theirs < MB:
        assert told is record
        return
    assert [owner.size_bytes for owner in told.owners] == [60 * MB, theirs, 3]
    assert told.owners[1] == Owner(f"{LIBRARIES}: torch, numpy", theirs, CPU, "other")
    left = dict(told.unexplained)
    assert left.pop("cuda:0") == 7 * MB
    assert left == ({CPU: rest - theirs} if notable(rest - theirs, used) else {})


@given(SIZES, SIZES, st.integers(0, 1 << 30))
def test_what_malloc_keeps_is_no_growth(before, handed_out, kept):
    """A cell that freed what it had asked for has grown by what is in use, wherever the rest lies."""
    usage = ram(before, before + handed_out + kept, None, Heap(0, 0), Heap(handed_out, kept))
    grew = cell(usage).grown()
    assert grew == ({CPU: handed_out} if notable(handed_out, usage.after_bytes) else {})


@pytest.mark.parametrize(
    ("precision", "grew"), [(0, True), (9 * MB, True), (10 * MB, False), (11 * MB, False)]
)
def test_what_the_grain_may_be_is_no_growth(precision, grew):
    """Where the resident size itself is approximate, what lies within its grain has no owner; devices count."""
    usage = RamUsage(0, 10 * MB, Peak(10 * MB, 10 * MB, "exact"), precision_bytes=precision)
    grown = measured(usage, gpu(0, 0, 10 * MB)).grown()
    assert grown == ({CPU: 10 * MB} if grew else {}) | {"cuda:0": 10 * MB}


def test_what_came_back():
    """Of each device what its arrays and the whole device hold less, where both ends are known; RAM last."""
    before = measured(
        ram(0, 500),
        gpu(5, uuid="GPU-f", allocated_bytes=1, used_bytes=1),  # gone, as all of a device that was lost
        gpu(0, uuid="GPU-a", allocated_bytes=90, used_bytes=200),
        gpu(1, uuid="GPU-b", allocated_bytes=50, used_bytes=None),
        gpu(2, uuid="GPU-c", allocated_bytes=None, used_bytes=70),
        gpu(3, uuid="GPU-d", allocated_bytes=30, used_bytes=30),
        gpu(4, uuid="GPU-e", allocated_bytes=30, used_bytes=30),
    )
    after = measured(
        ram(0, 450),
        gpu(0, uuid="GPU-a", allocated_bytes=60, used_bytes=260),
        gpu(1, uuid="GPU-b", allocated_bytes=50, used_bytes=10),
        gpu(2, uuid="GPU-c", allocated_bytes=5, used_bytes=5),
        gpu(3, uuid="GPU-z", allocated_bytes=3, used_bytes=3),  # another card under its index
        gpu(4, uuid="GPU-e", allocated_bytes=None, used_bytes=3),
    )
    assert list(came_back(before, after).items()) == [("cuda:0", (30, -60)), ("cuda:1", (0,)), ("RAM", (50,))]


@given(CHANGES, CHANGES, st.sampled_from([0, MB, 5 * MB]), st.booleans(), st.booleans())
@example(MB, 0, 0, True, True)
@example(MB + 1, 0, 0, True, True)
@example(-MB - 1, 0, MB, True, True)
@example(5 * MB, 0, 5 * MB, True, True)
@example(5 * MB + 1, 0, 5 * MB, True, True)
@example(MB, 1, 0, True, True)
def test_what_moved_between_two_cells(inside, outside, grain, known_before, known_after):
    """In the arrays and outside them where both ends are known, by more than 1 MB; of RAM by more than its grain."""
    base = 1 << 45
    ended = {CPU: Held(CPU, base), "GPU-1": Held("cuda:0", base, base if known_before else None)}
    began = {
        CPU: Held(CPU, base + inside),
        "GPU-1": Held("cuda:0", base + inside, base + outside if known_after else None),
    }
    expected, moved = {}, inside + (outside if known_before and known_after else 0)
    if abs(inside) > MB and abs(inside) > grain:
        expected[CPU] = inside
    if abs(moved) > MB:
        expected["cuda:0"] = moved
    assert dict(moved_between(ended, began, grain)) == expected
    assert moved_between(began, began, grain) == ()
    new = moved_between({}, {"GPU-2": Held("cuda:1", 3 * MB, 900 * MB)}, grain)
    assert new == (("cuda:1", 3 * MB),)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(1, 99)), max_size=4))
def test_the_names_that_grew_in_every_run(runs):
    """Who grew most over all runs comes first; of equals the first in the alphabet."""
    records = [
        cell(owners=tuple(Owner(name, size, CPU, "variable") for name, size in sizes.items()))
        for sizes in runs
    ]
    every = [name for name in "abc" if runs and all(name in sizes for sizes in runs)]
    every.sort(key=lambda name: -sum(sizes[name] for sizes in runs))
    assert list(growing_names(records)) == every


def test_outputs_grow_as_one():
    """`Out[1]` in one run and `Out[2]` in the next are one name, and all of a run's add up."""
    runs = [
        cell(
            owners=(
                Owner(f"Out[{i}]", 30, CPU, "output"),
                Owner(f"Out[-{i}]", 30, "cuda:0", "output"),
                Owner("x", 50, CPU, "variable"),
                Owner("last traceback", 99, CPU, "traceback"),
                Owner("2 smaller names", 99, CPU, "other"),
            )
        )
        for i in (1, 2)
    ]
    assert growing_names(runs) == ("Out", "x")


# -- what leaves the house --------------------------------------------------------------------------


@given(CHANGES, SIZES, st.none() | SIZES)
@example(-MB - 1, 5 * MB - 1, 2 * MB)
def test_the_seven_figures(change, before, used):
    """Whole megabytes, truncated toward zero; the current device's, and 0 without one."""
    whole = lambda size: abs(size) // MB * (1 if size > 0 else -1)  # noqa: E731 - one word for the rule
    base = 1 << 45
    usage = {"before": base, "after": base + change, "peak": base + max(0, change) + before}
    others = gpu(0, 0, 900 * MB)
    record = cell(ram(**usage), others, gpu(3, **usage, used_bytes=used), current_gpu=3)
    figures = whole(change), whole(before)
    assert record.data() == Data(*figures, whole(base + change), *figures, whole(used or 0), 1.5)
    assert cell(ram(**usage)).data() == Data(*figures, whole(base + change), 0, 0, 0, 1.5)


def test_plain_values_are_those_of_the_standard_library():
    """Every field at every depth, as `dataclasses.asdict` has it, tuples as they are; and JSON takes it."""
    line = LineUsage(3, "x = 1", 2, 0.5, ram(1, 2), (gpu(1),), risen=((CPU, 4),))
    device = gpu(
        timeline=((0.5, 3),), reserved_peak=Peak(1, None, "sampled"), metrics=(Metric("energy", 1.5, "J"),)
    )
    record = cell(
        ram(1, 2, 3, Heap(4, 5), Heap(6, 7)), device, notes=("a", "b"), unexplained=((CPU, 5),), lines=(line,)
    )
    plain = record.to_dict()
    assert plain == dataclasses.asdict(record) | {"started_at": "2024-05-06T07:08:09+00:00"}
    assert (plain["owners"], plain["notes"], plain["unexplained"]) == ((), ("a", "b"), ((CPU, 5),))
    assert json.loads(json.dumps(plain))["lines"][0]["gpus"][0]["peak"]["quality"] == "exact"


@pytest.mark.parametrize("one", [Peak(1, 1, "exact"), ram(), gpu(), measured(), cell()])
def test_a_record_does_not_change(one):
    """What was measured stays what it was."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(one, dataclasses.fields(one)[0].name, 7)


@pytest.mark.parametrize(
    ("bounds", "quality"),
    [
        ((5, 5), "exact"),
        ((5, 8, 3), "exact"),
        ((5, 9, 3), "bounded"),
        ((5, 6), "bounded"),
        ((5, None, 3), "sampled"),
    ],
)
def test_a_peak_is_exact_within_its_granularity(bounds, quality):
    """Bounds that only the counter's granularity keeps apart are one exact figure; without an upper one, sampled."""
    assert Peak.within(*bounds) == Peak(*bounds[:2], quality, *bounds[2:])
