"""The report as HTML: one line that unfolds; small, safe, and readable with all styling stripped."""

import html
import re
from dataclasses import replace

import made
import plotted
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plotted import peak as exact
from reading import Reader

from ipygpulogger.records import (
    ChildrenUsage,
    DeviceUsage,
    Metric,
    Note,
    OutOfMemory,
    Owner,
    Peak,
    RamUsage,
    Usage,
)
from ipygpulogger.records.note import NoteKind
from ipygpulogger.records.units import printable, signed_size_text, size_text, time_text, without_controls
from ipygpulogger.render import html as render_html
from ipygpulogger.render import text
from ipygpulogger.render.growth import between, grew, parts
from ipygpulogger.render.headline import headline, so_far
from ipygpulogger.render.markup import bar, sparkline

MB = 2**20
KB2 = 2048
TAGS = {"table", "tfoot", "tr", "th", "td", "div", "details", "pre", "summary", "b", "span", "code"}
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


OWNERS = st.lists(
    st.builds(Owner, WORDS, st.integers(0, 2**47), st.just("cuda:0"), st.just("variable")), max_size=12
).map(tuple)
CARDS = made.of_class(OutOfMemory, owners=OWNERS, advice=WORDS)
# Any record, of 0 to 16 devices, with strings that mean harm, or are too long.
RECORDS = made.records(
    label=WORDS, source=WORDS, error=WORDS, notes=st.lists(WORDS, max_size=6).map(tuple), owners=OWNERS,
    out_of_memory=st.none() | CARDS,
)  # fmt: skip


def record(consumed=0, peaked=0, used=170, **more):
    return plotted.record(consumed, peaked, used, **more)


def device(consumed=0, used=5465, **more):
    """Of a card of 16 GB, of which this process holds a gigabyte."""
    total = {"total_bytes": 16384 * MB, "used_bytes": used * MB, "free_bytes": (16384 - used) * MB}
    return plotted.device(consumed, 0, 1000 + consumed, **total | more)


def figures(reader):
    """The rows of the table of figures."""
    return next((rows for rows in reader.tables if rows[0][0] == "MB"), [])


def is_small_and_harmless(given):
    """At most two kilobytes, no tag or attribute but ours, closed: while it runs, and after."""
    compact = render_html.report(given, compact=True)
    for page in (render_html.report(given), render_html.so_far(given), compact):
        assert len(page.encode("utf-8", "surrogatepass")) <= KB2
        reader = Reader(page)
        assert set(reader.tags) <= TAGS
        assert {name for name, _ in reader.attributes} <= {"style", "open", "align"}
        assert all(
            re.fullmatch(r"[\w:;.,%# -]*", value) for name, value in reader.attributes if name == "style"
        )


def has_the_figures_of_the_text(given):
    """Every row of the text is a row of the table, as many as fit: a header cell and the same three figures."""
    reader = Reader(render_html.report(given))
    told = [("RAM" if name == "Gen" else name, *figures) for name, figures, _ in text.rows(given)]
    found = figures(reader)
    if not found:  # a line alone, or a hostile one that takes all the room
        return
    assert found[0] == ["MB", "Consumed", "Peaked", "Used"]
    shown = [[cell.replace(",", "").replace("\u2212", "-") for cell in row[:4]] for row in found[1:]]
    cut = len(shown) - 1 if shown[-1][0] == "…" else len(shown)
    assert shown[:cut] == [list(row) for row in told[:cut]]
    assert cut == len(told) or shown[-1][3] == "%gpulog status"
    assert [row[:4] for row in reader.headers] == [[True] * 4, *[[True, False, False, False]] * len(shown)]


def tells_the_first_thing_of_the_text(given):
    """Time, ending, and each memory in it: what moved has its sign, what is used follows."""
    given = replace(given, out_of_memory=None)
    said = Reader(render_html.report(given, compact=True)).words
    assert said.startswith(time_text(given.time_s))
    ram = next((clause for clause in said.split(" · ") if clause.startswith("RAM ")), None)
    if ram is not None:  # hostile words may take all the room
        assert ram.endswith(size_text(given.gen.after_bytes))
        moved = abs(given.gen.consumed_bytes) >= MB
        assert not moved or signed_size_text(given.gen.consumed_bytes) in ram


