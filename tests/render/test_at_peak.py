"""What was alive at the peak, as text and as HTML."""

import re
from dataclasses import replace

from handmade import cell, gpu, ram
from memory import MB

from ipygpulogger import AtPeak, OutOfMemory, Owner
from ipygpulogger.render import at_peak, html, out_of_memory, page, text

ROWS = (
    AtPeak("cuda:0", "parameters", "model", "before the cell", 2410 * MB, 1),
    AtPeak("cuda:0", "activations", "loss = step(batch)", "In [7]:3", 5120 * MB, 96),
    AtPeak("cuda:0", "gradients", "loss.backward()", "In [7]:4", 2312 * MB, 1),
    AtPeak("cuda:0", "before", "held by no name", "before the cell", 3 << 10, 2),
)
RAM = (
    AtPeak("cpu", "variables", "images", "In [7]:1", 64 * MB, 1),
    AtPeak("cpu", "temporaries", "f()", "In [7]:2", 34 * MB, 100),
)
TIMES_S = (("cuda:0", 1.917),)
FOREIGN = AtPeak("cuda:0", "temporaries", "<b>\x1b[2J\n\u202e" * 40, "a/\r\ud800" * 40 + "x.py:12", 7 * MB, 1)
MANY = tuple(AtPeak("cuda:0", "temporaries", f"f({i})", f"train.py:{i}", (90 - i) * MB, 2) for i in range(60))


def test_text():
    """By device: when and how much, then kind, name, place, size and blocks, the largest first."""
    assert at_peak.text((*RAM, *ROWS), TIMES_S).splitlines() == [
        "At the peak, 1.92 s in: 9842 MB on cuda:0",
        "  activations  loss = step(batch)  In [7]:3         5120 MB  96 blocks",
        "  parameters   model               before the cell  2410 MB",
        "  gradients    loss.backward()     In [7]:4         2312 MB",
        "  held before  held by no name     before the cell    <1 MB   2 blocks",
        "At the peak: 98 MB of RAM allocated",
        "  variables    images  In [7]:1  64 MB",
        "  temporaries  f()     In [7]:2  34 MB  100 blocks",
    ]


def test_many_rows():
    """Those that are not listed are one line with their sum, so that what is shown adds up."""
    lines = at_peak.text(MANY, ()).splitlines()
    assert len(lines) == 22
    assert re.fullmatch(r"  and 40 more +2020 MB +80 blocks", lines[-1])
    folded = (*MANY[:30], AtPeak("cuda:0", "temporaries", "others", "", 500 * MB, 60))
    assert re.fullmatch(r"  and others +1155 MB +80 blocks", at_peak.text(folded, ()).splitlines()[-1])


def test_foreign_text():
    """Whatever names and places are: printable, within 100 columns, nothing of it is markup."""
    plain, markup = at_peak.text((FOREIGN,), ()), at_peak.html((FOREIGN,), ())
    for line in plain.splitlines():
        assert line.isprintable()
        assert len(line) <= 100
    assert "x.py:12  7 MB" in plain
    assert "<b>\x1b" not in markup
    assert markup.encode().decode() == markup


def words_of(markup):
    return " ".join(re.sub("<[^>]*>", " ", markup).replace("\N{NO-BREAK SPACE}", " ").split())


def test_html():
    """The same: a bar of the kinds in words, and a table with a bar for each row."""
    markup = at_peak.html((*ROWS, *RAM), TIMES_S)
    words = words_of(markup)
    assert "At the peak, 1.92 s in: 9.6 GB on cuda:0 ■ activations 5.0 GB · ■ parameters 2.4 GB" in words
    assert "activations 5,120 loss = step(batch) In [7]:3 96 parameters 2,410 model" in words
    assert "variables 64 images In [7]:1 1 temporaries 34 f() In [7]:2 100" in words
    assert markup.count("<div") == markup.count("</div>")
    assert "and 40 more 2,020 80" in words_of(at_peak.html(MANY, ()))


def test_kinds():
    """In the report two lines for a device, or three within 80 columns where there are many kinds."""
    assert at_peak.kinds_lines(ROWS, TIMES_S) == [
        "At the peak, 1.92 s in: 9842 MB on cuda:0",
        "  activations 5120 MB, parameters 2410 MB, gradients 2312 MB",
    ]
    kinds = "parameters", "gradients", "optimizer state", "activations", "variables", "temporaries", "before"
    rows = [replace(ROWS[1], kind=kind, size_bytes=(900 - i) * MB) for i, kind in enumerate(kinds)]
    assert at_peak.kinds_lines(rows, ())[1:] == [
        "  parameters 900 MB, gradients 899 MB, optimizer state 898 MB,",
        "  activations 897 MB, variables 896 MB, temporaries 895 MB, held before 894 MB",
    ]
    small = replace(ROWS[1], size_bytes=3 << 10)
    assert at_peak.kinds_lines([small], ())[1] == "  activations <1 MB"
    assert "At the peak: &lt;1\N{NO-BREAK SPACE}MB" in at_peak.html([small], ())


