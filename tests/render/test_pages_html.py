"""The pages of `%gpulog` as HTML: the figures of the text, bars in cells, nothing that could harm."""

import dataclasses
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import records
from memory import MB
from reading import Reader

from ipygpulogger import DeviceUsage, History, Peak
from ipygpulogger.notebook.options import RANKED_BY
from ipygpulogger.records import CPU, Diagnosis, Owner
from ipygpulogger.render import growth, owners, summary
from ipygpulogger.render.owners import Freed

ALLOWED = {
    "a",
    "div",
    "table",
    "caption",
    "tfoot",
    "tr",
    "th",
    "td",
    "b",
    "code",
    "span",
    "details",
    "summary",
}
HOSTILE = "<script>alert('&')</script>"


def read(markup):
    page = Reader(markup)
    assert set(page.tags) <= ALLOWED, set(page.tags) - ALLOWED
    names = {name for name, _ in page.attributes}
    assert not {name for name in names if name.startswith("on")} | names & {"src", "class", "id"}
    links = [value for name, value in page.attributes if name == "href"]
    assert all(re.fullmatch(r"#cell-id=[\w-]{1,64}", link, re.ASCII) for link in links)
    assert "<script" not in markup
    return page


@settings(suppress_health_check=[HealthCheck.too_slow])  # several records take long to make
@given(st.lists(records(), max_size=3), st.sampled_from([1, 9]), st.sampled_from(RANKED_BY))
def test_any_summary_is_harmless(given, times, by):
    """A row for each memory that moved, at most twenty cells, all words of the text below the table."""
    given = given * times
    found = History(given)
    page = read(summary.html(found, by))
    told = summary.summary(found, by)
    assert all(line.isprintable() for line in told.split("\n"))
    assert page.words.startswith(told.splitlines()[0])
    took = [row[-1] for row in page.rows[1:] if row[-1]]
    assert len(took) == min(20, len(found.rank(by)))
    assert all(row[0] for row in page.headers)
    assert found._repr_html_() == summary.html(found)


def owner(name, size_mb, device=CPU, kind="variable", shared=()):
    return Owner(name, int(size_mb * MB), device, kind, shared)


HELD = (
    owner("model", 1600, "cuda:0", shared=("opt", "tied", "view", "cfg")), owner("Out[3]", 800, "cuda:0", "output"),
    owner("model", 20), owner("loss (autograd graph)", 500, "cuda:0"), owner("err: step.act", 25), owner(HOSTILE, 7),
    owner("last traceback: step.act", 30, kind="traceback"), owner("a", 0.25, "cuda:0"), owner("b", 0.25),
)  # fmt: skip


def test_one_row_a_holder_one_column_a_device():
    """The largest first, hidden ones marked, shared names beside, small ones in one row, and the rest."""
    used, more = {"cuda:0": 3000 * MB, CPU: 300 * MB}, {"complete": False, "uncounted": ["lazy"]}
    plain = owners.holders(HELD, used, **more).splitlines()
    caveats = "There was no time to look everywhere: the named hold at least this much."
    assert plain == [
        "holder                                cuda:0     RAM",
        "model                                1600 MB   20 MB  also opt, tied, view, 1 more",
        "Out[3]                       hidden   800 MB",
        "loss (autograd graph)        hidden   500 MB",
        "last traceback: step.act     hidden            30 MB",
        "err: step.act                hidden            25 MB",
        "<script>alert('&')</script>                     7 MB",
        "2 smaller ones                         <1 MB   <1 MB",
        "named in all                         2900 MB   82 MB",
        "not named                             100 MB  218 MB  Python itself, libraries, small objects",
        caveats,
        "Not counted, size unknown: lazy",
    ]


def test_what_is_not_known_is_not_said():
    """No figure for a device whose use is unknown, nor where more is named than is resident; nothing held is that."""
    held = [owner("untouched", 500), owner("x", 3, "cuda:0")]
    lines = owners.holders(held, {"cpu": 200 * MB, "cuda:0": None}).splitlines()
    assert lines[-1].split() == ["named", "in", "all", "3", "MB", "500", "MB"]
    assert owners.holders([], {"cpu": 50 * MB}).splitlines()[1] == "named in all   0 MB"


def test_what_free_says():
    """What was dropped, and what came back; what is below 1 MB in all is not worth a word."""
    small, few = (tuple(owner(f"Out[{i}]", size, kind="output") for i in range(4)) for size in (0.01, 0.5))
    traceback = owner("last traceback: step.act", 30, kind="traceback")
    freed = Freed((traceback, HELD[1], *small), {"cuda:0": (1800 * MB, 0), "RAM": (70 * MB,)}, complete=False)
    assert str(freed) == repr(freed)
    dropped = "dropped: last traceback (step.act 30 MB), Out[3] 800 MB (there was no time to look everywhere)"
    assert str(freed).splitlines() == [dropped, "came back: cuda:0 1800 MB (the device 0 MB), RAM 70 MB"]
    assert str(Freed(small, {"RAM": (0,)})).startswith("nothing hidden: ")
    assert str(Freed(few, {"RAM": (0,)})).startswith("dropped: 4 others (2 MB)\n")
    with pytest.raises(dataclasses.FrozenInstanceError):
        freed.complete = False


FOUND = [
    Diagnosis("general RAM", "exact", "peaks from the high-water mark"),
    Diagnosis("torch", "absent", HOSTILE, "Install <it>."),
    Diagnosis("NVML", "sampled", "whole-device figures"),
]


def test_doctor_and_status():
    """Each source a row, its remedy below; in status the state of each in one line, and how devices are divided."""
    assert growth.diagnoses(FOUND).splitlines() == [
        "general RAM  exact    peaks from the high-water mark",
        f"torch        absent   {HOSTILE}",
        "                      -> Install <it>.",
        "NVML         sampled  whole-device figures",
    ]
    gpu = DeviceUsage(
        MB, 600 * MB, Peak(600 * MB, 600 * MB, "exact"), 0, HOSTILE, total_bytes=1000 * MB, used_bytes=700 * MB,
        free_bytes=300 * MB, allocated_bytes=600 * MB, reserved_bytes=650 * MB, neighbours_bytes=0,
        reserved_peak=Peak(650 * MB, 650 * MB, "exact"),
    )  # fmt: skip
    state, states = "running, 3 cells recorded", "general RAM exact, torch absent, NVML sampled"
    said = growth.status(state, [*FOUND, FOUND[0]], [gpu])  # two limits of RAM are alike, say
    assert said.splitlines()[:3] == [state, f"{states}; reasons: %gpulog doctor", f"GPU: {HOSTILE}"]
    assert re.search(r"\n  context and libraries +50 MB\n", said)
    assert "highest" not in said  # of the moment in which status was asked


def test_nothing_yet():
    """One quiet line."""
    for markup in (summary.html([]), History()._repr_html_()):
        assert Reader(markup).words == "no cell has been reported yet"


@given(records())
def test_every_record_displays_itself(given):
    """`il.record` and its failed allocation: HTML for a notebook, one line elsewhere."""
    for value in (given, *filter(None, [given.out_of_memory])):
        assert value._repr_html_()
        assert "<script" not in value._repr_html_()
    assert not hasattr(given.gen, "_repr_html_")
