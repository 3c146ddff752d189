"""The memory of a cell over the size of its data: lines whose truth is known by construction."""

import dataclasses
import random
import re
from datetime import timedelta

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from made import plain

from ipygpulogger import History
from ipygpulogger.records import DeviceUsage, Peak, Usage, line_through
from ipygpulogger.records.fit import RAM, Room, fit_of
from ipygpulogger.records.line_through import (
    LineThrough,
    Point,
    bend,
    bent_reaches,
    sizes_of,
    sure_size,
    unproven_first,
    without_warm_up,
)
from ipygpulogger.records.need import Held, highest_bytes, needs
from ipygpulogger.records.runs import cell_of
from ipygpulogger.records.varied import apart_and_in_step, varied, with_numbers

MB = 2**20
GPU = ("cuda", 0, None)


class Session:
    """A device and the cells that use it, in bytes: `step` needs `base + each * size`, and keeps `kept * size`."""

    def __init__(self, base, each, kept=0):
        self.base, self.each, self.kept = base, each, kept
        self.others, self.left, self.records = 100 * MB, 0, []

    @property
    def used(self):
        return self.others + self.left

    def cell(self, source, before, peak, cell_id, **fields):
        """Note a cell after which the session is as it is now."""
        number = len(self.records) + 1
        usage = DeviceUsage(before, self.used, Peak(peak, peak, "exact"), 0, "GPU")
        record = plain(
            gpus=(usage,),
            source=source,
            cell_id=cell_id,
            execution_count=number,
            label=f"In [{number}]",
            started_at=plain().started_at + timedelta(seconds=number),
            **fields,
        )
        self.records.append(record)

    def step(self, size, more=0, source="loss = step(x)", **fields):
        """Run it: what its last run kept is freed first."""
        before = self.used
        self.left = 0 if "status" in fields else self.kept * size
        needed = self.base + self.each * size + more
        fields = {"dimensions": (("x", size),), **fields}
        self.cell(source, before, max(before, self.used, self.others + needed), "step", **fields)
        return needed

    def other(self, change):
        """Another cell, which takes memory or, once nothing of `step` is there, gives some back."""
        before = self.used
        if change < 0:
            self.left, gone = 0, self.left == 0
            self.others += max(change, -self.others) if gone else 0
        else:
            self.others += change
        self.cell("y = f()", before, max(before, self.used), f"other {len(self.records)}")

    def fit(self, left=0, count=None):
        """What is found, when so much more could be allocated."""
        return fit_of(History(self.records), {GPU: Room(self.used, left)}, count)


def tells(usage):
    """Whether the peak is that of the run, and not what an earlier one left."""
    given_back = usage.before_bytes - usage.after_bytes
    return usage.needed_bytes and given_back <= max(2 * MB, 0.03 * usage.needed_bytes)


