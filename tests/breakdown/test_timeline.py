"""The memory over a measurement by kind: at each point the allocator's own figure, to the byte."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import checked_timeline, recorded

from ipygpulogger.breakdown import timeline, training
from ipygpulogger.records.explained import KindTimeline
from ipygpulogger.records.value import plain

SIZES = st.integers(1, 1 << 36)


@st.composite
def histories(draw):
    """Blocks that live at random: their lives, and when each event was, with what was allocated after it."""
    totals, times, alive, lives = [0], [0.0], {}, []
    for i, (size, frees) in enumerate(draw(st.lists(st.tuples(SIZES, st.booleans()), max_size=60)), 1):
        if frees and alive:
            began, freed = alive.popitem()
            lives.append((freed, began, i, began))
            totals.append(totals[-1] - freed)
        else:
            alive[i] = size
            totals.append(totals[-1] + size)
        times.append(times[-1] + draw(st.sampled_from([0.0, 0.001, 1.0])))
    lives += [(size, began, 1 << 60, began) for began, size in alive.items()]
    return times, totals, sorted(lives, key=lambda life: life[1])


def kind_of(began):
    return timeline._STACKED[began % 7]


@given(histories())
def test_the_kinds_of_each_event_add_up(history):
    """At every event, before any is left out."""
    times, totals, lives = history
    at = range(len(times))
    kinds, sums = timeline.sums_at(at, lives, kind_of)
    assert [sum(one) for one in sums] == (totals if kinds else [])
    for i, one in enumerate(sums):
        of_kind = dict.fromkeys(kinds, 0)
        for size, began, ended, _ in lives:
            if began <= i < ended:
                of_kind[kind_of(began)] += size
        assert dict(zip(kinds, one, strict=True)) == of_kind


@given(histories(), st.integers(1, 20), st.integers(40, 200))
def test_no_maximum_is_left_out(history, spans, figures):
    """What stays is as it was; what went was never higher than both that stay around it; the peak stays."""
    times, totals, lives = history
    at = timeline.moments(times, totals, spans)
    kinds, sums = timeline.sums_at(at, lives, kind_of)
    if not kinds:
        return
    assert [sum(one) for one in sums] == [totals[i] for i in at]
    kept = [at[k] for k in timeline.fewer([times[i] for i in at], sums, figures)]
    assert len(kept) * (1 + len(kinds)) <= figures
    assert (kept[0], kept[-1]) == (0, len(times) - 1)
    assert totals.index(max(totals)) in kept
    for before, after in itertools.pairwise(kept):
        assert max(totals[before : after + 1]) == max(totals[before], totals[after])


def test_phases():
    """A forward pass begins with the first activation since a phase; the end of its pass's begin is known."""
    spans = [("step", 5.0, 6.0), ("backward", 3.0, 5.5), ("backward", 8.0, 9.0), ("step", 9.5, 12.0)]
    assert timeline.phases(spans, [1.0, 2.0, 4.0, 7.0, 10.0], 0.0, 10.0) == (
        ("forward", 1.0, 3.0),
        ("backward", 3.0, 5.5),
        ("step", 5.5, 6.0),
        ("forward", 7.0, 8.0),
        ("backward", 8.0, 9.0),
        ("step", 9.5, 10.0),
    )
    assert timeline.phases([("backward", 3.0, 5.0)], [], 0.0, 10.0) == (("backward", 3.0, 5.0),)
    many = [("step", i + 0.0, i + 0.9) for i in range(61)]
    assert timeline.phases(many, [], 0.0, 61.0) == ()
    assert len(timeline.phases(many[:60], [], 0.0, 61.0)) == 60


def test_the_largest_timeline_is_of_8_kb():
    """As JSON: all kinds, a device of 200 GB, an hour, and as many phases as are shown."""
    count = timeline._FIGURES // 8
    points = tuple((1e6 * (9e8 + 3600 * i / count), (200 << 30,) * 7) for i in range(count))
    steps = tuple(("backward", 1e6 * (9e8 + 60.0 * i), 1e6 * (9e8 + 31.123456 + 60.0 * i)) for i in range(60))
    one = timeline.placed(
        KindTimeline("cuda:0", timeline._STACKED, points, steps), 9e8 - 0.123456789, 3600.123456789
    )
    assert len(json.dumps(plain(one), separators=(",", ":"))) < 8192
    assert one.points[0][0] == 0.123457
    assert one.phases[-1][2] <= 3600.13


