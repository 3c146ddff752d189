"""The HTML page in a real browser: it fits a phone, follows the system, and breaks no rule of its own."""

import os
from pathlib import Path

import pytest
from memory import MB
from plotted import cell, gpu

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
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"


@pytest.mark.parametrize("width", [360, 1000])
def test_the_letters_of_the_plot_can_be_read(open_page, width):
    """On a phone the plot scrolls: its letters are as large as those of the text around it, nearly."""
    plot = open_page(width).locator("img.plot")
    assert plot.is_visible()
    assert plot.bounding_box()["width"] > 0.75 * 800  # of the width for which its letters are 8 points


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_colours_of_the_system(open_page, scheme):
    """Background and text; the plot is transparent."""
    page = open_page(1000, scheme)
    keep(page, f"page-{scheme}")
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert ink == {"light": "rgb(0, 0, 0)", "dark": "rgb(255, 255, 255)"}[scheme]


def test_a_cell_unfolds_to_its_source(open_page):
    """A click on its line."""
    page = open_page(1000)
    source = page.locator(".cell pre").first
    assert not source.is_visible()
    page.locator(".cell > summary").first.click()
    assert source.is_visible()