def test_a_report_is_silent_where_little_happened():
    """On less than 1 MB of general RAM, and on a device where all was there before; the table has them."""
    little = (ROWS[0], ROWS[3], replace(RAM[0], size_bytes=600 << 10), replace(RAM[1], size_bytes=400 << 10))
    assert at_peak.kinds_lines(little, TIMES_S) == []
    silent, without = (replace(RECORD, at_peak=rows) for rows in (little, ()))
    for compact in (False, True):
        assert text.report(silent, compact=compact) == text.report(without, compact=compact)
        assert html.report(silent, compact=compact) == html.report(without, compact=compact)
    assert "images" in at_peak.text(little, TIMES_S)
    assert len(at_peak.kinds_lines((*ROWS, *little[2:]), TIMES_S)) == 2
    assert len(at_peak.kinds_lines((ROWS[0], *RAM), TIMES_S)) == 2


RECORD = cell(
    ram(900 * MB, 980 * MB),
    gpu(0, 2500 * MB, 5000 * MB, 9842 * MB),
    at_peak=(*ROWS, *RAM),
    peak_times_s=TIMES_S,
)


def test_report():
    """The kinds; compact in one line; rich as a line that unfolds to the largest rows, in two kilobytes."""
    lines = text.report(RECORD).splitlines()
    assert lines[3:] == at_peak.kinds_lines((*ROWS, *RAM), TIMES_S)
    told = text.report(RECORD, compact=True)
    assert told.endswith("| At the peak, 1.92 s in: 9842 MB on cuda:0: " + lines[4].strip())
    markup = html.report(RECORD)
    line = "At the peak, 1.92 s in: 9.6 GB on cuda:0: activations 5.0 GB, parameters 2.4 GB, gradients 2.3 GB"
    assert f"{line}</summary>" in markup.replace("\N{NO-BREAK SPACE}", " ")
    assert "loss = step(batch)  In [7]:3" in markup
    many = html.report(replace(RECORD, at_peak=MANY))
    assert max(len(markup.encode()), len(many.encode())) <= 2048
    assert "At the peak" in many
    for without in html.report(RECORD, compact=True), text.report(replace(RECORD, at_peak=())):
        assert "At the peak" not in without


CARD = OutOfMemory(
    "cuda:0", 4096 * MB, 2048 * MB, 10240 * MB, 0, 0, 0, 0, 0,
    (Owner("model", 2048 * MB, "cuda:0", "variable"),), "Use less.",
)  # fmt: skip


def test_what_was_alive_when_an_allocation_failed():
    """By kind and place below the step to take, of many rows the largest; in HTML within the room of the card."""
    card = replace(CARD, alive=MANY)
    told = out_of_memory.report(card).splitlines()
    at = next(i for i, line in enumerate(told) if line.startswith("  alive then: "))
    assert len(told[at + 1 :]) == 7
    assert told[-1].startswith("    and ")
    assert max(map(len, told)) <= 100
    assert [*told[:at]] == out_of_memory.report(CARD).splitlines()
    for room in (700, 1000, 1400):
        markup = out_of_memory.html(card, room)
        assert len(markup.encode()) <= room
        assert "Do this:" in markup
        assert "Alive then: " in markup
    assert "<b>\x1b" not in out_of_memory.html(replace(CARD, alive=(FOREIGN,)), 2000)


def test_a_page_has_both_moments():
    """The card of an allocation that failed has what was alive then, and the whole table that of the peak."""
    failed = replace(RECORD, out_of_memory=replace(CARD, alive=MANY[:9]), at_peak=MANY)
    assert "  alive then: temporaries 774 MB\n    temporaries  f(0)" in text.report(failed)
    whole = words_of(page.page("a.ipynb", [failed]))
    assert "Alive then: temporaries 774 MB" in whole
    assert whole.count("f(19)") == 1
    assert "and 40 more" in whole


def test_a_long_place_keeps_its_ends():
    """The cell's line that called a helper and the number of the helper's; of a file its end."""
    places = "In [5]:2 → make_batches_of_images, In [1]:4", f"{'a/' * 20}train.py:41"
    said = at_peak.text([replace(ROWS[0], place=place) for place in places], ())
    assert "  In [5]:2 …_of_images, In [1]:4  " in said
    assert "  a/a/a/a/a…/a/a/a/a/train.py:41  " in said
