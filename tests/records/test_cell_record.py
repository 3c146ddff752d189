"""A cell: owners and libraries explain what it consumed; its seven figures."""

from handmade import CHANGES, MB, cell, gpu, ram
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ipygpulogger.records import (
    CPU,
    LIBRARIES,
    ChildrenUsage,
    ChildUsage,
    Data,
    DeviceHolding,
    Heap,
    LineUsage,
    Owner,
    Peak,
    notable,
)

SIZES = st.integers(0, 1 << 40)


def test_what_a_record_is_unless_said_otherwise():
    """A device is attributed, has memory of its own and nothing else to tell; lines and owners are complete."""
    usage = gpu()
    assert (usage.backend, usage.attributed, usage.unified) == ("cuda", True, False)
    assert (usage.unattributed_bytes, usage.unknown_rise_bytes, usage.context_bytes) == (0, 0, 0)
    assert (usage.metrics, usage.timeline) == ((), ())
    assert Peak(1, 1, "exact").precision_bytes == 0
    assert LineUsage(1, "x", 1, 0.5, ram()).complete
    assert (cell().owners_complete, cell().gpulog_only, ram().precision_bytes) == (True, False, 0)
    assert DeviceHolding(CPU, 1).outside_bytes is None
    children = ChildrenUsage(0, 0, Peak(0, 0, "exact"), 0)
    assert (children.at_least, children.ended) == (False, 0)
    assert not ChildUsage(0, 0, Peak(0, 0, "exact"), "python", 1).ended


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
    known = {device: size for device, size in gone.items() if size}
    told = record.explained(owners, known, complete=complete)
    expected = [
        (device, rest[device])
        for device in rest
        if notable(grown[device], record.memories()[device].after_bytes)
        and notable(abs(rest[device]), record.memories()[device].after_bytes)
    ]
    assert list(told.unexplained) == expected
    assert (told.owners, told.owners_complete) == (owners, complete)


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
