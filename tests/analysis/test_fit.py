"""The memory of a cell over the size of its data: lines whose truth is known by construction."""

import dataclasses
import random
from datetime import timedelta

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from made import plain

from ipygpulogger import History
from ipygpulogger.analysis.fit import RAM, Headroom, cell_of, fit_of
from ipygpulogger.records import DeviceUsage, Peak, Usage

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
            gpus=(usage,), source=source, cell_id=cell_id, execution_count=number, label=f"In [{number}]",
            started_at=plain().started_at + timedelta(seconds=number), **fields,
        )  # fmt: skip
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

    def fit(self, left=0, count=None, name=None):
        """What is found, when so much more could be allocated."""
        return fit_of(History(self.records), {GPU: Headroom(self.used, left)}, count, name)


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
    st.integers(0, 2000 * MB), st.integers(2 * MB, 50 * MB), st.floats(0, 1),
    st.tuples(SIZES, SIZES).filter(lambda pair: pair[0] != pair[1]), ACTIONS, st.integers(0, 1 << 36),
)  # fmt: skip
def test_a_line_is_found_whatever_other_cells_do(base, each, share, sizes, actions, left):
    """To the byte, and the last size for which there is room: of any session, saved and loaded or not."""
    session = Session(base, each, int(each * share))
    for what, value in [("step", sizes[0]), *actions, ("step", sizes[1])]:
        getattr(session, what)(value)
    seen = {record.label: tells(record.gpus[0]) for record in session.records if record.dimensions}
    sizes = {record.label: record.dimensions[0][1] for record in session.records if record.dimensions}
    assume(len({size for label, size in sizes.items() if seen[label]}) > 1)
    (found,) = session.fit(left).memories
    last = {size: label for label, size in sizes.items() if seen[label]}
    assert [(point.size, point.label) for point in found.points] == sorted(last.items())
    assert [point.need_bytes for point in found.points] == [
        base + each * point.size for point in found.points
    ]
    assert found.is_line and found.off_bytes == 0
    assert (round(found.base_bytes), round(found.slope_bytes)) == (base, each)
    room = session.left + left
    exact = max(0, (room - base) // each)
    assert found.left_bytes == room
    assert found.ends_at == exact if len(last) > 2 else found.ends_at <= exact  # two always lie on a line


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(SIZES, st.integers(-MB, MB)), min_size=2, max_size=20), st.integers(2 * MB, 50 * MB)
)
def test_noise_stays_within_what_is_said(runs, each):
    """No line is farther off than the noise can make it, and what is said to be enough is, among the sizes."""
    session = Session(300 * MB, each)
    for size, noise in runs:
        session.step(size, more=noise)
    last = {size: 300 * MB + each * size + noise for size, noise in runs}
    assume((max(last) - min(last)) * each > 8 * MB)
    room = max(last.values())
    (found,) = session.fit(room).memories
    assert found.is_line and found.off_bytes <= (1 + len(last)) * MB
    assert {point.size: point.need_bytes for point in found.points} == last
    if found.ends_at <= max(last):
        assert 300 * MB + each * found.ends_at - MB <= room
    margin = 2 * found.off_bytes if len(last) > 2 else 2 * MB
    beyond = 2 * max(0, found.ends_at + 1 - max(last)) / (max(last) - min(last))
    assert found.base_bytes + found.slope_bytes * (found.ends_at + 1) + margin * (1 + beyond) > room - 1


