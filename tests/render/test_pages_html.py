"""The pages of `%gpulog` as HTML: the figures of the text, bars in cells, nothing that could harm."""

import re
from html import unescape

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import records
from memory import MB
from reading import Reader

from ipygpulogger import DeviceUsage, History, Peak
from ipygpulogger.records import CPU, Diagnosis, Owner
from ipygpulogger.render import growth, owners, summary
from ipygpulogger.render.owners import Freed

ALLOWED = {"div", "table", "caption", "tfoot", "tr", "th", "td", "b", "code", "span", "details", "summary"}
HOSTILE = "<script>alert('&')</script>"


def read(markup):
    page = Reader(markup)
    assert set(page.tags) <= ALLOWED, set(page.tags) - ALLOWED
    names = {name for name, _ in page.attributes}
    assert not {name for name in names if name.startswith("on")} | names & {"src", "href", "class", "id"}
    assert "<script" not in markup
    return page


@settings(suppress_health_check=[HealthCheck.too_slow])  # several records take long to make
@given(
    st.lists(records(), max_size=3), st.sampled_from([1, 9]), st.sampled_from(["peak", "consumed", "time"])
)
def test_any_summary_is_harmless(given, times, by):
    """A row for each memory that moved, at most twenty cells, all words of the text below the table."""
    given = given * times
    found = History(given)
    page = read(summary.html(found.rank(by=by), by, found.suspects()))
    told = summary.summary(found.rank(by=by), by, found.suspects())
    assert page.words.startswith(told.splitlines()[0])
    took = [row[-2] for row in page.rows[1:] if row[-2]]
    assert len(took) == min(20, len(found.rank(by=by)))
    assert all(row[0] for row in page.headers)
    shown = read(found._repr_html_())
    assert len([row for row in shown.rows[1:] if row[-2]]) == min(20, len(given))


def owner(name, size_mb, device=CPU, kind="variable", shared=()):
    return Owner(name, size_mb * MB, device, kind, shared)


HELD = (
    owner("model", 1600, "cuda:0", shared=("net",)), owner("Out[3]", 800, "cuda:0", "output"),
    owner("model", 20), owner(HOSTILE, 7), Owner("tiny", 1000, CPU, "variable"),
)  # fmt: skip


def test_the_holders_have_bars_and_the_hidden_are_red():
    """The rows of the text, figures in columns, the bar of each holder as long as what it holds."""
    used = {"cuda:0": 2500 * MB, CPU: 300 * MB}
    markup = owners.html(HELD, used, complete=False, uncounted=["lazy"])
    page = read(markup)
    assert page.rows == [
        ["Holder", "", "", "cuda:0", "RAM", ""],
        ["model", "", "", "1,600", "20", "also net"],
        ["Out[3]", "hidden", "", "800", "", ""],
        [HOSTILE, "", "", "", "7", ""],
        ["1 smaller one", "", "", "", "<1", ""],
        ["named in all", "", "", "2,400", "27", ""],
        ["not named", "", "", "100", "273", "Python itself, libraries, small objects"],
    ]
    widths = re.findall(r"width:([\d.]+)%;background:(#\w+)", markup)
    assert widths == [("98.8", "#4c78a8"), ("1.23", "#9e9e9e"), ("49.4", "#e45756"), ("0.432", "#9e9e9e")]
    plain = owners.holders(HELD, used, complete=False, uncounted=["lazy"]).splitlines()
    assert page.words.endswith("".join(plain[-2:]))


def test_what_free_says():
    """What came back, then what was dropped, as the text says it."""
    freed = Freed(HELD[1:2], {"cuda:0": (1800 * MB, 790 * MB), "RAM": (12 * MB,)}, complete=False)
    assert read(freed._repr_html_()).words == (
        "came back: cuda:0 1.8 GB (the device 790 MB), RAM 12 MB"
        "dropped: Out[3] 800 MB (there was no time to look everywhere)"
    )


FOUND = [
    Diagnosis("general RAM", "exact", "peaks from the high-water mark"),
    Diagnosis("torch", "absent", HOSTILE, "Install <it>."),
    Diagnosis("NVML", "sampled", "whole-device figures"),
]


def test_doctor_and_status():
    """Each source a row, its remedy with it; the devices as bars, the options folded."""
    page = read(growth.diagnoses_html(FOUND))
    assert page.rows[1:] == [
        ["general RAM", "exact", "peaks from the high-water mark"],
        ["torch", "absent", HOSTILE],
        ["", "", "-> Install <it>."],
        ["NVML", "sampled", "whole-device figures"],
    ]
    gpu = DeviceUsage(
        MB, 600 * MB, Peak(600 * MB, 600 * MB, "exact"), 0, HOSTILE, total_bytes=1000 * MB, used_bytes=700 * MB,
        free_bytes=300 * MB, allocated_bytes=600 * MB, reserved_bytes=650 * MB, neighbours_bytes=0,
    )  # fmt: skip
    page = read(growth.status_html("running, 3 cells recorded", "compact=False", FOUND, [gpu]))
    assert page.words.startswith(f"running, 3 cells recordedGPU: {HOSTILE}")
    assert "■ tensors 600 MB · ■ cached 50 MB · ■ context and libraries 50 MB · free 300 MB" in page.words
    assert page.words.endswith("Optionscompact=False")
    plain = growth.status("running, 3 cells recorded", "compact=False", FOUND, [gpu]).splitlines()
    assert plain[:2] == [
        "running, 3 cells recorded; compact=False",
        "general RAM  exact    peaks from the high-water mark",
    ]


@pytest.mark.parametrize("records", [History()])
def test_nothing_yet(records):
    """One quiet line."""
    for markup in (summary.html([], "peak", []), records._repr_html_()):
        assert unescape(Reader(markup).words) == "no cell has been reported yet"


@given(records())
def test_every_record_displays_itself(given):
    """`il.record`, its lines and its failed allocation: HTML for a notebook, one line elsewhere."""
    for value in (given, *given.lines, *filter(None, [given.out_of_memory])):
        assert value._repr_html_()
        assert "<script" not in value._repr_html_()
    assert not hasattr(given.gen, "_repr_html_")