def says_what_to_do_without_memory(given):
    """The advice has room before any note or remark."""
    card = given.out_of_memory
    if (
        card and len(card.advice) <= 60 and not {"`", "M"} & set(card.advice)
    ):  # code, and sizes read otherwise
        assert without_controls(html.escape(card.advice)) in render_html.report(given)


@given(RECORDS)
def test_any_report(given):
    """Made once for all four, as such a record takes long to make."""
    is_small_and_harmless(given)
    has_the_figures_of_the_text(given)
    tells_the_first_thing_of_the_text(given)
    says_what_to_do_without_memory(given)


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (record(), "0.81 s · RAM 170 MB"),
        (record(gpus=(device(),)), "0.81 s · RAM 170 MB · GPU 5.3 of 16 GB"),
        (record(3, 1), "0.81 s · RAM +3 MB, needed 4 → 170 MB"),
        (record(-3), "0.81 s · RAM \u22123 MB → 170 MB"),
        (record(0, 2), "0.81 s · RAM needed 2 MB → 170 MB"),
        (record(label="load"), "0.81 s · load · RAM 170 MB"),
    ],
)
def test_where_nothing_happened_one_grey_line_says_so(one, said):
    """No fold, no table: the time and what is used; a small movement of RAM is part of the line."""
    page = render_html.report(one)
    assert Reader(page).words == said
    assert re.match(r"<div style=[\w.:;-]*;opacity:.6>", page)
    assert page == render_html.report(one, compact=True)


def test_whatever_happened_is_no_grey_line():
    """Consumed, given back, needed, failed, noted, nearly full, by children, by others: all stand out."""
    loud = [
        record(5), record(-5), record(0, 5), record(status="interrupted"), record(notes=("x",)),
        record(gpus=(device(1),)), record(gpus=(device(used=16000),)), record(between=(("cpu", 2 * MB),)),
        record(gpus=(device(context_bytes=500 * MB),)), record(gpus=(device(unattributed_bytes=-MB),)),
        record(gpus=(device(unknown_rise_bytes=MB),)), record(gpus=(device(metrics=(Metric("energy", 1.0, "J"),)),)),
        record(gpus=(device(neighbours_before_bytes=0, neighbours_bytes=MB),)),
        record(children=ChildrenUsage(0, 5 * MB, exact(5), count=1)),
        record(pinned=Usage(0, 0, exact(5))),
    ]  # fmt: skip
    for one in loud:
        assert "opacity:.6>" not in render_html.report(one).partition("</")[0], one
        assert render_html.report(one, compact=True).startswith("<div"), one


@given(st.integers(-4096, 4096), st.integers(0, 4096), st.sampled_from(["exact", "bounded", "sampled"]))
def test_where_the_line_says_it_all_nothing_unfolds(consumed, peaked, quality):
    """A cell of one row and nothing else is its line; whatever else there is to say unfolds."""
    alone = record(consumed, peaked, 8192, quality=quality)
    assert "<details" not in render_html.report(alone)
    more = [{"notes": ("A sentence. " * 9,)}, {"gpus": (device(),)}, {"pinned": Usage(0, 9 * MB, exact(9))}]
    for fields in more if abs(consumed) > 5 else ():
        assert render_html.report(replace(alone, **fields)).startswith("<details"), fields


def test_lines_begin_where_those_that_unfold_have_their_words():
    """A quiet line, one that says it all, and what a line unfolds to have the same left edge."""
    lines = [render_html.report(record(moved)) for moved in (0, 99)]
    unfolds = render_html.report(record(99, gpus=(device(),)))
    edges = [re.search(r"padding-left:(\d+px)", page)[1] for page in lines]
    assert edges == [re.search(r"margin:4px 0 6px (\d+px)", unfolds)[1]] * 2


