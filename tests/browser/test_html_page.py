"""The HTML page in a real browser: it fits a phone, follows the system, and breaks no rule of its own."""

import itertools
import os
import re
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest
from memory import MB
from plotted import cell, gpu, peak
from processes import of

from ipygpulogger.analysis.ranking import MOST
from ipygpulogger.records import Owner
from ipygpulogger.render import summary
from ipygpulogger.render.page import page as page_of

pytestmark = pytest.mark.browser

LONG = "x" * 400


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A page with everything that is long: names, sources, notes, sentences, several devices."""
    sizes = {"total_bytes": 16384 * MB, "allocated_bytes": 2500 * MB, "reserved_bytes": 2700 * MB}
    cells = [
        cell(
            count, count * 70.0, 62, 500, 500 + 90 * (count % 2), 900,
            course=[(k, 500 + (k * 37) % 101) for k in range(62)],
            gpus=[gpu(2000, 3000, 9000, index=n, free_bytes=9000 * MB, **sizes) for n in range(3)],
            owners=(Owner(LONG, 90 * MB, "cpu", "variable"),),
            notes=(LONG,),
            status="error" if count == 3 else "ok",
            error=LONG if count == 3 else None,
        )
        for count in range(1, 6)
    ]  # fmt: skip
    source = f"value = '{LONG}'\nfor batch in loader:\n    step(batch)"
    ranked = summary.html(cells)
    path = tmp_path_factory.mktemp("page") / "page.html"
    text = page_of(LONG, cells, source=lambda _: source, ranked=ranked, said=[LONG])
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def open_page(browser, written):
    """Opens it at a width; what the browser complains about fails the test."""
    said, contexts = [], []

    def shown(width, scheme="light"):
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.goto(written.as_uri())
        return page

    yield shown
    for context in contexts:
        context.close()
    assert said == []


def keep(page, name):
    if folder := os.environ.get("BROWSER_PICTURES"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@pytest.mark.parametrize("width", [320, 420, 1000])
def test_the_page_of_very_many_cells_never_runs_past_the_edge(browser, tmp_path, width):
    """Neither do the tables of all cells, however long a first line is."""
    cells = []
    for count in range(MOST + 1):
        gpus = [gpu(2000, 3000, 9000, index=n, name=LONG, total_bytes=16384 * MB) for n in range(3)]
        cells.append(cell(count, count * 70.0, 62, 500, 500 + count % 90, 900, gpus=gpus, source=LONG))
    path = tmp_path / "page.html"
    path.write_text(page_of(LONG, cells), encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(path.as_uri())
    keep(page, f"page-many-{width}")
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    page.close()


@pytest.mark.parametrize("width", [320, 360, 420, 700, 1000])
@pytest.mark.parametrize("folded", [True, False])
def test_it_never_runs_past_the_edge(open_page, width, folded):
    """Long lines scroll inside their own box, whatever is folded."""
    page = open_page(width)
    if not folded:
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    keep(page, f"page-{width}-{'folded' if folded else 'open'}")
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    past = """[...document.querySelectorAll('body *')].filter(one => {
        for (let at = one.parentElement; at; at = at.parentElement)
            if (getComputedStyle(at).overflowX !== 'visible') return false;
        return one.getBoundingClientRect().right > innerWidth + 1;
    }).map(one => one.outerHTML.slice(0, 90))"""
    assert page.evaluate(past) == []


def test_it_is_whole_on_paper(open_page):
    """Nothing scrolls there: on A4 each table is as wide as the page at most, and light even in the dark."""
    page = open_page(690, "dark")
    page.emulate_media(media="print")
    keep(page, "page-print")
    cut = (
        "[...document.querySelectorAll('.ranked, .ranked div')].map(one => one.scrollWidth - one.clientWidth)"
    )
    assert set(page.evaluate(cut)) == {0}
    wide = "['figure', '.plot', '.about'].map(one => document.querySelector(one).scrollWidth)"
    assert max(page.evaluate(wide)) <= 690
    assert not page.locator(".keys").is_visible()
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"


@pytest.mark.parametrize("width", [360, 1000])
def test_the_letters_of_the_plot_can_be_read(open_page, width):
    """They are as large on a phone, where the plot is as wide as there is room; it never scrolls."""
    page = open_page(width)
    letters = """[...document.querySelectorAll('figure p, figure p *, figure text')].map(one =>
        parseFloat(getComputedStyle(one).fontSize) * (one.getCTM ? one.getCTM().d : 1))"""
    assert min(page.evaluate(letters)) >= 9
    assert page.evaluate("document.querySelector('figure').scrollWidth") <= width
    assert page.locator(".cells").bounding_box()["width"] > width - 100 - 0.2 * (width == 1000) * width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_colours_of_the_system(open_page, scheme):
    """Background and text, that of the plot as well."""
    page = open_page(1000, scheme)
    keep(page, f"page-{scheme}")
    inks = "['body', '.panel text', '.about'].map(one => getComputedStyle(document.querySelector(one)))"
    ink = {"light": "rgb(0, 0, 0)", "dark": "rgb(255, 255, 255)"}[scheme]
    assert page.evaluate(f"{inks}.map(one => one.color)") == [ink] * 3
    assert page.evaluate(f"{inks}[1].fill") == ink


def test_a_cell_unfolds_to_its_source(open_page):
    """A click on its line."""
    page = open_page(1000)
    source = page.locator(".cell pre").first
    assert not source.is_visible()
    page.locator(".cell > summary").first.click()
    assert source.is_visible()


# -- the plot ------------------------------------------------------------------------------------

FIGURES = """[...document.querySelectorAll('.plot p span')].map(one => one.textContent)"""
RANGE = "document.querySelector('.cells').getAttribute('viewBox').split(' ').map(Number)"
TEXTS = "(name) => [...document.querySelectorAll(`${name} text`)].map(one => one.textContent)"
BOXES = """(name) => [...document.querySelectorAll(`${name} text`)].map(one => one.getBoundingClientRect())
    .map(one => [one.left, one.right]).sort((one, other) => one[0] - other[0])"""


def run_of(count, **more):
    """Cells of 10 s, of which the third failed, and the fourth is the second once more."""
    cells = []
    for number in range(1, count + 1):
        least = peak(2000 + number, "sampled") if number == 2 else 2000 + number
        device = gpu(900, 1000, least, total_bytes=16384 * MB, name="NVIDIA H100 80GB HBM3")
        values = {"status": "error", "error": "ValueError"} if number == 3 else {}
        values["cell_id"] = "same" if number in (2, 4) else f"{number:08x}"
        values |= {"source": f"step({number})", "gpus": [] if number == 1 else [device]} | more
        cells.append(cell(number, number * 20, 10, 500, 510 - 20 * (number == 5), 600 + number, **values))
    return cells


@pytest.fixture
def open_plot(browser, tmp_path):
    """Opens the page of some cells; no script may fail, and the policy may refuse nothing."""
    said, contexts = [], []

    def opened(cells, *, title="train.ipynb", width=1000, **look):
        path = tmp_path / "page.html"
        path.write_text(page_of(title, cells, ranked=summary.html(cells)), encoding="utf-8")
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}, **look))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []


def point(page, part, below=60):
    """A place in the plot: so far to the right, and in its first panel."""
    page.locator(".plot").scroll_into_view_if_needed()
    box = page.locator(".cells").bounding_box()
    return box["x"] + box["width"] * part, box["y"] + below


def shown(page):
    """What stands above the plot, and beside the title of each panel."""
    return page.locator(".about").text_content(), page.evaluate(FIGURES)


def is_open(page, source):
    """Whether the cell is unfolded, and its line on the screen."""
    folded = page.locator(".cell", has=page.get_by_text(source, exact=True)).first
    box = folded.locator("summary").bounding_box()
    return folded.get_attribute("open") is not None and 0 <= box["y"] < 800


def test_the_pointer_shows_the_figures_of_its_cell(open_plot):
    """Those of the record; where it leaves, the highest are there again; nothing moves meanwhile."""
    page = open_plot(run_of(5))
    before, height = shown(page), page.evaluate("document.body.scrollHeight")
    assert before[0].startswith("time in the cells, from 2024-05-06")
    assert before[1] == ["highest 605 MB, raised by In [5]", "highest at least 2.0 GB, raised by In [5]"]
    for part, about, figures in (
        (0.1, "In [1] · 10.0 s · step(1)", ["consumed 10 MB, needed 101 MB, highest 601 MB", "not used, or unknown"]),
        (0.3, "In [2] · 10.0 s · step(2)", ["consumed 10 MB, needed 102 MB, highest 602 MB",
                                            "consumed 100 MB, needed ≥1,102 MB, highest ≥2,002 MB"]),
        (0.5, "In [3] · 10.0 s, failed: ValueError · step(3)", None),
        (0.9, "In [5] · 10.0 s · step(5)", ["consumed \N{MINUS SIGN}10 MB, needed 105 MB, highest 605 MB",
                                            "consumed 100 MB, needed 1,105 MB, highest 2,005 MB"]),
    ):  # fmt: skip
        page.mouse.move(*point(page, part))
        assert shown(page)[0] == about
        assert figures is None or shown(page)[1] == figures
        assert page.locator(".cells .now").count() == 1
        assert page.evaluate("document.body.scrollHeight") == height
    page.mouse.move(5, 5)
    assert shown(page) == before
    assert page.locator(".cells title").count() == 0  # of the browser's own no second one


def test_keys_move_from_cell_to_cell_and_open_one(open_plot):
    """With a visible focus; what is read aloud is what is shown; a key at the end stays there."""
    page = open_plot(run_of(5))
    plot = page.locator(".plot")
    assert plot.get_attribute("aria-label").startswith("Memory over the time in 5 cells, 50.0 s: RAM of")
    page.keyboard.press("Tab")
    assert (
        plot.evaluate("one => one === document.activeElement && getComputedStyle(one).outlineStyle")
        == "solid"
    )
    for key, number in (
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("End", 5),
        ("ArrowRight", 5),
        ("ArrowLeft", 4),
    ):
        page.keyboard.press(key)
        assert shown(page)[0].startswith(f"In [{number}] ")
        assert plot.get_attribute("aria-valuenow") == str(number)
    assert plot.get_attribute("aria-valuetext") == (
        "In [4] · 10.0 s · step(4); RAM consumed 10 MB, needed 104 MB, highest 604 MB; "
        "GPU consumed 100 MB, needed 1,104 MB, highest 2,004 MB"
    )
    keep(page, "plot-keys")
    page.keyboard.press("Enter")
    page.wait_for_timeout(1000)
    assert is_open(page, "step(4)")
    assert page.evaluate("document.activeElement.textContent").startswith("4step(4)")
    page.keyboard.press("Shift+Tab")  # what follows the plot is not 5 links further
    page.go_back()
    page.wait_for_timeout(700)
    assert plot.bounding_box()["y"] > 0


def test_a_click_opens_the_run_of_the_cell(open_plot):
    """That run of it, of a cell that ran twice; its details are unfolded, and on the screen."""
    page = open_plot(run_of(5))
    for part, number in ((0.7, 4), (0.1, 1), (0.12, 1)):
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = false)")
        page.mouse.click(*point(page, part))
        page.wait_for_timeout(1000)
        assert is_open(page, f"step({number})")
        assert page.locator(".cell[open]").count() == 1
        assert page.url.endswith(f"#c{number - 1}")


@pytest.mark.parametrize("reset", ["key", "double click"])
def test_a_dragged_range_is_zoomed_to_and_back(open_plot, reset):
    """Times, numbers, curves and marks follow; a drag opens no cell; afterwards all is as it was."""
    page = open_plot(run_of(60))
    plot = "document.querySelector('.plot').innerHTML.replace(/ class=.now.| class=..|<rect[^>]*><.rect>(?=<.svg>)/g, '')"
    before, numbers = page.evaluate(plot), page.evaluate(TEXTS, ".numbers")
    page.mouse.move(*point(page, 0.25))
    page.mouse.down()
    page.mouse.move(*point(page, 0.4), steps=3)
    page.mouse.move(*point(page, 0.5), steps=3)
    keep(page, "plot-drag")
    page.mouse.up()
    left, _, width, height = page.evaluate(RANGE)
    assert (left, width, height) == (pytest.approx(2500, abs=20), pytest.approx(2500, abs=20), 140)
    keep(page, "plot-zoomed")
    assert page.evaluate(TEXTS, ".times") == ["2.5 min", "3 min", "3.5 min", "4 min", "4.5 min", "5 min"]
    zoomed = page.evaluate(TEXTS, ".numbers")
    assert zoomed != numbers
    assert {int(text) for text in zoomed} <= set(range(15, 32))
    page.mouse.move(*point(page, 0.5))
    assert shown(page)[0].startswith("In [23] ")
    assert page.locator(".cell[open]").count() == 0
    if reset == "key":
        page.keyboard.press("Escape")
    else:
        page.mouse.dblclick(*point(page, 0.5))
    page.wait_for_timeout(600)
    assert page.evaluate(RANGE) == [0, 0, 10000, 140]
    assert page.locator(".cell[open]").count() == 0
    page.mouse.move(5, 5)
    page.locator(".plot").blur()
    assert page.evaluate(plot) == before


def test_a_key_leads_out_of_the_range(open_plot):
    """The cell that it moves to is in sight."""
    page = open_plot(run_of(60))
    page.mouse.move(*point(page, 0.5))
    page.mouse.down()
    page.mouse.move(*point(page, 0.6), steps=3)
    page.mouse.up()
    page.locator(".plot").focus()
    page.keyboard.press("Home")
    left, _, width, _ = page.evaluate(RANGE)
    assert (left, width) == (0, pytest.approx(1000, abs=20))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_bands_are_tinted(open_plot, browser, scheme):
    """Every second one slightly, one that failed red; the page's own colour is between them."""
    page = open_plot(run_of(5), color_scheme=scheme)
    reader = browser.new_page()
    colours = []
    for part in (0.1, 0.3, 0.5):
        x, y = point(page, part, 41)
        picture = b64encode(page.screenshot(clip={"x": x, "y": y, "width": 1, "height": 1})).decode()
        colours.append(reader.evaluate("""async (picture) => {
            const image = await createImageBitmap(await (await fetch(`data:image/png;base64,${picture}`)).blob());
            const place = new OffscreenCanvas(1, 1).getContext('2d');
            place.drawImage(image, 0, 0);
            return [...place.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }""", picture))  # fmt: skip
    reader.close()
    plain, second, failed = colours
    assert plain in ([255, 255, 255], [18, 18, 18])
    assert 3 <= abs(second[0] - plain[0]) <= 20 and len(set(second)) == 1
    assert 10 <= failed[0] - failed[1] <= 60


