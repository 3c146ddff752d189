"""The report as HTML: small, safe, and readable with all styling stripped, whatever a record holds."""

import html
import re
from datetime import datetime, timezone
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipygpulogger.records import CellRecord, ChildrenUsage, DeviceUsage, OutOfMemory, Owner, Peak, RamUsage
from ipygpulogger.records.units import without_controls
from ipygpulogger.render import html as render_html
from ipygpulogger.render import text
from ipygpulogger.render.growth import between, grew
from ipygpulogger.render.sparkline import sparkline

MB = 2**20
KB2 = 2048
TAGS = {"table", "caption", "thead", "tbody", "tr", "th", "td", "p", "details", "summary"}
SIZES = st.integers(-(2**47), 2**47)
MAYBE = st.none() | st.integers(0, 2**47)
WORDS = st.text(max_size=60) | st.sampled_from(
    [
        "<script>alert('&')</script>",
        "</table><p>",
        '" onload="x',
        "<!--",
        "&lt;",
        "\ud800",
        "'" * 900,
        "\U0001d4b3" * 900,
    ]
)


@st.composite
def peaks(draw):
    quality, lo = draw(st.sampled_from(("exact", "bounded", "sampled"))), draw(st.integers(0, 2**47))
    return Peak(
        lo,
        None if quality == "sampled" else lo + draw(st.integers(0, 2**40)),
        quality,
        draw(st.integers(0, 2**30)),
    )


@st.composite
def devices(draw, index):
    sizes = {
        name: draw(MAYBE)
        for name in ("total_bytes", "used_bytes", "free_bytes", "allocated_bytes", "reserved_bytes", "neighbours_bytes",
                     "neighbours_before_bytes", "neighbours_peak_bytes", "driver_bytes", "limit_bytes", "pools_bytes")
    }  # fmt: skip
    return DeviceUsage(
        draw(SIZES), draw(SIZES), draw(peaks()), index=index, name=draw(WORDS), attributed=draw(st.booleans()),
        context_bytes=draw(st.integers(0, 2**40)), unattributed_bytes=draw(SIZES),
        unknown_rise_bytes=draw(SIZES), **sizes,
    )  # fmt: skip


OWNERS = st.lists(
    st.builds(Owner, WORDS, st.integers(0, 2**47), st.just("cuda:0"), st.just("variable")), max_size=12
).map(tuple)
CARDS = st.builds(
    OutOfMemory, st.just("cuda:0"), MAYBE, MAYBE, MAYBE, MAYBE, MAYBE, MAYBE,
    st.integers(0, 2**47), st.integers(0, 2**47), OWNERS, WORDS,
)  # fmt: skip


@st.composite
def records(draw):
    """Any record, of 0 to 16 devices, with strings that mean harm."""
    status = draw(st.sampled_from(("ok", "error", "interrupted")))
    return CellRecord(
        label=draw(WORDS), started_at=datetime.now(timezone.utc), time_s=draw(st.floats(0, 1e7)),
        gen=RamUsage(draw(SIZES), draw(SIZES), draw(peaks()), timeline=((0.0, 0), (1.0, draw(MAYBE) or 0))),
        gpus=tuple(draw(devices(index)) for index in range(draw(st.integers(0, 16)))),
        children=draw(st.none() | st.builds(ChildrenUsage, SIZES, SIZES, peaks(), st.integers(0, 99))),
        notes=tuple(draw(st.lists(WORDS, max_size=6))),
        execution_count=4, cell_id=None, source=draw(WORDS), status=status,
        error=draw(WORDS) if status == "error" else None,
        owners=draw(OWNERS), out_of_memory=draw(st.none() | CARDS),
    )  # fmt: skip


def record(consumed=0, peaked=0, used=170, **more):
    gen = RamUsage((used - consumed) * MB, used * MB, exact(max(used, used - consumed) + peaked))
    members = {
        "label": "In [4]", "started_at": datetime.now(timezone.utc), "time_s": 0.807, "gen": gen,
        "execution_count": 4, "cell_id": None, "source": "x = 1", "status": "ok",
    }  # fmt: skip
    return CellRecord(**members | more)


def exact(peak_mb, precision_mb=0):
    return Peak(peak_mb * MB, peak_mb * MB, "exact", precision_mb * MB)


def device(consumed=0, used=5465, **more):
    members = {
        "index": 0, "name": "a card", "total_bytes": 16384 * MB, "used_bytes": used * MB,
        "free_bytes": (16384 - used) * MB,
    }  # fmt: skip
    return DeviceUsage(1000 * MB, (1000 + consumed) * MB, exact(1000 + max(consumed, 0)), **members | more)