def test_what_holds_for_many_rows_is_said_once():
    """A remark that several devices have in common names them all."""
    gpus = tuple(plotted.device(9, 9, 99, index=index, quality="sampled") for index in range(3))
    words = Reader(render_html.report(record(gpus=gpus))).words
    assert words.count("(peaked at least)") == words.count("GPU0, GPU1, GPU2: (peaked at least)") == 1


@given(st.text(st.characters(categories=["L", "Zs"]), min_size=1, max_size=300).map(str.strip))
def test_no_sentence_is_cut_in_the_line(note):
    """A note is in the line as a whole or not at all; one that is urgent, or has no other place, is there."""
    for one in note, Note(NoteKind.LITTLE_LEFT, note):
        for whole in True, False:
            *_, last = headline(record(99, notes=(one,)), whole=whole)
            assert str(last) == printable(one) or (type(one) is str and not whole and len(one) > 60)
    assert str(so_far(record(99, notes=(note,)))[-1]) == printable(note)


def test_still_over_a_budget_is_grey():
    """A cell that only began above its budget stays one grey line, which says by how much."""
    page = render_html.report(record(0, notes=(Note.read("still over budget by 20 MB"),)))
    assert page.endswith(
        ";opacity:.6>0.81\N{NO-BREAK SPACE}s\N{NO-BREAK SPACE}· RAM 170\N{NO-BREAK SPACE}MB"
        "\N{NO-BREAK SPACE}· still over budget by 20\N{NO-BREAK SPACE}MB</div>"
    )


GB16 = {"ram_total_bytes": 16 << 30}


@pytest.mark.parametrize(
    ("given", "more", "is_open"),
    [
        (record(1639), GB16, True),  # a tenth of RAM is 1638.4 MB
        (record(1638), GB16, False),
        (record(1639), {}, False),  # the machine's RAM is unknown
        (record(-1639), GB16, True),
        (record(1000, 639), GB16, True),
        (record(gpus=(device(1639),)), {}, True),
        (record(gpus=(device(1638),)), {}, False),
        (record(gpus=(device(5, used=16000),)), {}, True),  # little headroom
        (record(status="error", error="ValueError"), {}, False),
        (record(out_of_memory=OutOfMemory("cuda:0", *[None] * 6, 0, 0, (), "Use less.")), {}, True),
        (record(notes=(Note.read("Over budget on cuda:0: highest 6800 of 5000 MB"),)), {}, True),
        (record(notes=(Note.read("grew in each of its last 3 runs: x"),)), {}, True),
        (record(notes=("the driver does not report energy",)), {}, False),
        (record(gen=RamUsage(0, 9 * MB, Peak(9 * MB, None, "sampled"))), {}, True),
        (record(gen=RamUsage(0, 9 * MB, Peak(9 * MB, 12 * MB, "bounded"))), {}, True),
        (record(gen=RamUsage(0, 9 * MB, Peak(9 * MB, 9 * MB + 1, "bounded"))), {}, False),
        (record(9, gen=RamUsage(0, 0, Peak(MB, None, "sampled")), notes=("x",)), {}, False),  # nothing moved
    ],
)
def test_what_matters_is_open(given, more, is_open):
    """Over budget, growing, little headroom, an inexact peak, a tenth of the device or of RAM."""
    page = render_html.report(replace(given, notes=(*given.notes, "There is more to say. " * 9)), **more)
    assert page.startswith("<details open" if is_open else "<details style"), page


def test_what_is_folded_says_how_the_device_is_divided():
    """Bar and legend say the same; children and figures of the framework stand below."""
    sizes = {"allocated_bytes": 1005 * MB, "reserved_bytes": 1100 * MB, "reserved_peak": exact(9000)}
    children = ChildrenUsage(10 * MB, 20 * MB, Peak(30 * MB, 40 * MB, "bounded"), count=2)
    given = record(128, gpus=(device(5, neighbours_bytes=0, **sizes),), children=children)
    page = render_html.report(given)
    words = Reader(page).words
    for said in ("■ held before 1.0 GB · ■ consumed 5 MB · ■ context and libraries 4.3 GB · free 10.7 GB",
                 "RAM: (+ 2 children 20 MB, highest 30 to 40 MB)"):  # fmt: skip
        assert said in words, said
    assert [float(share) for share in re.findall(r"width:([\d.]+)%", page)] == pytest.approx(
        [1000 / 163.84, 0.3, 4365 / 163.84], rel=0.01
    )