def test_keys_zoom(open_plot):
    """Around the cell, in and out again, never further than all."""
    page = open_plot(run_of(60))
    page.locator(".plot").focus()
    page.keyboard.press("End")
    for key, seen in (
        ("+", [5000, 0, 5000]),
        ("+", [7500, 0, 2500]),
        ("-", [5000, 0, 5000]),
        ("-", [0, 0, 10000]),
    ):
        page.keyboard.press(key)
        assert page.evaluate(RANGE)[:3] == seen
    page.keyboard.press("-")
    assert page.evaluate(RANGE) == [0, 0, 10000, 140]


def test_the_cell_is_named_in_sight_of_its_figures(open_plot):
    """Of very many devices as well: its name stays at the top of the window."""
    device = [gpu(900, 1000, 2000, index=index) for index in range(8)]
    page = open_plot(run_of(5, gpus=device))
    place = page.locator(".panel").last.bounding_box()
    page.evaluate("top => scrollTo({top, behavior: 'instant'})", place["y"] - 400)
    box = page.locator(".panel").last.bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 50)
    assert shown(page)[0].startswith("In [")
    assert 0 <= page.locator(".about").bounding_box()["y"] < 5
    keep(page, "plot-devices")


def test_a_plot_whose_cells_are_not_on_the_page(open_plot):
    """It stays a picture: others needed more."""
    cells = [cell(1, 0, 10, 1, 1), *(of(rank, 100 + rank) for rank in range(MOST))]
    page = open_plot(cells)
    assert page.locator(".cells a").count() == 0
    assert page.locator(".panel").count() == 1
    assert page.locator(".plot").get_attribute("role") is None