SIZES = st.integers(1, 4096)
ACTIONS = st.lists(
    st.one_of(
        SIZES.map(lambda size: ("step", size)), st.integers(-500 * MB, 500 * MB).map(lambda n: ("other", n))
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=150)
@given(
    st.integers(0, 2000 * MB),
    st.integers(2 * MB, 50 * MB),
    st.floats(0, 1),
    st.tuples(SIZES, SIZES).filter(lambda pair: pair[0] != pair[1]),
    ACTIONS,
    st.integers(0, 1 << 36),
)
def test_a_line_is_found_whatever_other_cells_do(base, each, share, sizes, actions, left):
    """To the byte, and the last size for which there is room: of any session, saved and loaded or not."""
    session = Session(base, each, int(each * share))
    for what, value in [("step", sizes[0]), *actions, ("step", sizes[1])]:
        getattr(session, what)(value)
    seen = {record.label: tells(record.gpus[0]) for record in session.records if record.dimensions}
    sizes = {record.label: record.dimensions[0][1] for record in session.records if record.dimensions}
    assume(len({size for label, size in sizes.items() if seen[label]}) > 1)
    (found,) = session.fit(left).memories
    assert [point.label for point in found.points] == [label for label in seen if seen[label]]
    assert [point.need_bytes for point in found.points] == [
        base + each * point.size for point in found.points
    ]
    assert (found.is_straight, found.off_bytes, found.line.at(0), found.line.at(1)) == (
        True,
        0,
        base,
        base + each,
    )
    room = session.left + left
    assert (found.room_bytes, found.ends_at) == (room, max(0, (room - base) // each))


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(SIZES, st.integers(-MB, MB)), min_size=3, max_size=20), st.integers(2 * MB, 50 * MB)
)
def test_noise_stays_within_what_is_said(runs, each):
    """No line is farther off than the noise can make it, and what it says of a size that ran is as near."""
    points = [Point(size, 300 * MB + each * size + noise) for size, noise in runs]
    if len({point.size for point in points}) < 2:
        return
    line = LineThrough.of(points)
    assert line.off_bytes(points) <= (1 + len(points)) * MB
    best = sum((point.need_bytes - 300 * MB - each * point.size) ** 2 for point in points)
    mine = sum((point.need_bytes * line.scale - line.rise * point.size - line.base) ** 2 for point in points)
    assert mine <= best * line.scale**2  # no other line is nearer
    for point in points:
        ends_at = line.reaches(line.at(point.size))
        assert line.rise <= 0 or ends_at == point.size


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(SIZES, st.integers(-MB, MB)), min_size=2, max_size=8, unique_by=lambda run: run[0]),
    st.integers(2 * MB, 50 * MB),
    st.tuples(st.sampled_from((-1, 1)), st.sampled_from((-1, 1))),
    st.integers(0, 1 << 37),
)
def test_up_to_where_a_size_is_sure_to_fit(runs, each, signs, room):
    """Whatever line lies as near to the points, and however far a run lies from it; the next size is not sure."""
    points = [Point(size, 300 * MB + each * size + noise) for size, noise in runs]
    line, (lowest, *between, highest) = LineThrough.of(points), sizes_of(points)
    if line.rise <= 0:
        return
    noise = 2 * line.off_bytes(points) if between else 2 * MB
    apart = noise + line.off_bytes(points)
    sure, ends_at = sure_size(line, points, room), line.reaches(room)
    low, high = (line.at(size) + sign * apart for size, sign in zip((lowest, highest), signs, strict=True))
    other = LineThrough.of([Point(lowest, low), Point(highest, high)])
    assert sure <= ends_at
    assert sure == 0 or other.at(sure) + noise <= room + 1
    if len(runs) > 3 and highest <= sure < ends_at:
        steepest = LineThrough.of(
            [Point(lowest, line.at(lowest) - apart), Point(highest, line.at(highest) + apart)]
        )
        assert steepest.at(sure + 1) + noise >= room - 1


@pytest.mark.parametrize(
    ("runs", "named"),
    [
        (
            ((10, 100), (20, 206), (30, 300)),
            ((546, 50), (545, 49), (272, 25), (271, 24), (78, 5), (77, 4)),
        ),
        (((1, 150), (2, 200), (1, 150)), ((399, 5),)),
        (((1, 150), (2, 200)), ((399, 3), (400, 4), (199, 1))),
        (((2, 200), (1, 150)), ((449, 2), (450, 3))),
        (((10, 50), (20, 200)), ((100, 13),)),
        (((10, 100), (20, 200)), ((900, 87), (899, 86), (99, 9), (3, 0), (0, 0))),
        (((60, 500), (10, 100), (20, 200)), ((2000, 200),)),
        (((10, 100), (20, 206), (20, 194), (10, 100)), ((230, 20), (229, 19))),
    ],
)
def test_the_size_that_is_sure_of_some_runs(runs, named, monkeypatch):
    """As far off as twice the farthest run, or 2 for two sizes; and by the others, where the first may be unlike."""
    monkeypatch.setattr(line_through, "_TOLERANCE_BYTES", 2)
    points = [Point(*run) for run in runs]
    line = LineThrough.of(points)
    assert [(room, sure_size(line, points, room)) for room, _ in named] == list(named)