@pytest.mark.parametrize(
    ("children", "said"),
    [
        ({}, " · 1 child 309 MB"),
        ({"peak": exact(409), "count": 2}, " · 2 children 309 MB, highest 409 MB"),
        ({"before_bytes": 309 * MB, "after_bytes": 0, "count": 0, "ended": 2}, " · 2 children ended"),
        ({"before_bytes": 309 * MB, "after_bytes": 0, "count": 0}, " · children ended"),
        ({"peak": Peak(409 * MB, None, "sampled")}, " · 1 child 309 MB, highest at least 409 MB"),
        ({"peak": Peak(409 * MB, 630 * MB, "bounded")}, " · 1 child 309 MB, highest 409 to 630 MB"),
        ({"before_bytes": 307 * MB}, ""),
    ],
)
def test_the_line_has_children_that_moved(children, said):
    """How many there are and what they hold; a small change is not worth the line."""
    fields = {"before_bytes": 0, "after_bytes": 309 * MB, "peak": exact(309), "count": 1} | children
    page = render_html.report(record(children=ChildrenUsage(**fields)), compact=True)
    assert Reader(page).words == f"0.81 s · RAM 170 MB{said}"


@given(made.devices(0, attributed=True) | made.devices(0, attributed=False))
def test_a_bar_is_never_longer_than_its_device(gpu):
    """Whatever the figures are: no part is negative, and all of them together are at most the whole."""
    found = parts(gpu)
    assert all(part.size_bytes >= 0 or part.name == "free" for part in found)
    assert sum(map(float, re.findall(r"width:([\d.e+]+)%", bar(found, gpu.total_bytes or 0)))) <= 100.1


@given(*[st.integers(0, 2**34)] * 3, *[st.integers(0, 2**33)] * 2)
def test_the_parts_of_a_device_add_up_to_it(before, after, moment, cached, neighbours):
    """All but the transient peak, which was allocated in what is free."""
    context, free = 500 * MB, 2**33
    used, top = after + cached + context + neighbours, max(before, after) + moment
    gpu = DeviceUsage(
        before, after, Peak(top, top, "exact"), index=0, name="a card", total_bytes=used + free, used_bytes=used, free_bytes=free, allocated_bytes=after,
        reserved_bytes=after + cached, neighbours_bytes=neighbours,
    )  # fmt: skip
    found = {part.name: part.size_bytes for part in parts(gpu)}
    assert found.pop("for a moment") == moment
    assert sum(found.values()) == gpu.total_bytes
    held = found["held before" if after >= before else "held"], found["consumed"]
    assert held == (min(before, after), max(0, after - before))
    others = found["cached"], found["context and libraries"], found["other processes"]
    assert others == (cached, context, neighbours)


OWNERS_OF_TWO = (
    Owner("model", 980 * MB, "cuda:0", "variable", ("net", "tied")),
    Owner("<b>df", 121 * MB, "cpu", "variable"),
)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (record(0, between=(("cpu", -97 * MB), ("cuda:0", 200 * MB))), "between cells: -97 MB, cuda:0 +200 MB"),
        (record(128, owners=OWNERS_OF_TWO, unexplained=(("cpu", 12 * MB), ("cuda:0", 50 * MB))),
         "grew: model 980 MB (cuda:0) (also net, tied), <b>df 121 MB; 12 MB unexplained; 50 MB (cuda:0) unexplained"),
    ],
)  # fmt: skip
def test_what_moved_before_and_who_grew_is_said_in_both(given, said):
    """The same words in text and HTML; a cell that did nothing has its table if memory moved before it."""
    assert text.report(given).splitlines()[-1] == said
    assert text.report(given, compact=True).split(" | ")[-1] == said
    assert said in Reader(render_html.report(given)).words.replace("\u2212", "-")
    assert between(record(0)) == ""