def test_fingers(open_plot):
    """The first tap shows the figures, the second opens the cell; a finger along the time zooms, one down scrolls."""
    page = open_plot(run_of(5), width=360, has_touch=True, is_mobile=True)
    page.touchscreen.tap(*point(page, 0.7))
    assert shown(page)[0].startswith("In [4] ")
    page.wait_for_timeout(400)
    assert page.locator(".cell[open]").count() == 0
    keep(page, "plot-touch")
    touch = page.context.new_cdp_session(page)

    def swipe(*places):
        for kind, place in zip(("touchStart", *["touchMove"] * (len(places) - 1)), places, strict=True):
            points = [{"x": place[0], "y": place[1]}]
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        page.wait_for_timeout(300)

    swipe(*(point(page, 0.5, 90 - 30 * step) for step in range(4)))
    assert page.evaluate(RANGE)[2] == 10000
    swipe(*(point(page, part) for part in (0.2, 0.3, 0.4, 0.6)))
    assert page.evaluate(RANGE)[2] == pytest.approx(4000, abs=150)
    assert page.locator(".cell[open]").count() == 0
    page.keyboard.press("Escape")
    page.touchscreen.tap(*point(page, 0.7))
    page.wait_for_timeout(500)
    page.touchscreen.tap(*point(page, 0.7))
    page.wait_for_timeout(1200)
    assert page.locator(".cell[open]").count() == 1
    assert is_open(page, "step(4)")


