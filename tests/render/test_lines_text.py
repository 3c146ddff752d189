"""The table of lines and the sentence on the heaviest: what they show is what was measured."""

import html as std_html
import re

import made
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import Reader

from ipygpulogger.records import DeviceUsage, LineUsage, Peak, Usage
from ipygpulogger.records.units import rounded_mb
from ipygpulogger.render.lines import heaviest, html, table

MB = 2**20


def usage(consumed, peaked, quality="exact"):
    """So many MB, of 100 before."""
    after = 100 + consumed
    lo = (max(100, after) + peaked) * MB
    return Usage(100 * MB, after * MB, Peak(lo, None if quality == "sampled" else lo, quality))


def gpu(consumed, peaked, index=0, backend="cuda"):
    use = usage(consumed, peaked)
    return DeviceUsage(
        use.before_bytes, use.after_bytes, use.peak, index=index, name="a card", backend=backend
    )


def line(lineno, consumed=0, peaked=0, *, source="x = f()", hits=1, time_s=0.5, gpus=(), **more):
    return LineUsage(lineno, source, hits, time_s, usage(consumed, peaked), gpus, **more)


def rows(told):
    """The table's rows: mark and words."""
    found = [row for row in told.splitlines() if re.match(r"[ >] +\d", row)]
    return [(row[0], re.split(" {2,}", row[1:].strip())) for row in found]


ON_GPU = line(2, gpus=(gpu(32, 32, index=1),))
OFTEN = line(2, 900, hits=3, risen=(("cpu", 300 * MB),))
LITTLE = LineUsage(3, "x", 1, 9.0, Usage(0, MB - 1, Peak(MB - 1, MB - 1, "exact")))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        # Kept and transient memory count alike; of a line and the one it calls it is the faster, called one.
        ([line(5, 64, 200), line(2, 64, 200, time_s=0.4, place="In [3]", source="make(64)"), line(3, -64)],
         "heaviest line 2 of In [3]: make(64)  +64 MB, needed 264 MB of RAM (0.40 s)"),
        # As much on a GPU as in RAM: the GPU's is told; less there: it is not.
        ([line(1, 64), ON_GPU], "heaviest line 2: x = f()  +32 MB, needed 64 MB on GPU1 (0.50 s)"),
        ([line(1, 64), ON_GPU, line(3, 70)], "heaviest line 3: x = f()  +70 MB of RAM (0.50 s)"),
        # Three runs of 300 MB that never lived together are no 900 MB.
        ([OFTEN, line(4, 350)], "heaviest line 4: x = f()  +350 MB of RAM (0.50 s)"),
        ([OFTEN, line(4, 250)], "heaviest line 2: x = f()  +900 MB, needed 300 MB of RAM (3 hits, 0.50 s)"),
        ([line(1, -64), line(2), LITTLE], ""),
    ],
)  # fmt: skip
def test_the_heaviest_needed_the_most(lines, said):
    """The sentence has the line's own figures and time; nothing is said or marked where none needed a megabyte."""
    assert heaviest(lines) == said
    assert heaviest([]) == ""
    assert [mark for mark, _ in rows(table(lines))].count(">") == bool(said)


def test_a_peak_that_is_not_exact_says_so():
    """A sampled peak is at least so much; one between bounds has both."""
    lines = [LineUsage(1, "x", 1, 0.5, usage(1, 64, quality="sampled"))]
    assert heaviest(lines) == "heaviest line 1: x  +1 MB, needed at least 65 MB of RAM (0.50 s)"
    assert rows(table(lines))[0][1][3:5] == ["1", "65+"]
    assert "+: at least so much." in table(lines)
    bounded = LineUsage(1, "x", 1, 0.5, Usage(0, 0, Peak(64 * MB, 70 * MB, "bounded")))
    assert rows(table([bounded]))[0][1][4] == "64-70"


def test_the_table():
    """Columns for RAM and each GPU that moved, a heading for each other place, the heaviest marked."""
    lines = [
        line(3, 64, source="kept = f(64)"),
        line(4, 0, 200, source="for i in y:", hits=12, gpus=(gpu(-8, 0),)),
        line(5, 0, 20, source="    g(i)", gpus=(gpu(1, 1, index=1),)),
        line(2, 0, 0, source="        return 1", place="In [3]"),
    ]
    assert table(lines, ["A note."]).splitlines() == [
        "                           RAM MB           GPU0 MB           GPU1 MB",
        "  Line  Hits    Time  consumed  needed  consumed  needed  consumed  needed  Source",
        "     3     1  0.50 s        64      64         0       0         0       0  kept = f(64)",
        ">    4    12  0.50 s         0     200        -8       0         0       0  for i in y:",
        "     5     1  0.50 s         0      20         0       0         1       2      g(i)",
        "In [3]:",
        "     2     1  0.50 s         0       0         0       0         0       0  return 1",
        "A note.",
    ]