def test_when_the_first_run_may_be_unlike_the_others():
    """Until another run has its size, or it lies on a line with two others, or there are three others."""

    def sizes(*runs):
        first = unproven_first([Point(size, need * MB) for size, need in runs])
        return first and (first.size, first.need_bytes // MB)

    assert sizes((1, 10), (2, 20)) == sizes((1, 10), (2, 50), (3, 60)) == (1, 10)
    assert sizes((1, 10), (2, 50), (2, 60)) == (1, 10)
    assert sizes((1, 10), (2, 20), (1, 90)) is None
    assert sizes((1, 10), (2, 20), (3, 30)) is None
    assert sizes((1, 10), (2, 50), (3, 60), (4, 70)) is None


def test_where_the_room_ends_for_runs_that_bend():
    """By the line through the two largest sizes; the other line counts where the first run may be unlike."""

    def ends(room, *runs):
        return bent_reaches([Point(size, need * MB) for size, need in runs], room * MB)

    convex, concave = ((1, 10), (2, 20), (3, 70), (3, 70)), ((1, 10), (2, 60), (3, 70), (3, 70))
    assert (ends(170, *convex), ends(170, *concave)) == (5, 13)
    assert (ends(170, convex[2], *convex[:2]), ends(170, convex[0], *convex)) == (17, 5)
    assert (ends(170, concave[1], concave[0], concave[2]), ends(170, *concave, concave[1])) == (6, 13)
    assert (ends(170, (3, 70), (1, 10), (2, 5)), ends(99, (1, 10), (2, 60), (3, 55))) == (None, None)
    assert ends(170, (1, 50), (2, 60), (3, 60)) is None


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_size_that_is_named_fits_although_the_first_run_is_unlike_the_others(count):
    """It set something up, or had no optimizer state yet: the size is not too large, and what is too large is."""
    for seed in range(300):
        chance = random.Random(seed)
        session = Session(chance.choice((0, chance.randint(0, 2000 * MB))), chance.randint(MB // 4, 20 * MB))
        sizes = chance.sample((16, 32, 64, 128), count)
        unlike = chance.choice((-1, 1)) * chance.randint(50, 600) * MB
        needs = [session.step(size, 0 if at else unlike) for at, size in enumerate(sizes)]
        if min(needs) <= 0:
            continue
        room = int(max(needs) * chance.uniform(1, 8))
        for one in session.fit(room).memories:
            largest, name_is_a_bound = (one.room_bytes - session.base) // session.each, one.bends > 0
            if one.is_straight:
                assert one.sure_to <= 1.05 * largest, seed
            elif one.ends_at is not None:
                assert (one.ends_at >= largest) if name_is_a_bound else (one.ends_at <= 1.05 * largest), seed


@pytest.mark.parametrize("step", [512, 4096, 2 * MB])
def test_the_size_that_is_named_fits_although_an_allocator_rounds(step):
    """Each block to a multiple of its step: hardly ever is more needed than there is, and never 5 % more."""
    over = []
    for seed in range(400):
        chance = random.Random(seed)
        blocks = [chance.randint(1 << 16, 3 * MB) for _ in range(chance.randint(1, 6))]
        base = chance.choice((0, chance.randint(0, 4000 * MB)))

        def need(size, blocks=blocks, base=base):
            return base + sum(-(-block * size // step) * step for block in blocks)

        first = chance.choice((16, 32, 64))
        sizes = [first, *chance.sample(range(first + 1, 8 * first), 4), 8 * first]
        points = [Point(size, need(size)) for size in sizes]
        line, room = LineThrough.of(points), int(need(8 * first) * chance.uniform(1, 10))
        sure = sure_size(line, points, room)
        over.append(need(sure) / room)
        assert sure >= (0.5 if step > 4096 else 0.98) * line.reaches(room) - 1
    assert max(over) < 1.05
    assert sum(share > 1 for share in over) <= 0.01 * len(over)


@pytest.mark.parametrize(("highest_mb", "off_mb"), [(10, 2), (50, 2), (1000, 20)])
def test_how_far_from_a_line_points_may_lie(highest_mb, off_mb):
    """2 MB, or 2 % of the highest if that is more; of three points the middle one is two thirds of it off."""
    for more, meets in ((0, True), (3, False)):
        middle = (highest_mb // 2) * MB + 3 * off_mb * MB // 2 + more
        points = [Point(1, 0), Point(2, middle), Point(3, 2 * (highest_mb // 2) * MB)]
        line = LineThrough.of(points)
        assert (line.off_bytes(points), line.meets(points)) == (off_mb * MB + 2 * more // 3, meets)


def test_a_line_that_does_not_rise_has_no_end():
    """None is told; the least rise has one, and no size is below zero."""
    assert LineThrough.of([Point(1, 5), Point(2, 5)]).reaches(9) is None
    assert LineThrough.of([Point(1, 5), Point(2, 4)]).reaches(9) is None
    assert [LineThrough(1, 2, 1).reaches(room) for room in (9, 2, 1)] == [7, 0, 0]


def test_when_a_first_run_stays():
    """If all lie on a line as it is, or the others have no line."""
    near = [Point(1, 228 * MB), *(Point(size, 200 * size * MB) for size in (2, 3, 4, 5))]
    assert without_warm_up(near) is near
    other = [Point(1, 100 * MB), Point(2, MB), Point(2, 50 * MB)]
    assert without_warm_up(other) is other
    alike = [Point(2, MB), Point(2, 50 * MB)]
    assert without_warm_up(alike) is alike


def test_the_direction_of_a_bend():
    """By the slopes between neighbouring sizes, of several runs of a size by their mean."""
    assert bend([Point(1, 0), Point(2, 5), Point(10, 29)]) == -1
    assert bend([Point(1, 0), Point(1, 2), Point(2, 5), Point(3, 8)]) == -1
    assert bend([Point(1, 5), Point(2, 9)]) == 0
    assert bend([Point(1, 5), Point(2, 9), Point(3, 7), Point(4, 12)]) == 0


def test_one_size_is_not_enough():
    """What is missing is said, in words that name the size; nothing varied, nothing ran, nothing succeeded."""
    session = Session(0, MB)
    assert (session.fit().runs, session.fit().missing[:36]) == ((), "no cell so far needed more than 2 MB")
    session.step(32)
    session.step(32)
    assert session.fit().missing == "In [2] ran with x of 32 only: run it again with another size"
    with pytest.raises(ValueError, match=r"there is no cell In \[3\]"):
        session.fit(count=3)
    session.other(5 * MB)
    assert session.fit(count=3).missing.startswith("In [3] needed less than 2 MB, or its code names no array")
    failing = Session(0, MB)
    failing.step(8, status="error")
    assert failing.fit().missing == "In [1] has not succeeded yet"


def test_which_cell_is_meant():
    """The last that ran with several sizes; any other by a number of any of its runs; numbers in it may change."""
    session = Session(0, MB)
    session.step(16, source="loss = step(16)")
    session.step(32, source="loss = step(32)")
    session.other(MB)
    for count in (None, 1, 2):
        assert [run.label for run in session.fit(count=count).runs] == ["In [1]", "In [2]"]
    elsewhere = dataclasses.replace(session.records[0], cell_id="another", dimensions=(("x", 48),))
    assert len(fit_of([*session.records, elsewhere], {}).runs) == 2
    copies = fit_of([session.records[0], elsewhere], {})  # of one cell, each of which ran once
    assert len(copies.runs) == len(fit_of([session.records[0], elsewhere], {}, 1).runs) == 2
    other = dataclasses.replace(elsewhere, dimensions=(("y", 48),))
    assert len(fit_of([session.records[0], other], {}).runs) == 1


def test_what_failed_is_not_on_the_line():
    """A run that failed or was interrupted needed more than its peak says: it is told beside the line."""
    session = Session(100 * MB, 3 * MB)
    for size in (8, 16):
        session.step(size)
    session.step(64, more=-100 * MB, status="error", error="OutOfMemoryError")
    found = session.fit(left=300 * MB)
    assert [(size, run.label) for size, run in found.failed] == [(64, "In [3]")]
    assert found.memories[0].ends_at == 66


def test_a_first_run_that_needs_more_is_left_out():
    """What libraries allocate once is no part of the line; of two other sizes it is only if one of them is its own."""
    for sizes, is_left_out in (((16, 32, 48, 64), True), ((16, 16, 32), True), ((16, 32, 48), False)):
        session = Session(100 * MB, 3 * MB)
        session.step(sizes[0], more=80 * MB)
        for size in sizes[1:]:
            session.step(size)
        (found,) = session.fit().memories
        assert (found.left_out is not None, found.line.at(0) == 100 * MB) == (is_left_out, is_left_out)
        assert found.is_straight == is_left_out
        assert found.left_out in (None, found.points[0])


@pytest.mark.parametrize(("power", "scale_mb", "bends"), [(2, 1 / 16, 1), (0.5, 64, -1)])
def test_what_is_no_line_is_said(power, scale_mb, bends):
    """A need that grows with the square is none; what is told lies beyond or before the truth as it should."""
    session = Session(0, 0)
    for size in (8, 64, 512):
        session.step(size, more=int(size**power * scale_mb * MB))
    (found,) = session.fit(left=1 << 36).memories
    assert (found.is_straight, found.bends) == (False, bends)
    truth = int(((1 << 16) / scale_mb) ** (1 / power))
    assert found.ends_at > truth if bends > 0 else found.ends_at < truth


def test_a_cell_that_keeps_what_it_makes():
    """A list that grows with every run: the line is what each run needed, and the room is what is left."""
    session = Session(10 * MB, MB)
    for size in (16, 64, 32, 48):
        session.step(size)
        session.others += 5 * size * MB  # the cell itself kept it
        last = session.records.pop()
        usage = dataclasses.replace(
            last.gpus[0], after_bytes=session.used, peak=Peak(session.used, session.used, "exact")
        )
        session.records.append(dataclasses.replace(last, gpus=(usage,)))
    (found,) = session.fit(left=1000 * MB).memories
    assert [point.need_bytes for point in found.points] == [5 * size * MB for size in (16, 64, 32, 48)]
    assert found.ends_at == 200


def test_data_that_another_cell_makes_anew_belongs_to_the_line():
    """A cell that ran before and runs again replaces its data: of another size, it is part of the need."""
    session = Session(100 * MB, 3 * MB)
    held = 0
    for size in (10, 40, 20):
        before, held_before = session.used, held
        held = 2 * size * MB
        session.others += held - held_before
        session.cell("x = load(size)", before, session.used, "data", dimensions=(("x", size),))
        session.step(size)
    (found,) = session.fit(left=1000 * MB, count=2).memories
    assert (found.is_straight, found.line.at(11) - found.line.at(10)) == (True, 5 * MB)
    # In use: 100 MB, and 40 MB of data for which others would come. With 1000 MB more: 100 + (3 + 2) * size.
    assert found.ends_at == (40 + 1000 - 100) // 5


def test_a_run_that_began_with_larger_data_tells_nothing():
    """What it gave back may have been its peak: it is no point, and alone it is said to be run again."""
    session = Session(10 * MB, 3 * MB, 2 * MB)
    session.step(64)
    session.step(16)
    missing = (
        "In [2] began with larger data in memory than it needs, which hides what it needed: run it again"
    )
    assert session.fit().missing == missing
    session.step(16)
    (found,) = session.fit().memories
    assert [point.label for point in found.points] == ["In [1]", "In [3]"]


def test_several_names_that_vary():
    """The first of them has the line; of the others, multiples of it and smaller last batches are silent."""
    session = Session(100 * MB, 3 * MB)
    for batch, last, width in ((16, 16, 100), (32, 9, 50)):
        names = (
            ("loader.batch_size", batch),
            ("x", last),
            ("y", batch),
            ("z", 8 * batch),
            ("w", width),
            ("epochs(...)", 3),
        )
        session.step(batch, dimensions=names)
    found = session.fit()
    assert (found.name, found.with_it, found.in_step) == ("loader.batch_size", ("w",), ())
    session = Session(100 * MB, 3 * MB)
    for batch in (8, 16, 32):
        session.step(batch, dimensions=(("batch_size", batch), ("x", 4 * batch), ("seq_len", 16 * batch)))
    found = session.fit()
    assert (found.name, found.with_it, found.in_step) == ("batch_size", (), ("seq_len",))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("seq = {}", "seq"),
        ("b = data[:{}]; f(b)", "data[:...]"),
        ("loss = train(model, {})", "train(model, ...)"),
        ("train(f(3), lr=0.1, samples={})  # 2", "samples"),
        ("y = np.ones((7, {}))", "np.ones((..., ...))"),
        ("y = f(g(7), [x[1], {}])", "f(g(...), [x[...], ...])"),
        ("z = {} * y", "z"),
        ("{}", "..."),
        ("({}, y)", "(...)"),
        ("f({})", "f(...)"),
    ],
)
def test_a_number_of_the_first_line_is_a_size(source, name):
    """If none that is recorded varied: named by its variable or keyword, or by the call that it stands in."""
    session = Session(100 * MB, 3 * MB)
    for size in (8, 16, 32):
        session.step(size, source=source.format(size), dimensions=(("x", 5),))
        session.other(MB // 2)
    found = session.fit()
    assert (found.name, [point.size for point in found.memories[0].points]) == (name, [8, 16, 32])
    session = Session(0, MB)
    for size, number in ((1 << 12, "1<<12"), (2**13, "2 ** 13"), (20_000, "20_000")):
        session.step(size, source=source.format(number), dimensions=())
    (memory,) = session.fit().memories
    assert (memory.line.at(0), memory.line.at(1), memory.is_straight) == (0, MB, True)


def test_numbers_that_are_no_sizes():
    """Of another cell, of little memory, within names, texts and fractions, or of memory that does not grow."""
    for one, other in (
        ("f(8)", "g(16)"),
        ("f1(a)", "f2(a)"),
        ("f('a_8.b')", "f('a_16.b')"),
        ("f(.8)", "f(.9)"),
    ):
        session = Session(100 * MB, 3 * MB)
        for size, source in ((8, one), (16, other)):
            session.step(size, source=source, dimensions=())
        assert not session.fit().memories
    assert with_numbers(plain(source="f(0, 1, 1 << 59, 1 << 60)")).dimensions == (
        ("f(..., ...)", 1),
        ("f(..., ..., ...)", 1 << 59),
    )
    session = Session(0, MB // 8)
    for size in (8, 12):
        session.step(size, source=f"f({size})", dimensions=())
    assert not session.fit().memories
    session = Session(100 * MB, 0)
    for size in (8, 16):
        session.step(5, source=f"f({size})")
    assert session.fit().missing.endswith("ran with x of 5 only: run it again with another size")
    session.each = MB
    for size in (8, 16):
        session.step(size)
    session.step(8, source="f(8)")
    assert session.fit().name == "x"


def test_what_makes_a_run_recognizable():
    """The code; else the first line but for numbers, and without an id what the cell names."""

    def cell(source="y = f(3)", cell_id=None, dimensions=(("x", 5),), **fields):
        return cell_of(plain(source=source, cell_id=cell_id, dimensions=dimensions, **fields))

    assert cell(code="aa") == cell("z", code="aa") != cell(code="bb")
    assert cell(code="aa") != cell(code="aa", cell_id="one")
    assert cell(cell_id="one", code="aa", gpulog_only=True) is None
    assert cell(cell_id="one") == cell("y = f(4)", "one", ()) != cell(cell_id="two")
    assert cell() == cell("y = f(14)", dimensions=(("x", 6),)) != cell("z = f(3)")
    assert cell() != cell(dimensions=(("y", 5),))
    assert cell("%%time") is None
    session = Session(100 * MB, 3 * MB)
    for cell_id in ("one", "two"):
        session.cell("f(x)", session.used, 200 * MB, cell_id, dimensions=(("x", 5),), code="aa")
    session.cell("f(x)", session.used, 200 * MB, "two", code="aa")
    assert [[run.label for run in session.fit(count=count).runs] for count in (1, None)] == [
        ["In [1]"],
        ["In [2]", "In [3]"],
    ]


def test_why_a_cell_is_unknown():
    """It is not in the log, holds nothing but commands, or begins with a magic and has no id."""
    session = Session(0, 0)
    for source, only in (("%gpulog", True), ("%%time", False), ("%gpulog", True)):
        session.cell(source, 0, 0, None, gpulog_only=only)
    both = [dataclasses.replace(record, execution_count=9) for record in session.records[1:]]
    session.records += both
    whys = {
        1: "In [1] holds only",
        2: "In [2] begins with a magic",
        9: "In [9] begins",
        7: "there is no cell In",
    }
    for count, why in whys.items():
        with pytest.raises(ValueError, match=re.escape(why)):
            session.fit(count=count)


def test_what_other_cells_hold():
    """What is freed between cells was the watched cells' first, unless those gave back more than they took."""
    held = Held()
    assert [held.others_bytes(used) for used in (100, 90)] == [100, 90]
    held.ran(Usage(90, 110, Peak(110, 110, "exact")))
    assert [held.others_bytes(used) for used in (115, 105, 80)] == [95, 95, 80]
    held.ran(Usage(80, 50, Peak(80, 80, "exact")))
    assert [held.others_bytes(used) for used in (50, 40, 60)] == [80, 70, 90]
    assert needs([], [], GPU, id) == ({}, 0)
    assert [highest_bytes(Usage(0, 0, Peak.within(5, most))) for most in (None, 7)] == [5, 7]


def test_what_varied_beside_the_size():
    """The name that most runs have, the first of several; a size of 0 is none. Which others rise with it."""

    def runs(**sizes):
        return [
            plain(dimensions=tuple((name, its[at]) for name, its in sizes.items() if its[at] is not None))
            for at in range(4)
        ]

    assert varied(runs(a=(1, 2, None, None), b=(3, 4, 5, None), c=(6, 7, 8, None), d=(9, 9, 9, 9))) == "b"
    assert varied(runs(a=(0, 0, 0, 7))) == ""
    of_all = runs(
        mine=(8, 16, 32, 32),
        part=(8, 16, 20, 32),
        multiple=(4, 8, 16, 16),
        smaller=(4, 9, 21, 21),
        slow=(1, 2, 3, 3),
        larger=(9, 16, 33, 33),
        falling=(4, 3, 2, 2),
        twice=(9, 9, 33, 33),
        alone=(5, 6, 7, 9),
        same=(5, 5, 5, 5),
    )
    assert apart_and_in_step(of_all, "mine") == (("falling", "twice", "alone"), ("smaller", "slow", "larger"))


@pytest.mark.parametrize("id_", [None, "one"])
def test_runs_of_one_cell_have_the_same_code(id_):
    """Cells with the same first line, or one cell whose text was edited, are not taken for each other."""
    session = Session(100 * MB, 0)
    for code, each in (("aaaa", 3 * MB), ("bbbb", 40 * MB)):
        session.each = each
        for size in (8, 16, 32):
            session.step(size, source=f"batch_size = {size}", code=code)
    session.records = [dataclasses.replace(record, cell_id=id_) for record in session.records]
    for count, each, labels in ((1, 3, (1, 2, 3)), (None, 40, (4, 5, 6))):
        found = session.fit(count=count)
        assert [run.label for run in found.runs] == [f"In [{at}]" for at in labels]
        assert found.memories[0].line.at(1) - found.memories[0].line.at(0) == each * MB


def test_memory_that_does_not_grow():
    """It is said that it does not; and without what is left, there is a line without an end."""
    session = Session(500 * MB, 1)
    for size in (8, 16):
        session.step(size)
    assert session.fit().missing == "no memory was seen to grow with x"
    session = Session(500 * MB, MB)
    for size in (8, 16):
        session.step(size)
    (found,) = fit_of(session.records, {}).memories
    assert (found.room_bytes, found.ends_at, found.sure_to) == (None, None, None)
    (found,) = session.fit(-MB).memories  # more is used than a limit allows
    assert (found.room_bytes, found.ends_at) == (0, 0)


def runs_of_both(*runs):
    """Records of runs as (size, need of RAM, need of the GPU; None if it is not used), in MB beyond 100 MB."""
    records = []
    for number, (size, ram_mb, gpu_mb) in enumerate(runs, 1):
        ram, gpu = (int((100 + (need_mb or 0)) * MB) for need_mb in (ram_mb, gpu_mb))
        gpus = (DeviceUsage(100 * MB, 100 * MB, Peak(gpu, gpu, "exact"), 0, "GPU"),)
        gen = Usage(100 * MB, 100 * MB, Peak(ram, ram, "exact"))
        named = {"dimensions": (("x", size),), "source": "f(x)", "cell_id": "f", "label": f"In [{number}]"}
        records.append(plain(gen=gen, gpus=gpus if gpu_mb is not None else (), **named))
    return records


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        (((1, 4, None), (2, 12, None)), ["RAM"]),
        (((1, 4, None), (2, 11.9, None)), []),
        (((1, 4, 3), (2, 4, 5)), ["cuda:0"]),
        (((1, 4, 3), (2, 4, 4.9)), []),
        (((1, 100, 1000), (2, 200, 2000)), ["cuda:0", "RAM"]),  # of 10 GB: up to 10 and 100
        (((1, 99, 1000), (2, 198, 2000)), ["cuda:0"]),
        (((1, 100, None), (2, 200, 20), (3, 300, 30)), ["RAM", "cuda:0"]),
        (((3, 300, 30), (2, 200, 20), (1, 100, None)), ["RAM"]),
    ],
)
def test_which_memories_are_told(runs, told):
    """Those of the last run that rise by 8 MB, or 2 MB on a GPU, where the room ends within ten times the first."""
    room = Room(100 * MB, 10_000 * MB)
    found = fit_of(runs_of_both(*runs), {RAM: room, GPU: Room(100 * MB, 10_000 * MB)})
    assert [memory.device for memory in found.memories] == told


def test_a_little_that_was_given_back_hides_nothing():
    """Up to 2 MB; and only what needed 2 MB of a GPU can be hidden."""
    for more, hidden in ((0, ()), (1, ("In [1]",))):
        session = Session(0, 0)
        for size, need, back in ((1, 10, 2 * MB + more), (2, 20, 0), (3, 30, 0)):
            before, session.others = session.used, session.used - back
            session.cell("f(x)", before, before + need * MB, "f", dimensions=(("x", size),))
        assert session.fit().memories[0].hidden == hidden
    for need, missing in ((2 * MB, "In [2] began with larger data"), (2 * MB - 1, "no memory was seen")):
        session = Session(0, 0)
        for size in (1, 2):
            session.others = 50 * MB
            session.cell("f(x)", 100 * MB, 100 * MB + need, "f", dimensions=(("x", size),))
        assert session.fit().missing.startswith(missing)


def test_a_line_that_rises_a_little_faster_at_its_end():
    """It is straight all the same, and the two largest sizes say how it goes on."""
    session = Session(0, 0)
    for size, need in ((1, 1000), (2, 2000), (3, 3000), (4, 4060)):
        session.step(size, need * MB)
    (found,) = session.fit(60_000 * MB).memories
    assert (found.is_straight, found.bends, found.ends_at) == (True, 0, 56)
    assert found.line.reaches(found.room_bytes) == 58


def test_runs_without_the_size_are_left_out():
    """Also those whose size is 0."""
    session = Session(0, 10 * MB)
    for size in (1, 2):
        session.step(size)
    for dimensions in ((("x", 0),), (("y", 3),)):
        session.step(3, dimensions=dimensions)
    session.step(4)
    assert [run.label for run in session.fit().runs] == ["In [1]", "In [2]", "In [5]"]
    session = Session(0, 10 * MB)
    for name in ("a", "b"):
        session.step(3, dimensions=((name, 3),), code="aa")
    assert session.fit().missing == "In [2] ran with b of 3 only: run it again with another size"


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_saved_history_has_the_same_line(tmp_path, kind):
    """Each format keeps the sizes."""
    pytest.importorskip("pyarrow")
    session = Session(100 * MB, 3 * MB)
    for size in (8, 16):
        session.step(size)
    History(session.records).save(tmp_path / f"log.{kind}")
    rooms = {GPU: Room(session.used, 1000 * MB)}
    assert fit_of(History.load(tmp_path / f"log.{kind}"), rooms) == fit_of(session.records, rooms)