@pytest.mark.parametrize("width", [360, 1000])
def test_without_a_script_it_is_a_picture_with_links(open_plot, width):
    """With the figures in their tooltips; a link unfolds its cell; no number covers another."""
    page = open_plot(run_of(24), width=width, java_script_enabled=False)
    keep(page, f"plot-static-{width}")
    links = page.locator(".cells a")
    assert links.count() == 24
    assert links.nth(1).locator("title").text_content() == (
        "In [2]\n10.0 s\nRAM consumed 10, needed 102, highest 602 MB"
        "\nGPU consumed 100, needed ≥1102, highest ≥2002 MB"
    )
    assert page.locator(".plot [role=img]").get_attribute("aria-label").startswith("Memory over")
    for name in (".numbers", ".times"):
        boxes = page.evaluate(BOXES, name)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(boxes))
    links.nth(3).click()
    page.wait_for_timeout(1000)
    assert page.get_by_text("step(4)", exact=True).last.is_visible()


def test_numbers_and_times_never_cover_each_other(open_plot):
    """On a phone and after turning it, of labels of any length."""
    page = open_plot(
        [replace(one, label="a long label") if at % 9 == 0 else one for at, one in enumerate(run_of(40))],
        width=360,
    )
    for width in (360, 800, 1000):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_timeout(200)
        for name in (".numbers", ".times"):
            boxes = page.evaluate(BOXES, name)
            assert len(boxes) > 3
            assert all(one[1] <= other[0] for one, other in itertools.pairwise(boxes))
            assert boxes[0][0] >= 0 and boxes[-1][1] <= width


