"""A cell: the line that names it; owners and libraries explain what it consumed; its seven figures."""

from dataclasses import replace

import pytest
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
from ipygpulogger.records.cell_record import main_line_of

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


@pytest.mark.parametrize(
    ("named_mb", "outside_mb", "left_mb"),
    [(256, 92, 0), (200, 92, 56), (300, 92, -44), (348, 0, 0), (398, -50, 0), (0, 348, 0)],
)
def test_what_is_outside_the_allocator(named_mb, outside_mb, left_mb):
    """All of it is named so, whatever the names account for; what was given back there explains no name's less."""
    device = gpu(after=348 * MB, allocated_bytes=348 * MB, outside_bytes=outside_mb * MB)
    names = (Owner("x", named_mb * MB, "cuda:0", "variable"),) if named_mb else ()
    outside = (Owner("outside the allocator", outside_mb * MB, "cuda:0", "other"),) if outside_mb > 0 else ()
    found = cell(ram(), device).explained(names, {}, complete=False)
    assert found.owners == names + outside
    assert dict(found.unexplained) == ({"cuda:0": left_mb * MB} if left_mb else {})


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


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import time\nx = f()", "x = f()"),
        ("from a import (\n    b,\n    c,\n)\n\nx = f()", "x = f()"),
        ("from a import (b,\n    c)\nx = f()", "x = f()"),
        ("# load it\nx = f()", "x = f()"),
        ("try:\n    x = f()\nfinally:\n    pass", "x = f()"),
        ("%%time\nx = f()", "x = f()"),
        ("%%gpulog --lines\n%%capture out\nx = f()", "x = f()"),
        ("%matplotlib inline\n!ls\nx = f()", "x = f()"),
        ("@cache\ndef f(): ...", "def f(): ..."),
        ("%time x = f()\ny = 1", "%time x = f()"),
        ("import torch; x = f()", "import torch; x = f()"),
        ("%%bash\ncat x.txt", "%%bash"),
        ("%%writefile a.py\nx = f()", "%%writefile a.py"),
        ("with torch.no_grad():\n    f(x)", "with torch.no_grad():"),
        ("import time\nimport os", "import time"),
        ("  \n# nothing", "# nothing"),
        ("from a import (\n    b,", "from a import ("),
        ("", ""),
    ],
)
def test_a_cell_is_named_by_the_line_that_says_what_it_does(text, line):
    """The first that is no import, comment, magic around code, decorator or bare keyword; else the first."""
    assert main_line_of(text) == line


@given(st.text(alphabet="abi#%!@()\n ;:=", max_size=60))
def test_a_cell_is_named_by_one_of_its_own_lines(text):
    """Of any text the line is one that stands there, stripped; it is empty only if all of the text is blank."""
    line = main_line_of(text)
    assert line in {one.strip() for one in text.splitlines()} | {""}
    assert bool(line) == bool(text.strip())


def line_of(number, source, needed_mb, gpu_mb=0, **more):
    gpus = (gpu(0, 0, gpu_mb * MB),) if gpu_mb else ()
    return LineUsage(number, source, 1, 0.5, ram(0, 0, needed_mb * MB), gpus, **more)


def test_a_cell_is_named_by_its_heaviest_line():
    """The line that needed most, on a device before RAM; not one of a function elsewhere, nor under 1 MB."""
    named = cell(source="import time", main_line="x = f()")
    assert cell(source="x = 1").code_line == "x = 1"
    assert named.code_line == "x = f()"
    few = line_of(1, "small", 0), line_of(2, "g()", 9, place="In [1]")
    assert replace(named, lines=few).code_line == "x = f()"
    ram_lines = *few, line_of(3, "y = g()", 9), line_of(4, "z = h()", 5)
    assert replace(named, lines=ram_lines).code_line == "y = g()"
    assert replace(named, lines=(*ram_lines, line_of(5, "on.gpu()", 1, 2))).code_line == "on.gpu()"
    again = line_of(6, "for loop", 99, risen=((CPU, 2 * MB),))
    assert replace(named, lines=(*ram_lines, again)).code_line == "y = g()"
