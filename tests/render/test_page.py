"""The page: whatever a cell is called or says, it is text; nothing is run and nothing comes from elsewhere."""

import re
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import Reader

from ipygpulogger.records import CellRecord, DeviceUsage, OutOfMemory, Owner, Peak, RamUsage
from ipygpulogger.render import page as pages
from ipygpulogger.render.page import page

MB = 2**20
HOSTILE = (
    """<script>alert(1)</script>"'><img src=x onerror=alert(2)> ]]> --> </title></style></pre> $x^{ & é😀"""
)


def record(word="x", count=1, **fields):
    peak = Peak(64 * MB, 64 * MB, "exact")
    device = DeviceUsage(0, 0, peak, index=0, name=word, total_bytes=9 * MB, used_bytes=MB, free_bytes=8 * MB)
    card = OutOfMemory(word, 1, 2, 3, 4, 5, 6, 7, 8, (Owner(word, MB, word, "variable"),), word)
    return CellRecord(
        label=f"{word} [{count}]", started_at=datetime(2026, 1, 1, tzinfo=timezone.utc), time_s=1.0,
        gen=RamUsage(0, 0, peak), gpus=(device,), notes=(word,), execution_count=count, cell_id=word,
        source=word, status="error", error=word, out_of_memory=card, **fields,
    )  # fmt: skip


@pytest.fixture
def no_plot(monkeypatch):
    """The plot has tests of its own."""
    monkeypatch.setattr(pages, "_plot", lambda _: "")


TAGS = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "pre", "code", "main", "dl", "dt", "dd",
    "table", "caption", "tfoot", "tr", "th", "td", "details", "summary", "div", "span", "b", "script",
}  # fmt: skip


def check(word):
    text = page(word, [record(word)], source=lambda _: word, said=[word])
    read = Reader(text)
    assert set(read.tags) <= TAGS
    assert not [name for name, _ in read.attributes if name.startswith("on") or name in ("src", "href")]
    assert read.tags.count("script") == len(re.findall(r"<\s*script", text, re.IGNORECASE)) == 1
    # Title, heading, sentence, label, source twice, note.
    assert read.words.count(word.replace("\N{NO-BREAK SPACE}", " ")) >= 7


@settings(deadline=None, max_examples=60)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).map(lambda word: f"<{word}>&'\""))
def test_any_string_is_text(word):
    """Whatever the characters."""
    with pytest.MonkeyPatch.context() as patch:  # the plot has a test of its own
        patch.setattr(pages, "_plot", lambda _: "")
        check(word)


def test_hostile_strings_are_text(no_plot):
    """Tags, ends of sections and comments are shown; half a surrogate pair, which no file holds, is a question mark."""
    check(HOSTILE)
    assert "a?b\n\tc</code>" in page("x", [record()], source=lambda _: "a\ud800b\n\tc").encode().decode()


def test_one_file_that_fetches_nothing():
    """The plot is within; browsers are told to refuse what is not; the same run makes the same page."""
    cells = [record(count=1), record(count=2)]
    text = page("nb", cells)
    assert "default-src 'none'" in text
    fetched = re.findall(r"""(?:href|src)\s*=\s*["']?([^"'\s>]*)|url\(([^)]*)\)|@import""", text)
    assert all((link or url).startswith("#") for link, url in fetched)
    assert "<img" not in text and text.count("<figure>") == 1
    assert text.count('<details class="cell') == 2
    assert page("nb", cells) == text


def test_a_plot_that_fails_costs_only_the_plot(monkeypatch):
    """One sentence in its place, whatever the plotting raises."""

    def broken(*_):
        raise RuntimeError("<oh>")

    monkeypatch.setattr(pages, "plot", broken)
    text = page("nb", [record()])
    assert "No plot: RuntimeError: &lt;oh&gt;" in text
    assert "<figure" not in text
    assert '<details class="cell' in text


def test_it_reads_without_its_style(no_plot):
    """Title, totals, ranked cells, cells, figures and sources in order, as plain text."""
    cells = [replace(record("a", count=1), label="In [1]"), replace(record("b", count=2), label="In [2]")]
    texts = iter(["first = 1\nmore", "second"])
    read = Reader(page("nb", cells, source=lambda _: next(texts), ranked="<p>ranked</p>"))
    found = ("nb", "2 cells", "Highest RAM", "64 MB", "ranked", "first = 1\nmore", "64", "second")
    at = [0]
    for word in found:
        at.append(read.words.index(word, at[-1]))
    assert len(at) == len(found) + 1


def test_each_cell_is_folded_below_its_line(no_plot):
    """What is seen first is its heaviest line and the line of its report; its source is inside, whole."""
    text = page("nb", [record("a", count=1)], source=lambda _: "\nfirst = 1\nmore")
    (cell,) = re.findall(r'<details class="cell failed">(.*?)</details>', text, flags=re.DOTALL)
    summary, inside = cell.replace("\xa0", " ").split("</summary>")
    assert "<code>a</code>" in summary
    assert "1.00 s" in summary and "more" not in summary
    assert "<pre id=c0><code>\nfirst = 1\nmore</code></pre>" in inside
    assert "<details" not in inside
    assert "<table" in inside


def test_the_totals_are_those_of_the_run(no_plot):
    """Time in all cells together, the highest of each memory and whose it was; what is inexact says at least."""
    device = record().gpus[0]
    high = replace(device, peak=Peak(3 << 30, 3 << 30, "exact"), total_bytes=16 << 30)
    cells = [
        replace(record(count=1), label="In [1]", status="ok", gpus=(high,)),
        replace(
            record(count=2), label="In [2]", time_s=70.0, gen=RamUsage(0, 0, Peak(128 * MB, None, "sampled"))
        ),
        replace(record(count=3), label="nested", time_s=60.0, execution_count=None),
    ]
    found = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd><dd>(.*?)</dd>", page("nb", cells))
    cards = {name: (figure, words) for name, figure, words in found}
    assert cards == {
        "Time in cells": ("71.0 s", "longest In [2], 70.0 s"),
        "Highest RAM": ("at least 128 MB", "raised by In [2]"),
        "Highest GPU": ("3.0 GB", "of 16 GB, raised by In [1]"),
    }
    assert "2 cells · 1 failed" in page("nb", cells)


def test_a_page_of_what_is_unknown(no_plot):
    """Of a device of others no figure, not a 0; of a run without a cell why it ended."""
    device = replace(record().gpus[0], attributed=False, used_bytes=5 * MB, name="Sim")
    text = page("nb", [replace(record(), gpus=(device,))])
    assert "Highest GPU" not in text
    text = page("nb", [], said=["It ended early"])
    assert "It ended early" in text
    assert "No plot" not in text
