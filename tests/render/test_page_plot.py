"""The plot of a page: its figures are the records', nothing in it is foreign markup, and it stays small."""

import base64
import hashlib
import re
import subprocess
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import MB
from plotted import cell, gpu, peak
from reading import Reader

from ipygpulogger.analysis.ranking import MOST
from ipygpulogger.render.page import page
from ipygpulogger.render.plot_data import SIZES, TIMES, ticks

LINK = re.compile(
    r"<a( class=bad)? href=#(c\d+)><title>(.*?)</title><rect x=(\S+) width=(\S+) /></a>", re.DOTALL
)
HOSTILE = (
    """</title></svg></script><script>alert(1)</script>"'><a href=javascript:alert(2)>$body ${x} ]]> -->"""
)
SIZE = st.integers(0, 90_000)


def links(text):
    """Of each link of the plot: whether it is of a failed cell, its target, its lines, both ends."""
    return [
        (bool(bad), target, unescape(title).split("\n"), float(x), float(x) + float(width))
        for bad, target, title, x, width in LINK.findall(text)
    ]


def figure(text):
    (found,) = re.findall(r"<figure>.*?</figure>", text, re.DOTALL)
    return found


def script(text):
    (found,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    return found


def many(count, course=20, devices=1):
    """A run in which everything moves in every cell, and each sample differs from the one before."""
    cells, ram, card = [], 900, 0
    for number in range(1, count + 1):
        more, on_card = number * 37 % 900, number * 53 % 1900 - 900
        shake = [(k * 1.5, ram + (number * 71 + k * 389) % 2000) for k in range(course)]
        busy = tuple((at_s, (mb * 3 + 20_000) * MB) for at_s, mb in shake)
        top = peak(card + 2500 + number % 700, *(["sampled"] if number % 3 == 0 else []))
        sizes = {"total_bytes": 80 << 30, "used_bytes": 40 << 30, "timeline": busy}
        gpus = [gpu(card, max(0, card + on_card), top, index=n, **sizes) for n in range(devices)]
        more_fields = {"status": "error", "error": "OutOfMemoryError"} if number % 10 == 0 else {}
        cells.append(
            cell(number, number * 40, 30.5, ram, ram + more, ram + more + 1200,
                 course=shake, gpus=gpus, cell_id=f"{number:08x}", **more_fields)
        )  # fmt: skip
        ram, card = ram + more, max(0, card + on_card)
    return cells


@given(
    st.lists(st.tuples(SIZE, SIZE, SIZE, SIZE, st.booleans()), min_size=1, max_size=8),
    st.sampled_from([0, 120]),
)
@settings(max_examples=30, deadline=None)
def test_the_figures_are_those_of_the_records(sizes, more):
    """Of every cell: what it consumed, needed, its highest, of RAM and of the device; with ≥ if a lower bound."""
    cells = []
    for at, (before, after, above, held, least) in enumerate(sizes):
        top = peak(max(held, before) + above, "sampled" if least else "exact")
        used = gpu(held, before, top, used_bytes=None)
        cells.append(cell(at + 1, at * 9, 9, before, after, max(before, after) + above, gpus=[used]))
    cells += [cell(at, at * 9, 9, 1, 1) for at in range(len(cells) + 1, len(cells) + 1 + more)]
    found = links(page("x", cells))
    assert len(found) == len(cells)
    for (_, _, (label, took, ram, *device), *_), record in zip(found, cells, strict=True):
        assert (label, took) == (record.label, "9.00 s")
        for line, name, usage in zip(
            [ram, *device], ["RAM", "GPU"], [record.gen, *record.gpus], strict=False
        ):
            expected = [usage.consumed_bytes // MB, usage.needed_bytes // MB, usage.peak.lo_bytes // MB]
            assert re.findall(r"-?\d+", line.removeprefix(name)) == list(map(str, expected))
            assert line.count("≥") == 2 * (usage.peak.hi_bytes is None)
            assert ("needed" in line) == line.endswith(" MB") == (more == 0)
        assert bool(device) == bool(record.gpus)


def test_each_link_leads_to_its_own_run():
    """Also of a cell that ran twice, whose id in the notebook is the same; it opens what is folded there."""
    cells = [cell(n, n * 10, 10, 100, 100, cell_id="same", source=f"run {n}") for n in (1, 2, 3)]
    text = page("x", cells)
    for (_, target, (label, *_), *_), record in zip(links(text), cells, strict=True):
        assert label == record.label
        folded = re.findall(
            rf"<details(?:(?!</details>).)*<pre id={target}><code>(.*?)</code>", text, re.DOTALL
        )
        assert folded == [record.source]


def test_links_and_curves_lie_where_the_cells_are():
    """From left to right as long as they took, also those within others; sizes from the bottom, 1.1 of the highest high."""
    outer = cell(1, 0, 30, 0, 1000)
    nested = cell(None, 5, 10, 200, 300, label="inner")
    failed = cell(2, 500, 10, 500, 0, status="interrupted")
    text = page("x", [outer, nested, failed])
    assert [(bad, lines[:2], left, right) for bad, _, lines, left, right in links(text)] == [
        (False, ["In [1]", "30.0 s"], 0, 7500),
        (False, ["inner", "10.0 s"], 1250, 3750),
        (True, ["In [2]", "10.0 s, interrupted"], 7500, 10000),
    ]
    (curve,) = re.findall(r"<path class=own d=(\S+) />", figure(text).partition("legend")[0])
    x, y, points = 0, 0, []
    for command, numbers in re.findall(r"([MVlz])([-\d.,]*)", curve):
        values = [int(number) for number in re.findall(r"-?\d+", numbers)]
        if command in "MV":
            x, y = (*values[:-1], x)[0], values[-1]
            points.append((x, y))
        for dx, dy in zip(values[::2], values[1::2], strict=True) if command == "l" else ():
            x, y = x + dx, y + dy
            points.append((x, y))
    at = [(0, 0), (1250, 200), (3750, 300), (7500, 1000), (7500, 500), (10000, 0)]
    assert points[1:-1] == [(x, round(140 * (1 - mb / 1100))) for x, mb in at]


def test_a_cell_that_took_no_time_can_be_seen():
    """Its mark has a width, without which browsers draw nothing, not even an edge."""
    found = links(page("x", [cell(1, 0, 3600, 1, 1), cell(2, 3600, 0, 1, 1), cell(3, 3600, 1e-6, 1, 1)]))
    assert [right > left for *_, left, right in found] == [True] * 3


def test_plot_and_script_take_forty_kilobytes_at_most():
    """Of 200 cells that move everything; each has its link."""
    text = page("x", many(200))
    assert len(links(text)) == 200
    assert len(figure(text).encode()) + len(script(text).encode()) <= 40_000


@pytest.mark.parametrize("devices", [1, 8])
def test_of_very_many_cells_those_on_the_page_have_links(devices):
    """Those that needed most; the plot stays below 300 KB, whatever the number of devices."""
    text = page("x", many(5000 if devices == 1 else 1000, course=2, devices=devices))
    found = links(text)
    assert len(found) == MOST
    assert {target for _, target, *_ in found} == set(re.findall(r"<pre id=(c\d+)>", text))
    assert len(figure(text)) < 300_000


@pytest.mark.parametrize("cells", [2, 101])
def test_hostile_words_are_text_and_the_policy_names_one_script(cells):
    """Names of cells, errors, devices, processes; the script is our file, and its hash all that may run."""
    device = gpu(0, 500, 900, name=HOSTILE, total_bytes=1000 * MB)
    fields = {"label": HOSTILE, "source": HOSTILE, "status": "error", "error": HOSTILE, "cell_id": HOSTILE}
    records = [cell(n, n * 20, 20, 1, 500, gpus=[device], **fields) for n in range(cells)]
    text = page(HOSTILE, records, said=[HOSTILE])
    read = Reader(text)
    assert read.tags.count("script") == text.count("<script") == text.count("</script") == 1
    assert not [name for name, _ in read.attributes if name.startswith("on") or name in ("src", "xlink:href")]
    hrefs = {value for name, value in read.attributes if name == "href"}
    assert all(re.fullmatch(r"#(c\d+|shade|high|least)", href) for href in hrefs)
    policy = re.search(r'Policy" content="([^"]*)"', text)[1]
    run = base64.b64encode(hashlib.sha256(script(text).encode()).digest()).decode()
    assert policy.split("; ") == [
        "default-src 'none'", f"script-src 'sha256-{run}'", "style-src 'unsafe-inline'", "base-uri 'none'",
        "form-action 'none'",
    ]  # fmt: skip
    assert script(text) == script(page("y", []))
    assert script(text).isascii()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function\(|https?://(?!www\.w3\.org/2000/svg)",
        script(text),
    )
    assert HOSTILE[:20] in unescape(figure(text))


def test_it_is_read_aloud_as_one_sentence():
    """The time, and of each memory the highest and whose it was; the picture itself is one image."""
    device = gpu(0, 500, 3000, name="Sim <1>", total_bytes=16384 * MB)
    text = figure(page("x", [cell(1, 0, 60, 100, 900), cell(2, 60, 30, 900, 200, gpus=[device])]))
    (sentence,) = re.findall(r'role=img aria-label="(.*?)"', text)
    assert unescape(sentence) == (
        "Memory over the time in 2 cells, 90.0 s: RAM of this process, highest 900 MB, raised by In [1]; "
        "GPU: Sim <1>, highest 2.9 GB, raised by In [2]"
    )


def test_what_is_unknown_has_no_figure():
    """Of a device whose use by this process is unknown the link says nothing, not 0."""
    text = page("x", [cell(1, 0, 10, 5, 5, gpus=[gpu(0, 0, 0, attributed=False)])])
    ((_, _, lines, *_),) = links(text)
    assert lines == ["In [1]", "10.0 s", "RAM consumed 0, needed 0, highest 5 MB"]
    assert "<b>GPU: Sim</b><span></span>" in text


def test_a_lower_bound_is_a_triangle_and_a_near_limit_a_line():
    """As in the figure of matplotlib."""
    high = gpu(0, 7000, peak(15000, "sampled"), total_bytes=16384 * MB)
    text = figure(page("x", [cell(1, 0, 10, 100, 100, 800, gpus=[high])]))
    assert re.findall(r"<use href=#(least|high) x=(\S+) y=", text)[:2] == [("high", "50%"), ("least", "50%")]
    assert text.count("<path class=limit d=M0,13h10000 />") == 1  # 140 * (1 - 1 / 1.1)
    assert "<i>total 16 GB</i>" in text


def test_the_highest_is_a_lower_bound_if_any_cell_may_have_been_higher():
    """As on the page above it: a sampled peak below an exact one may have missed more."""
    text = figure(page("x", [cell(1, 0, 9, 100, 100, 900), cell(2, 9, 9, 100, 100, peak(800, "sampled"))]))
    assert "<span>highest at least 900 MB, raised by In [1]</span>" in text


def test_it_needs_no_matplotlib():
    """Nor any other module that the page did not have."""
    program = """
import sys
sys.modules["matplotlib"] = None
from plotted import cell
from ipygpulogger.render.page import page
assert "<svg class=panel" in page("x", [cell(1, 0, 1, 1, 1)])
print("PIL" in sys.modules, "numpy" in sys.modules)
"""
    path = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
    done = subprocess.run([sys.executable, "-c", path + program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False"] * 2, done.stderr


@given(st.floats(1e-9, 1e9), st.sampled_from([SIZES, TIMES]))
def test_ticks_are_round_and_few(most, units):
    """From zero on in equal steps of 1, 2, 2.5 or 5 times a power of ten, two to six of them, none beyond the end."""
    found = ticks(most, units)
    (zero, *labels), places = found.values(), list(found)
    assert (places[0], zero) == (0, "0")
    assert 2 <= len(places) <= 6
    assert places[-1] <= most < places[-1] + 1.000001 * places[1]
    (unit,) = {label.split()[1] for label in labels}
    for count, (place, label) in enumerate(list(found.items())[1:], 1):
        assert (
            float(label.split()[0]) * units[unit] == pytest.approx(place) == pytest.approx(count * places[1])
        )
    digits = f"{places[1] / units[unit]:.6e}".partition("e")[0].rstrip("0").rstrip(".")
    assert digits in ("1", "2", "2.5", "5")


def test_the_same_run_makes_the_same_plot():
    """Equal records, equal markup."""
    cells = many(5)
    assert figure(page("x", cells)) == figure(page("x", [replace(one) for one in cells]))