def test_unknown_is_never_a_zero():
    """Lines whose memory was read at some hits alone: what is known is marked, the rest is n/a."""
    lines = [line(1, 30, complete=False), line(2, gpus=(gpu(5, 0),), complete=False), line(3)]
    told = [words[3:7] for _, words in rows(table(lines))]
    assert told == [["30*", "30*", "n/a", "n/a"], ["n/a", "n/a", "5*", "5*"], ["0", "0", "0", "0"]]
    assert "*: of a part of its hits; n/a where those moved nothing." in table(lines)


def test_devices_of_one_number_are_told_apart():
    """Two frameworks may both have a device 0."""
    lines = [line(1, gpus=(gpu(5, 0), gpu(6, 0, backend="xpu"), gpu(7, 0, index=1)))]
    assert table(lines).splitlines()[0].split() == ["RAM", "MB", "cuda:0", "MB", "GPU1", "MB", "xpu:0", "MB"]


def test_no_line():
    """Where none ran that is measured, that is said, with the notes."""
    assert table([], ["A note."]) == "No line ran that is measured.\nA note."
    assert Reader(html([], ["<b>"])).words == "No line ran that is measured.<b>"


WORDS = st.text(
    st.characters(exclude_categories=["C", "Z"]) | st.sampled_from(" <>&\"'"), min_size=1, max_size=100
).map(lambda words: "x" + words)
GPUS = st.lists(st.integers(0, 3), max_size=2, unique=True).flatmap(
    lambda indices: st.tuples(*(made.devices(index, attributed=True) for index in indices))
)
RISEN = st.lists(st.tuples(st.just("cpu"), made.SIZES), max_size=1).map(tuple)
PLACES = st.sampled_from(["", "In [3]"])
LINES = st.lists(
    made.of_class(LineUsage, source=WORDS, place=PLACES, gpus=GPUS, risen=RISEN), min_size=1, max_size=5
)


@given(LINES, st.lists(WORDS, max_size=2))
def test_every_line_and_figure_is_there(lines, notes):
    """Text and HTML have a row for each line, in order, with the same figures and the notes; aligned, escaped."""
    told, page = table(lines, notes), Reader(html(lines, notes))
    texts = rows(told)
    assert [words[0] for _, words in texts] == [str(one.lineno) for one in lines]
    assert [words[1] for _, words in texts] == [str(one.hits) for one in lines]
    wide = [
        [cell.replace("\N{MINUS SIGN}", "-").replace("\xa0", " ") for cell in row[:1] + row[2:-1]]
        for row in page.rows[1:]
        if len(row) > 1
    ]
    count = len(wide[0])  # without the source, which is the second in HTML, and the bar
    assert [words[:count] for _, words in texts] == [row[:count] for row in wide]
    for (_, words), one in zip(texts, lines, strict=True):
        consumed = str(rounded_mb(one.gen.consumed_bytes))
        assert words[3] in (consumed, f"{consumed}*", "n/a")
    assert sum(mark == ">" for mark, _ in texts) == bool(heaviest(lines))
    assert set(page.tags) <= {"table", "caption", "tfoot", "tr", "th", "td", "code", "b", "div"}
    assert std_html.unescape(page.words).endswith("".join(notes))
    assert told.splitlines()[-len(notes) :] == notes or not notes
    assert all(row == row.rstrip() for row in told.splitlines()[: -len(notes) or None])


@given(LINES)
def test_the_heaviest_is_one_of_them_and_none_is_heavier(lines):
    """Whatever the figures: the line that is marked needed the most on its device, to a megabyte."""

    def need(one):
        devices = {"cpu": one.gen, **{found.id: found for found in one.gpus}}
        return max(min(use.needed_bytes, dict(one.risen).get(name, 2**50)) for name, use in devices.items())

    most, sentence = max(map(need, lines)), heaviest(lines)
    assert bool(sentence) == (most >= MB)
    if sentence:
        (found,) = (lines[i] for i, (mark, _) in enumerate(rows(table(lines))) if mark == ">")
        assert need(found) > most - MB
        where = f" of {found.place}" if found.place else ""
        assert sentence.startswith(f"heaviest line {found.lineno}{where}: ")
        assert "\n" not in sentence


RUNS = st.lists(
    st.builds(
        lambda before, after, *above: (
            before,
            after,
            *(max(before, after) + sum(above[:i]) for i in (1, 2, 3)),
        ),
        *[st.integers(0, 99)] * 5,
    ),
    min_size=1,
    max_size=4,
)


@given(RUNS)
def test_what_a_line_needed_lies_within_what_is_shown(runs):
    """Of runs in a loop, each with a lower bound, a true highest and an upper bound: what they held at once."""
    before, after, low, true, high = zip(*runs, strict=True)

    def peaked(tops):
        return max(top - max(ends) for top, *ends in zip(tops, before, after, strict=True)) * MB

    consumed, lowest = sum(after) - sum(before), min(before)
    use = Usage.of_runs(before[0] * MB, consumed * MB, (peaked(low), peaked(high)), 0)
    one = LineUsage(1, "x", len(runs), 0.5, use, risen=(("cpu", (max(low) - lowest) * MB),))
    least, _, most = rows(table([one]))[0][1][4].partition("-")
    truth = min(max(true) - lowest, max(0, consumed) + peaked(true) // MB)
    assert int(least) <= truth <= int(most or least)
