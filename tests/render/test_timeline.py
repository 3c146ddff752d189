"""The memory over time by kind: what is drawn says what the points do."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from made import of_class
from memory import MB
from reading import Reader

from ipygpulogger import AtPeak, Estimate
from ipygpulogger.records.explained import KindTimeline
from ipygpulogger.render import at_peak
from ipygpulogger.render.timeline import drawings

KINDS = "before", "parameters", "optimizer state", "variables", "gradients", "activations", "temporaries"
STEP = KindTimeline(
    "cuda:0",
    ("parameters", "activations"),
    (
        (0.0, (0, 0)),
        (1.0, (400 * MB, 0)),
        (2.0, (400 * MB, 800 * MB)),
        (3.0, (400 * MB, 0)),
        (4.0, (400 * MB, 0)),
    ),
    (("forward", 1.5, 2.0), ("backward", 2.0, 3.0)),
)
ROWS = (
    AtPeak("cuda:0", "activations", "f()", "In [7]:3", 800 * MB, 96),
    AtPeak("cuda:0", "parameters", "model", "before the cell", 400 * MB, 1),
)


def test_blocks():
    """Twelve lines of blocks under the peak, a filling for each kind, phases below, within 80 columns."""
    lines = at_peak.text(ROWS, (("cuda:0", 2.0),), (STEP,)).splitlines()[3:]
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].strip() == "▼ 1200 MB at 2.00 s"
    place = lines[0].index("▼")
    rows = lines[1:13]
    assert [row[place] for row in rows] == 8 * ["░"] + 4 * ["█"]
    quarter = 66 // 4
    assert [row.count("█") for row in rows] == 8 * [0] + 4 * [66 - quarter]
    assert {row.count("░") for row in rows[:8]} == {quarter}
    assert [row[:12].strip() for row in rows if row[:12].strip()] == ["1,000 MB", "500 MB", "0"]
    forward, backward = lines[13:15]
    assert (forward.split(), backward.split()[0]) == (["forward", 9 * "━"], "backward")
    assert backward.count("━") == quarter + 1
    assert re.fullmatch(r" {13}0.00 s +4.00 s", lines[15])
    assert lines[16].strip() == "█ parameters  ░ activations"


def areas(markup):
    """By kind, from each path: the edge above as (x, y) where it changes, in thousandths of the drawing."""
    found = {}
    for path, kind in re.findall(r' d="([^"]*)"><title>([^<]*)', markup):
        there = path[: path.index("H1000V")]
        (y,) = re.findall(r"^M0 (\d+)", there)
        steps = re.findall(r"H(\d+)V(\d+)", there)
        found[kind] = [(0, 1000 - int(y)), *((int(x), 1000 - int(y)) for x, y in steps)]
    return found


def test_svg():
    """Each kind's area stands on those below; it is read aloud as one sentence; nothing is loaded or run."""
    markup = at_peak.drawn_over((STEP,), "cuda:0")
    assert areas(markup) == {
        "parameters": [(0, 0), (250, 333)],
        "activations": [(0, 0), (250, 333), (500, 1000), (750, 333)],
    }
    page = Reader(markup)
    attributes = dict(page.attributes)
    assert attributes["role"] == "img"
    assert attributes["aria-label"] == (
        "Memory of cuda:0 over 4.00 s by kind, highest 1.2 GB at 2.00 s:"
        " activations 800 MB, parameters 400 MB; marked: forward, backward."
    )
    assert set(page.tags) == {"div", "svg", "line", "text", "path", "title", "circle", "rect", "b"}
    assert not any(name.startswith("on") or name.endswith("href") for name, _ in page.attributes)


def test_the_colours_are_the_tables_and_explained_once():
    """What the bar explains is not explained again; a kind that the peak has none of is."""
    points = tuple((time_s, (*sizes, 0)) for time_s, sizes in STEP.points)
    more = replace(STEP, kinds=(*STEP.kinds, "temporaries"), points=points)
    markup = at_peak.html(ROWS, (), (more,))
    assert [markup.count(f"■</b>\N{NO-BREAK SPACE}{kind}") for kind in more.kinds] == [1, 1, 1]
    for kind in more.kinds:
        assert f"<path fill={at_peak._FILLS[kind]} " in markup
        assert f"<b style=color:{at_peak._FILLS[kind]}>" in markup
    assert "<svg" not in at_peak.html(ROWS, (), (replace(STEP, device="cuda:1"),))


def test_the_largest_is_of_15_kb():
    """All kinds, as many points and phases as there can be, each another figure."""
    points = tuple(
        (
            i * 1.2345678,
            tuple(((7 * i + k) % 13 + 1) << 33 if i % 2 else ((5 * i + k) % 17 + 1) << 31 for k in range(7)),
        )
        for i in range(56)
    )
    phases = tuple((("forward", "backward", "step")[i % 3], i * 1.1, i * 1.1 + 1) for i in range(60))
    markup = at_peak.drawn_over((KindTimeline("cuda:0", KINDS, points, phases),), "cuda:0", 300)
    assert len(markup.encode()) < 15 << 10


@given(of_class(KindTimeline))
def test_no_record_breaks_it(one):
    """Whatever a file says, what is drawn is text and markup."""
    for drawing in drawings((one,), one.device):
        assert all(line.isprintable() and len(line) <= 80 for line in drawing.text())
        Reader(drawing.svg(at_peak._FILLS, 200))


@pytest.mark.parametrize("kinds", [(), ("before",)])
def test_nothing_to_draw(kinds):
    """No drawing of nothing, and none of a record that does not fit together."""
    assert not drawings((KindTimeline("cuda:0", kinds, ((0.0, (0,)),)),), "cuda:0")
    assert not drawings((KindTimeline("cuda:0", kinds, ()),), "cuda:0")


def test_an_estimate_is_its_text_and_the_drawing():
    """In a terminal the blocks are part of the text; in a notebook the areas stand below it."""
    one = Estimate(
        "step", "cuda:0", 1200 * MB, 1200 * MB, ROWS, timeline=(replace(STEP, unit="allocations"),)
    )
    assert "▼ 1200 MB at allocation 2" in repr(one)
    markup = one._repr_html_()
    assert markup.startswith("<pre ")
    assert "░" not in markup
    assert areas(markup)["activations"][2] == (500, 1000)
    assert "over 4 allocations by kind" in markup
    assert one.timeline[0]._repr_html_().count("<svg role=img") == 1