def trained(steps, figures):
    """A recording of training steps; `figures` gets what is allocated after each part of them."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.ones(64, 256, device="cuda")

    def train(steps):
        for _ in range(steps):
            loss = model(data).sum()
            figures.append(torch.cuda.memory_allocated())
            loss.backward()
            figures.append(torch.cuda.memory_allocated())
            optimizer.step()
            figures.append(torch.cuda.memory_allocated())
            optimizer.zero_grad()

    train(1)
    figures.clear()
    return recorded(lambda: train(steps))


WEIGHTS_BYTES = 4 * (256 * 512 + 512 + 512 * 256 + 256)
SAVED_BYTES = 4 * 64 * 512  # what ReLU and the second layer keep is one tensor


def columns(one):
    return dict(zip(one.kinds, zip(*(sums for _, sums in one.points), strict=True), strict=True))


@pytest.mark.torch
def test_the_phases_and_kinds_of_training(cuda):
    """Each step's forward and backward pass and step are named in their order, and have their kinds."""
    figures = []
    found = trained(3, figures)
    one = checked_timeline(found)
    totals = iter(found.totals["cuda:0"])
    assert all(figure in totals for figure in figures)  # what torch said meanwhile, in its order
    assert [name for name, _, _ in one.phases] == 3 * ["forward", "backward", "step"]
    ends = [time_s for _, begin_s, end_s in one.phases for time_s in (begin_s, end_s)]
    assert ends == sorted(ends)
    assert ends[-1] <= found.record.time_s
    kinds = columns(one)
    assert set(kinds["parameters"]) == {WEIGHTS_BYTES}
    assert set(kinds["optimizer state"]) == {2 * WEIGHTS_BYTES}
    assert max(kinds["gradients"]) == WEIGHTS_BYTES
    for name, begin_s, end_s in one.phases:
        inside = [sums for time_s, sums in one.points if begin_s < time_s < end_s]
        of = {kind: [sums[i] for sums in inside] for i, kind in enumerate(one.kinds)}
        if name == "step":
            assert not any(of["activations"])
        elif name == "forward":
            assert not any(of["gradients"])
            assert max(of["activations"], default=0) <= SAVED_BYTES


@pytest.mark.torch
@pytest.mark.parametrize("share", [0, 1e9])
def test_the_kinds_of_a_long_training(cuda, monkeypatch, share):
    """They are those of every step, though few graphs are looked at, or of all not all that was seen is kept."""
    monkeypatch.setattr(training, "_SHARE", share)
    one = checked_timeline(trained(100, []))
    kinds = columns(one)
    assert set(kinds["parameters"]) == {WEIGHTS_BYTES}
    assert set(kinds["optimizer state"]) == {2 * WEIGHTS_BYTES}
    peaks = [i for i, (_, sums) in enumerate(one.points) if sum(sums) == sum(one.peak()[1])]
    assert len(peaks) > 10
    for kind in ("gradients", "activations"):
        assert {kinds[kind][i] for i in peaks} == {kinds[kind][peaks[0]]}, kind
    assert one.phases == ()  # too many


@pytest.mark.torch
def test_what_did_not_run_on_the_device_is_no_phase(cuda):
    """Neither a training on the CPU nor an estimate of one, in a measurement that uses the device as well."""
    import torch

    from ipygpulogger import estimate

    kept = []
    data = torch.ones(8, 16)

    def step(data):
        model = torch.nn.Linear(16, 16).to(data.device)
        optimizer = torch.optim.SGD(model.parameters())
        model(data).sum().backward()
        optimizer.step()

    def work():
        kept.append(torch.ones(1 << 20, device="cuda"))
        estimate(lambda: step(data.cuda()))
        model(data).sum().backward()

    model = torch.nn.Linear(16, 16)
    (one,) = recorded(work).record.timeline
    assert one.phases == ()
    (one,) = recorded(lambda: step(data.cuda())).record.timeline
    assert [name for name, _, _ in one.phases] == ["backward", "step"]