class Reader(HTMLParser):
    """What a reader has of a page once styles, scripts and drawings are gone: words, and the first table."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.scopes, self.rows, self.caption, self.words = [], [], [], "", []
        self.open, self.tables = [], 0
        self.feed(re.sub(r"<(style|script|svg)\b.*?</\1>", "", page, flags=re.DOTALL))
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.tables += tag == "table"
        self.open.append(tag)
        if self.tables == 1 and tag == "tr":
            self.rows.append([])
        if self.tables == 1 and tag in ("th", "td"):
            self.rows[-1].append("")
            self.scopes += [dict(attrs).get("scope")] if tag == "th" else []

    def handle_endtag(self, tag):
        while self.open.pop() != tag:
            pass
        if tag == "table":
            self.tables += 1

    def handle_data(self, data):
        self.words.append(data)
        if self.tables == 1 and self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data
        if self.tables == 1 and self.open[-1] == "caption":
            self.caption += data


@given(records())
def test_any_report_is_small_and_harmless(given):
    """At most two kilobytes, no tag but ours, no attribute but scope, closed: while it runs, and after."""
    for page in (render_html.report(given), render_html.so_far(given)):
        assert len(page.encode("utf-8", "surrogatepass")) <= KB2
        assert set(Reader(page).tags) <= TAGS
        assert set(re.findall(r"<\w+ ([^>]*)>", page)) <= {'scope="col"', 'scope="row"'}
        assert page.count("<details>") == page.count("</details>") <= 1
        assert page.count("<table>") == page.count("</table>")
        assert page.count("<p>") == page.count("</p>")


@given(records())
def test_the_table_read_without_style_has_the_figures_of_the_text(given):
    """Every row of the text is a row of the table: a header cell and the same three figures."""
    reader = Reader(render_html.report(given))
    told = list(text.rows(given))
    if not reader.rows:  # a quiet line
        line = "".join(reader.words)
        for name, (consumed, peaked, used), _ in told:
            assert consumed == peaked == "0"
            assert f"{name} {used} MB" in line
        return
    assert reader.rows[0][:4] == ["MB", "Consumed", "Peaked", "Used"]
    assert [(row[0], tuple(row[1:4])) for row in reader.rows[1:]] == [
        (name, figures) for name, figures, _ in told
    ]
    assert set(reader.scopes) == {"col", "row"}
    assert reader.caption


@given(records())
def test_what_died_of_memory_says_what_to_do(given):
    """The advice has room before any note or remark."""
    card = given.out_of_memory
    if card and len(card.advice) <= 60:
        assert without_controls(html.escape(card.advice)) in render_html.report(given)


def test_a_page_with_everything_else_removed_still_tells():
    """Label, time, ending, figures, remarks and notes, in words alone."""
    given = record(
        128, used=170, gpus=(device(2467),), status="error", error="<script>", notes=("The driver & co.",)
    )
    reader = Reader(render_html.report(given))
    assert reader.caption == "In [4]: 0.807 s, failed: <script>"
    assert reader.rows == [
        ["MB", "Consumed", "Peaked", "Used"],
        ["Gen", "128", "0", "170"],
        ["GPU", "2467", "0", "5465"],
    ]
    assert "The driver & co." in reader.words


def test_where_nothing_happened_one_quiet_line_says_so():
    """No consumption, no peak, nothing to remark: a line with the totals, no table outside the fold."""
    assert render_html.report(record()) == "<p>In [4]: 0.807 s, nothing consumed; used: Gen 170 MB</p>"
    page = render_html.report(record(gpus=(device(),)))
    line, fold, rest = page.partition("<details>")
    assert line == "<p>In [4]: 0.807 s, nothing consumed; used: Gen 170 MB, GPU 5465 MB</p>"
    assert fold
    assert "tensors" not in rest
    assert "headroom" in rest


def test_whatever_happened_is_no_quiet_line():
    """Consumed, given back, peaked, failed, inexact, noted, nearly full: each is a table."""
    loud = [
        record(1), record(-1), record(0, 1), record(status="interrupted"), record(notes=("x",)),
        record(gen=RamUsage(MB, MB, Peak(MB, None, "sampled"))),
        record(gpus=(device(1),)), record(gpus=(device(used=16000),)),
        record(children=ChildrenUsage(0, 5 * MB, exact(5), count=1)),
    ]  # fmt: skip
    for one in loud:
        assert render_html.report(one).startswith("<table>"), one


def test_details_are_folded():
    """Ladder, children and the quality of each peak stand behind a fold that is shut."""
    given = record(
        128,
        gpus=(device(5, allocated_bytes=900 * MB, reserved_bytes=1000 * MB),),
        children=ChildrenUsage(10 * MB, 20 * MB, Peak(30 * MB, 40 * MB, "bounded"), count=2),
    )
    before, fold, details = render_html.report(given).partition("<details><summary>")
    words = " ".join(Reader(fold + details).words)
    assert "tensors" not in before
    for said in ("tensors", "900", "headroom", "Children: 2, before 10 MB, now 20 MB",
                 "Gen 170 exactly", "GPU 1005 exactly", "children 30 to 40"):  # fmt: skip
        assert said in words, said
    assert "open" not in details[:20]


def test_what_moved_before_is_said_in_both():
    """A cell that did nothing has its table then; the same words in text and HTML."""
    given = record(0, between=(("cpu", -97 * MB), ("cuda:0", 200 * MB)))
    said = "between cells: -97 MB, cuda:0 +200 MB"
    assert text.report(given).splitlines()[-1] == said
    assert text.report(given, compact=True).split(" | ")[-1] == said
    assert said in Reader(render_html.report(given)).words
    assert between(record(0)) == ""


def test_who_grew_is_said_in_both():
    """Names, sizes, devices, who shares them, and what is left unexplained; the same words in text and HTML."""
    owners = (
        Owner("model", 980 * MB, "cuda:0", "variable", ("net", "tied")),
        Owner("<b>df", 121 * MB, "cpu", "variable"),
    )
    given = record(128, owners=owners, unexplained=(("cpu", 12 * MB), ("cuda:0", 50 * MB)))
    said = "grew: model 980 MB (cuda:0) (also net, tied), <b>df 121 MB; 12 MB unexplained; 50 MB (cuda:0) unexplained"
    assert grew(given) == said
    assert said in text.report(given).splitlines()
    assert text.report(given, compact=True).split(" | ")[-1] == said
    assert said in Reader(render_html.report(given)).words


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        ({"unexplained": (("cpu", 50 * MB),)}, "grew: 50 MB unexplained"),
        (
            {"unexplained": (("cpu", 50 * MB),), "owners_complete": False},
            "grew: 50 MB unexplained (search cut short)",
        ),
        (
            {"owners": (Owner("x", 300 * MB, "cpu", "variable"),), "unexplained": (("cpu", -250 * MB),)},
            "grew: x 300 MB; 250 MB of that took no new memory",
        ),
        (
            {"owners": tuple(Owner(f"n{i}", 2 * MB, "cpu", "variable") for i in range(11))},
            "grew: " + ", ".join(f"n{i} 2 MB" for i in range(8)) + ", 3 more 6 MB",
        ),
        (
            {
                "owners": (
                    *(Owner(f"n{i}", 2 * MB, "cpu", "variable") for i in range(9)),
                    Owner("24 smaller names", 20 * MB, "cpu", "other"),
                )
            },
            "grew: " + ", ".join(f"n{i} 2 MB" for i in range(8)) + ", 25 more 22 MB",
        ),
        (
            {"owners": (Owner("a\x1b[2J\n", 2 * MB, "cpu", "variable", tuple("bcdef")),)},
            "grew: a?[2J? 2 MB (also b, c, d, 2 more)",
        ),
    ],
)
def test_how_growth_is_said(fields, said):
    """Nothing where there is nothing to say; hostile names are words; many are added up."""
    assert grew(record(128, **fields)) == said


def test_a_long_cell_has_its_course_drawn_in_both():
    """Two seconds and a megabyte of movement: the same blocks behind the row, in text and in HTML."""
    timeline = ((0.0, 100 * MB), (1.0, 900 * MB), (3.0, 170 * MB))
    gen = RamUsage(100 * MB, 170 * MB, exact(900), timeline=timeline)
    given = record(gen=gen, time_s=3.0)
    drawn = sparkline(timeline)
    assert drawn in render_html.report(given)
    assert text.report(given, timelines=True).splitlines()[1].endswith(f" MB  {drawn}")
    for undrawn in (
        record(gen=gen, time_s=1.9),
        record(time_s=3.0, gen=RamUsage(MB, MB, exact(1), timeline=((0.0, MB), (3.0, MB)))),
    ):
        assert not set(render_html.report(undrawn)) & set("▁█")


def test_a_device_under_5_percent_is_said_at_each_cell():
    """The remark stands behind the row from the first byte under a twentieth of the device, where we use it."""

    def said(free_mb, **more):
        return text.report(record(gpus=(device(free_bytes=free_mb * MB, total_bytes=10000 * MB, **more),)))

    assert said(499).splitlines()[2].endswith(" MB  (headroom 499 MB)")
    assert "headroom" not in said(500)
    assert "headroom" not in said(
        100, reserved_bytes=1000 * MB, allocated_bytes=600 * MB
    )  # the cache is ours
    unused = DeviceUsage(
        0, 0, exact(0), index=0, name="theirs", total_bytes=MB * 100, used_bytes=MB * 99, free_bytes=MB
    )
    assert "headroom" not in text.report(record(gpus=(unused,)))