def test_what_the_line_says_is_not_repeated():
    """Few names that no other shares stand in the line; below it, what they leave unexplained."""
    owners = Owner("model", 1980 * MB, "cuda:0", "variable"), Owner("df", 121 * MB, "cpu", "variable")
    words = Reader(render_html.report(record(128, owners=owners, unexplained=(("cpu", 12 * MB),)))).words
    assert words.count("model 1.9 GB, df 121 MB") == words.count("12 MB unexplained") == 1
    assert words.count("model") == words.count("df") == 1
    many = record(128, owners=tuple(Owner(f"n{i}", 1100 * MB, "cpu", "variable") for i in range(4)))
    assert "grew: n0 1.1 GB, n1 1.1 GB, n2 1.1 GB, n3 1.1 GB" in Reader(render_html.report(many)).words


def grown(*names, size_mb=2, shared=(), kind="variable"):
    return tuple(Owner(name, size_mb * MB, "cpu", kind, shared) for name in names)


SMALLER = grown("24 smaller names", size_mb=20, kind="other")
EIGHT = "grew: " + ", ".join(f"n{i} 2 MB" for i in range(8))


@pytest.mark.parametrize(
    ("owners", "unexplained_mb", "said"),
    [
        ((), None, ""),
        ((), 50, "grew: 50 MB unexplained"),
        (grown("x", size_mb=300), -250, "grew: x 300 MB; 250 MB of that took no new memory"),
        (grown(*(f"n{i}" for i in range(11))), None, f"{EIGHT}, others 6 MB"),
        (grown(*(f"n{i}" for i in range(9))) + SMALLER, None, f"{EIGHT}, others 22 MB"),
        (grown("a\x1b[2J\n", shared=tuple("bcdef")), None, "grew: a?[2J? 2 MB (also b, c, d, 2 more)"),
    ],
)
def test_how_growth_is_said(owners, unexplained_mb, said):
    """Nothing where there is nothing to say; hostile names are words; many are added up."""
    unexplained = () if unexplained_mb is None else (("cpu", unexplained_mb * MB),)
    given = record(128, owners=owners, unexplained=unexplained)
    assert grew(given) == said
    cut = " (search cut short)" if unexplained and said else ""  # no more names were to be found otherwise
    assert grew(replace(given, owners_complete=False)) == said + cut


def test_a_long_cell_has_its_time_series_in_both():
    """Two seconds and a megabyte of movement: blocks behind the row of the text and of the table in HTML."""
    timeline = ((0.0, 100 * MB), (1.0, 900 * MB), (3.0, 170 * MB))
    gen = RamUsage(100 * MB, 170 * MB, exact(900), timeline=timeline)
    given = record(gen=gen, time_s=3.0)
    page = render_html.report(given)
    assert f"{sparkline(timeline)}" in Reader(page).words
    assert text.report(given).splitlines()[1].endswith(f" MB  {sparkline(timeline)}")
    for undrawn in (
        record(gen=gen, time_s=1.9),
        record(time_s=3.0, gen=RamUsage(MB, 9 * MB, exact(9), timeline=((0.0, MB), (3.0, MB)))),
    ):
        assert "max" not in Reader(render_html.report(undrawn)).words


USED = {"reserved_bytes": 1000 * MB, "allocated_bytes": 600 * MB}
THEIRS = DeviceUsage(
    0, 0, exact(0), index=0, name="", total_bytes=MB * 100, used_bytes=MB * 99, free_bytes=MB
)


@pytest.mark.parametrize(
    ("gpu", "is_said"),
    [
        (device(free_bytes=499 * MB, total_bytes=10000 * MB), True),
        (device(free_bytes=500 * MB, total_bytes=10000 * MB), False),
        (device(free_bytes=100 * MB, total_bytes=10000 * MB, **USED), False),  # the cache is ours
        (THEIRS, False),
    ],
)
def test_a_device_under_5_percent_is_said_at_each_cell(gpu, is_said):
    """The remark stands behind the row from the first byte under a twentieth of the device, where we use it."""
    assert ("headroom" in text.report(record(gpus=(gpu,)))) == is_said