@pytest.mark.parametrize(("step_mb", "off_mb"), [(5, 2), (30, 2), (500, 30)])
def test_how_far_from_a_line_points_may_lie(step_mb, off_mb):
    """2 MB, or 2 % of the highest if that is more; of three points the middle one is two thirds of it off."""
    for more, is_line in ((-3, True), (3, False)):
        session = Session(0, step_mb * MB)
        for size, off in ((1, 0), (2, 3 * off_mb * MB // 2 + more), (3, 0)):
            session.step(size, more=off)
        (found,) = session.fit(1 << 40).memories
        assert (found.is_line, found.ends_at is None) == (is_line, not is_line)
        assert found.off_bytes == off_mb * MB + 2 * more // 3


@pytest.mark.parametrize("step", [512, 4096, 2 * MB])
def test_the_size_that_is_named_fits_although_an_allocator_rounds(step):
    """Each block to a multiple of its step: hardly ever is more needed than there is, and never 5 % more."""
    over = []
    for seed in range(200):
        chance = random.Random(seed)
        blocks = [chance.randint(1 << 16, 3 * MB) for _ in range(chance.randint(1, 6))]
        base, first = chance.choice((0, chance.randint(0, 4000 * MB))), chance.choice((16, 32, 64))
        session = Session(0, 0)

        def need(size, blocks=blocks, base=base):
            return base + sum(-(-block * size // step) * step for block in blocks)

        for size in (first, *chance.sample(range(first + 1, 8 * first), 4), 8 * first):
            session.step(size, more=need(size))
        room = int(need(8 * first) * chance.uniform(1, 3))
        over += [need(found.ends_at) / room for found in session.fit(room).memories]
    assert len(over) > 150
    assert max(over) < 1.05
    assert sum(share > 1 for share in over) <= 0.01 * len(over)


def test_one_size_is_not_enough():
    """What is missing is said, in words that name the size; nothing varied, nothing ran, nothing succeeded."""
    session = Session(0, MB)
    nothing = "needed less than 2 MB, or its code names no array"
    assert (session.fit().runs, session.fit().missing[:65]) == ((), f"every cell so far {nothing}"[:65])
    session.step(32)
    session.step(32)
    assert session.fit().missing == "In [2] ran with one size only (x: 32): run it again with another size"
    session.cell("%%time", 0, 0, None)
    for count, why in (
        (3, r"the runs of In \[3\] cannot be told apart$"),
        (4, r"In \[4\] is not in the history$"),
    ):
        with pytest.raises(ValueError, match=f"^{why}"):
            session.fit(count=count)
    session.other(5 * MB)
    assert session.fit(count=4).missing.startswith("In [4]: its code names no array, loader or batch size")
    session.cell("y = 1", session.used, session.used + MB, "small")
    assert session.fit(count=5).missing.startswith("In [5] needed less than 2 MB")
    failing = Session(0, MB)
    failing.step(8, status="error")
    assert failing.fit().missing == "In [1] has not succeeded yet"


def test_which_cell_is_meant():
    """The last that ran with several sizes; any other by a number of any of its runs."""
    session = Session(0, MB)
    session.step(16, source="loss = step(16)", code="aa")
    session.step(32, source="loss = step(32)", code="aa")
    session.other(MB)
    for count in (None, 1, 2):
        assert [run.label for run in session.fit(count=count).runs] == ["In [1]", "In [2]"]
    elsewhere = dataclasses.replace(session.records[0], cell_id="another", dimensions=(("x", 48),))
    assert len(fit_of([*session.records, elsewhere], {}).runs) == 2


def test_what_failed_is_not_on_the_line():
    """A run that failed or was interrupted needed more than its peak says: it is told beside the line."""
    session = Session(100 * MB, 3 * MB)
    for size in (8, 16, 24):
        session.step(size)
    session.step(64, more=-100 * MB, status="error", error="OutOfMemoryError")
    found = session.fit(left=300 * MB)
    assert [(size, run.label) for size, run in found.failed] == [(64, "In [4]")]
    assert found.memories[0].ends_at == 66


def test_a_first_run_that_also_set_things_up_gives_way_to_a_second_of_its_size():
    """What libraries allocate once is no part of the line; until then there is none."""
    session = Session(100 * MB, 3 * MB)
    session.step(16, more=80 * MB)
    for size in (32, 64):
        session.step(size)
    (found,) = session.fit(1000 * MB).memories
    assert (found.is_line, found.ends_at) == (False, None)
    session.step(16)
    (found,) = session.fit(1000 * MB).memories
    assert (found.is_line, found.ends_at) == (True, 300)


@pytest.mark.parametrize(("power", "scale_mb"), [(2, 1 / 16), (0.5, 64)])
@pytest.mark.parametrize("sizes", [(8, 64, 512), (64, 512)])
def test_what_is_no_line_has_no_size(power, scale_mb, sizes):
    """By the runs' distance from it; of two sizes a need below zero at size 0 tells as much."""
    session = Session(0, 0)
    for size in sizes:
        session.step(size, more=int(size**power * scale_mb * MB))
    (found,) = session.fit(left=1 << 36).memories
    if len(sizes) > 2 or power > 1:
        assert (found.is_line, found.ends_at) == (False, None)
    else:  # it grows slower than that line, so that there is enough
        assert found.ends_at < int(((1 << 16) / scale_mb) ** (1 / power))


def test_a_cell_that_keeps_what_it_makes():
    """A list that grows with every run: the line is what each run needed above what was there before it."""
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
    assert [point.need_bytes for point in found.points] == [5 * size * MB for size in (16, 32, 48, 64)]
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
    assert found.is_line and found.slope_bytes == pytest.approx(5 * MB)
    # In use: 100 MB, and 40 MB of data for which others would come. With 1000 MB more: 100 + (3 + 2) * size.
    assert found.ends_at == (40 + 1000 - 100) // 5


def test_a_run_that_began_with_larger_data_tells_nothing():
    """What it gave back may have been its peak: it is no point, and without others it is said to be run again."""
    session = Session(10 * MB, 3 * MB, 2 * MB)
    session.step(64)
    session.step(16)
    assert "a run that begins with larger data in memory than it needs" in session.fit().missing
    session.step(16)
    (found,) = session.fit().memories
    assert [point.label for point in found.points] == ["In [3]", "In [1]"]


def test_several_names_that_vary():
    """The first of them has the line, and another can be chosen."""
    session = Session(100 * MB, 3 * MB)
    for batch, last, width in ((16, 16, 100), (32, 9, 50)):
        names = (
            ("loader.batch_size", batch), ("x", last), ("y", batch), ("z", 8 * batch), ("w", width),
            ("epochs(...)", 3),
        )  # fmt: skip
        session.step(batch, dimensions=names)
    found = session.fit()
    assert found.name == "loader.batch_size"
    assert session.fit(name="w").missing.startswith("no memory was seen to grow with w; a run that")
    with pytest.raises(
        ValueError,
        match=r"^no size named epochs\(...\) varied between the runs; these varied: .*loader.batch_size",
    ):
        session.fit(name="epochs(...)")


def test_what_makes_a_run_recognizable():
    """The code, else the first line, in the cell with this id."""

    def cell(source="y = f(3)", cell_id=None, dimensions=(("x", 5),), **fields):
        return cell_of(plain(source=source, cell_id=cell_id, dimensions=dimensions, **fields))

    assert cell(code="aa") == cell("z", code="aa") != cell(code="bb")
    assert cell(code="aa") != cell(code="aa", cell_id="one")
    assert cell(cell_id="one", code="aa", gpulog_only=True) is None
    assert cell(cell_id="one") == cell("y = f(3)", "one", ()) != cell(cell_id="two")
    assert cell() == cell(dimensions=(("x", 6),)) != cell("z = f(3)")
    assert cell("%%time") is None


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
        assert found.memories[0].slope_bytes == pytest.approx(each * MB)


def test_memory_that_does_not_grow():
    """It is said that it does not; and without what is left, there is a line without an end."""
    session = Session(500 * MB, 1)
    for size in (8, 16):
        session.step(size)
    assert session.fit().missing.startswith("no memory was seen to grow with x; ")
    session = Session(500 * MB, MB)
    for size in (8, 16):
        session.step(size)
    (found,) = fit_of(session.records, {}).memories
    assert (found.left_bytes, found.ends_at) == (None, None)
    (found,) = session.fit(-MB).memories  # more is used than a limit allows
    assert (found.left_bytes, found.ends_at) == (0, 0)


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
        (((1, 111, 1000), (2, 222, 2000)), ["cuda:0", "RAM"]),  # of 10 GB: up to 9 and 90
        (((1, 105, 1000), (2, 210, 2000)), ["cuda:0"]),
        (((1, 100, None), (2, 200, 20), (3, 300, 30)), ["RAM", "cuda:0"]),
        (((3, 300, 30), (2, 200, 20), (1, 100, None)), ["RAM"]),
    ],
)
def test_which_memories_are_told(runs, told):
    """Those of the last run that rise by 8 MB, or 2 MB on a GPU, where the room ends within ten times the first."""
    room = Headroom(100 * MB, 10_000 * MB)
    found = fit_of(runs_of_both(*runs), {RAM: room, GPU: Headroom(100 * MB, 10_000 * MB)})
    assert [memory.device for memory in found.memories] == told


def test_a_little_that_was_given_back_hides_nothing():
    """Up to 2 MB."""
    for more, sizes in ((0, [1, 2, 3]), (1, [2, 3])):
        session = Session(0, 0)
        for size, need, back in ((1, 10, 2 * MB + more), (2, 20, 0), (3, 30, 0)):
            before, session.others = session.used, session.used - back
            session.cell("f(x)", before, before + need * MB, "f", dimensions=(("x", size),))
        assert [point.size for point in session.fit().memories[0].points] == sizes


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
    assert session.fit().missing == "In [2] ran with one size only (b: 3): run it again with another size"