def test_no_text_of_a_cell_runs(open_plot):
    """Whatever is hostile is text; a script that is none of ours is refused."""
    hostile = (
        "</title></script><script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg onload=alert(3)>"
    )
    more = {"label": hostile, "source": hostile, "error": hostile, "status": "error"}
    page = open_plot(run_of(3, **more), title=hostile)
    page.mouse.move(*point(page, 0.5))
    assert shown(page)[0].startswith("</title></script><script>")
    page.mouse.click(*point(page, 0.5))
    page.wait_for_timeout(500)
    assert page.locator("script").count() == 1
    assert page.locator("img").count() == 0


def test_a_script_of_another_is_refused(browser, tmp_path):
    """By the policy of the page, if one ever got into its text."""
    path = tmp_path / "page.html"
    text = page_of("x", run_of(3)).replace("</figure>", "<script>document.title = 'run'</script></figure>")
    path.write_text(text, encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    assert page.title() == "x"
    assert page.locator(".plot").get_attribute("role") == "slider"  # ours ran
    page.close()


@pytest.mark.parametrize(("motion", "scrolls"), [("reduce", "auto"), ("no-preference", "smooth")])
def test_it_moves_only_for_those_who_like_it(open_plot, motion, scrolls):
    """A click leads to its cell at once, where the system asks for less motion."""
    page = open_plot(run_of(3), reduced_motion=motion)
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == scrolls


def test_five_thousand_cells(open_plot):
    """Those on the page can be reached, by pointer after zooming, and by key."""
    page = open_plot(run_of(5000))
    assert page.locator(".cells a").count() == MOST
    page.locator(".plot").focus()
    page.keyboard.press("End")
    assert shown(page)[0].startswith("In [5000] ")
    page.keyboard.press("Home")
    page.mouse.move(*point(page, 0.99))
    page.mouse.down()
    page.mouse.move(*point(page, 0.997), steps=3)
    page.mouse.up()
    page.mouse.move(*point(page, 0.5))
    assert re.match(r"In \[49\d\d\] ", shown(page)[0])
    page.keyboard.press("Enter")
    page.wait_for_timeout(1500)
    assert page.locator(".cell[open]").count() == 1
