"""JupyterLab in a real browser: one line under its cell, which unfolds; alive while the cell runs; there after a reload.

Needs jupyterlab, playwright (its Python side alone) and a Chromium: ``nox -s browser``. What was seen is kept
as pictures in the folder that BROWSER_PICTURES names, or in pytest's own.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lab import PHONE_PX, WAIT_MS, cell_of, notebook, open_notebook, run_cells, serving, wait_for_prompt
from playwright import sync_api
from processes import of

from ipygpulogger import AtPeak
from ipygpulogger.analysis.group import Group, Missing
from ipygpulogger.records.explained import CallStack
from ipygpulogger.render import at_peak

pytestmark = pytest.mark.browser

NOTEBOOKS = Path(__file__).parent.parent.parent / "notebooks"
LONG_S = 6
LINE_PX = 32  # the height of a report of one line, with its padding
CUT = """report => {  // whether some of its text is beyond the right edge, what stands behind the figures apart
    const edge = report.closest(".jp-OutputArea-output").getBoundingClientRect().right;
    const texts = document.createTreeWalker(report, NodeFilter.SHOW_TEXT), range = document.createRange();
    while (texts.nextNode()) {
        if (/^\\s*[▁-█]/.test(texts.currentNode.data)) continue;
        range.selectNodeContents(texts.currentNode);
        if (range.getBoundingClientRect().right > edge + 1) return true;
    }
    return false;
}"""

LIVE = f"""
import time
print("before")
block = bytearray(b"x") * (300 << 20)
del block
kept = bytearray(b"x") * (64 << 20)
time.sleep({LONG_S})
print("after")
"""


def with_processes():
    """A notebook as it comes from elsewhere, not trusted, with a table of few processes and one of many."""
    few = [of(rank, 100 * (rank + 1), on_gpu=900 * (rank + 1)) for rank in range(3)]
    many = [of(rank, 100 + 400 * (rank == 7)) for rank in range(1000)]
    kept = json.loads(notebook("few = 3", "many = 1000"))
    for cell, records in zip(kept["cells"], (few, many), strict=True):
        group = Group("In [1]", records, [Missing("rank 2000", "it died")])
        data = {"text/plain": repr(group), "text/html": group._repr_html_()}
        cell["outputs"] = [{"output_type": "display_data", "metadata": {}, "data": data}]
    return kept


def with_calls():
    """The same with the table of what was alive at the peak, whose rows unfold."""
    step, mb = ("In [7]:3", "train.py:41 step"), 1 << 20
    forward = CallStack(40 * mb, (*step, "model.py:9 forward", "model.py:30 attend"), 3)
    again = CallStack(20 * mb, (*step, "model.py:12 forward", "model.py:30 attend"), 8)
    place, rest = "In [7]:3 → attend, model.py:30", CallStack(4 * mb)
    rows = (
        AtPeak("cuda:0", "activations", "y = q @ k", place, 64 * mb, 8, (forward, again, rest)),
        AtPeak("cuda:0", "parameters", "model", "before the cell", 32 * mb, 52),
        AtPeak("cuda:0", "gradients", "loss.backward()", place, 20 * mb, 8, (again,)),
    )
    kept = json.loads(notebook("calls = 3"))
    data = {"text/plain": at_peak.text(rows, ()), "text/html": at_peak.html(rows, ())}
    kept["cells"][0]["outputs"] = [{"output_type": "display_data", "metadata": {}, "data": data}]
    return kept


@pytest.fixture(scope="module", params=["light", "dark"])
def lab(request, tmp_path_factory):
    """A server with these notebooks; its address."""
    home = tmp_path_factory.mktemp("lab")
    work = home / "work"
    work.mkdir()
    demo = json.loads((NOTEBOOKS / "demo.ipynb").read_text(encoding="utf-8"))
    for cell in demo["cells"]:  # as if it had never run
        if cell["cell_type"] == "code":
            cell["execution_count"], cell["outputs"] = None, []
    (work / "demo.ipynb").write_text(json.dumps(demo))
    shutil.copy(NOTEBOOKS / "demo.ipynb", work / "kept.ipynb")  # as it comes from elsewhere: not trusted
    (work / "processes.ipynb").write_text(json.dumps(with_processes()))
    (work / "calls.ipynb").write_text(json.dumps(with_calls()))
    (work / "live.ipynb").write_text(notebook("%load_ext ipygpulogger", LIVE))
    with serving(home, request.param) as address:
        yield address, request.param


@pytest.fixture
def page(lab, browser):
    page = browser.new_page(viewport={"width": 1200, "height": 1400})
    page.set_default_timeout(WAIT_MS)
    yield page
    page.close()


@pytest.fixture
def pictures(lab, tmp_path):
    folder = Path(os.environ.get("BROWSER_PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return lambda name: str(folder / f"{name}-{lab[1]}.png")


def report_of(page, source):
    """The text of the report under a cell, unfolded if it unfolds, line by line."""
    report = cell_of(page, source).locator(".jp-OutputArea-output").last
    sync_api.expect(report).to_be_visible(timeout=WAIT_MS)
    report.evaluate("report => report.querySelectorAll('details').forEach(one => { one.open = true })")
    return report.inner_text().replace("\N{NO-BREAK SPACE}", " ")


def test_the_demo(page, lab, pictures):
    """Every cell's report stands under that cell, also after the notebook was saved and the page loaded anew."""
    open_notebook(page, lab[0], "demo.ipynb")
    run_cells(page)
    wait_for_prompt(page, "%gpulog status")

    def look():
        kept, blip = report_of(page, "kept = bytearray"), report_of(page, 'len(b"x" * (256')
        assert "RAM +128 MB → " in kept
        assert re.search(r"RAM needed 25[567] MB → ", blip)
        assert "failed: ValueError" in report_of(page, "this one is meant to fail")

    look()
    cell_of(page, "kept = bytearray").scroll_into_view_if_needed()
    page.screenshot(path=pictures("demo"))
    page.keyboard.press("Control+s")
    page.wait_for_timeout(1000)
    page.goto(f"{lab[0]}/lab/tree/demo.ipynb?reset")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    look()


def test_many_processes(page, lab, pictures):
    """The sanitizer leaves the tables whole: rows, bars, names; on a phone they scroll by themselves."""
    page.goto(f"{lab[0]}/lab/tree/processes.ipynb?reset")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    report_of(page, "few = 3")
    many = report_of(page, "many = 1000")
    row = cell_of(page, "few = 3").locator("details tr", has_text=re.compile(r"^rank\s2")).first
    assert row.locator("td").all_inner_texts()[1:4] == ["0", "300", "500"]
    assert row.locator("td").all_inner_texts()[5:8] == ["0", "2,700", "900"]
    assert "RAM: rank 7 needed 500 MB, 5.0 times the median" in many
    heights = [line.bounding_box()["height"] for line in page.locator("details tr").all()]
    assert max(heights) <= 20, heights  # one line each
    bars = cell_of(page, "few = 3").locator("td > div")
    assert bars.count() == 6
    assert {round(bar.bounding_box()["width"]) for bar in bars.all()} == {72}
    assert bars.last.locator("b").last.bounding_box()["width"] > 60
    page.screenshot(path=pictures("processes"))
    page.keyboard.press("Control+b")  # no side bar
    page.set_viewport_size({"width": PHONE_PX, "height": 1400})
    scrolls = "table => table.parentElement.scrollWidth > table.parentElement.clientWidth"
    assert cell_of(page, "few = 3").locator("table").first.evaluate(scrolls)
    page.screenshot(path=pictures("processes-phone"))


def test_the_calls_behind_a_row(page, lab, pictures):
    """The sanitizer leaves them: opened by the keyboard, a nested list, drawn as boxes as wide as their shares."""
    page.goto(f"{lab[0]}/lab/tree/calls.ipynb?reset")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    page.keyboard.press("Control+b")  # no side bar
    name = page.locator("summary", has_text="y = q @ k")
    lines = page.locator("details").first.get_by_role("listitem")
    assert lines.count() == 0
    name.focus()
    page.keyboard.press("Enter")
    page.screenshot(path=pictures("calls"))
    expected = ["In [7]:3", "40 MB model.py:9 forward", "+ 3 library frames"]
    for line in expected:
        sync_api.expect(lines.filter(has_text=line).first).to_be_visible()
    assert page.get_by_title("4 MB others", exact=True).count() == 1
    boxes = [one.bounding_box() for one in page.locator("details").first.locator("ul").all()]
    first, inner, *_, rest = boxes
    whole_px = first["width"] + rest["width"]
    shares = first["width"] / whole_px, inner["width"] / first["width"], rest["width"] / whole_px
    assert shares == pytest.approx((60 / 64, 40 / 60, 4 / 64), abs=0.01)
    kind = page.locator("th", has_text="activations").bounding_box()
    assert abs(kind["y"] - name.bounding_box()["y"]) < 8  # the row stays at its first line
    page.set_viewport_size({"width": PHONE_PX, "height": 1400})
    scrolls = "table => table.parentElement.scrollWidth > table.parentElement.clientWidth"
    assert page.locator("table").first.evaluate(scrolls)
    page.screenshot(path=pictures("calls-phone"))


def heights_of(page, source):
    """What stands below a cell, from top to bottom: the height of each output, and its text."""
    outputs = cell_of(page, source).locator(".jp-OutputArea-child")
    return outputs.evaluate_all("found => found.map(one => [one.offsetHeight, one.textContent.trim()])")


def test_a_live_cell(page, lab, pictures):
    """A long cell shows how it stands while it runs; that has no height in the end, and the report comes last."""
    open_notebook(page, lab[0], "live.ipynb")
    run_cells(page)
    outputs = cell_of(page, "time.sleep").locator(".jp-OutputArea-child")
    sync_api.expect(outputs).to_have_count(2, timeout=WAIT_MS)
    sync_api.expect(cell_of(page, "time.sleep").locator(".jp-InputPrompt")).to_have_text("[*]:")
    (line, before), (_, live) = heights_of(page, "time.sleep")
    page.screenshot(path=pictures("live"))
    wait_for_prompt(page, "time.sleep")
    assert before == "before"
    assert re.match(r"● [2-5]\s+s", live), live

    def look():
        sync_api.expect(outputs).to_have_count(4, timeout=WAIT_MS)
        *printed, (_, report) = heights_of(page, "time.sleep")
        assert printed == [[line, "before"], [0, ""], [line, "after"]]
        assert re.search(r"RAM \+64\s+MB", report), report

    look()
    page.screenshot(path=pictures("settled"))
    page.keyboard.press("Control+s")
    page.wait_for_timeout(1000)
    page.goto(f"{lab[0]}/lab/tree/live.ipynb?reset")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    look()


def test_one_line(page, lab, pictures):
    """In a notebook that nobody trusts: a folded report is one line, a quiet cell's has no triangle; none is cut on a phone."""
    open_notebook(page, lab[0], "kept.ipynb")
    page.keyboard.press("Control+b")  # no side bar
    line = page.locator("details:not([open]) summary", has_text=re.compile(r"^\d+\.\d+\s+s\s+· "))
    folded = page.locator(".jp-OutputArea-child", has=line)
    heights = {report.inner_text(): report.bounding_box()["height"] for report in folded.all()}
    assert len(heights) >= 5
    assert {text: px for text, px in heights.items() if px > LINE_PX} == {}
    quiet = cell_of(page, "x = 1").locator(".jp-OutputArea-child")
    sync_api.expect(quiet).to_have_text(re.compile(r"^\s*0\.\d\d\s+s\s+· RAM \d+\s+MB\s*$"))
    assert quiet.locator("details").count() == 0
    numbers = "td => getComputedStyle(td).textAlign"
    page.evaluate("document.querySelectorAll('.jp-OutputArea details').forEach(d => { d.open = true })")
    row = page.locator("details tr", has_text="RAM").first.locator("td")
    assert [cell.evaluate(numbers) for cell in row.all()[:3]] == ["right"] * 3
    page.screenshot(path=pictures("untrusted"))
    page.set_viewport_size({"width": PHONE_PX, "height": 1400})
    summaries = page.locator(".jp-OutputArea-output details")
    page.wait_for_timeout(500)  # it is laid out anew
    page.screenshot(path=pictures("phone"))
    assert [report.inner_text() for report in summaries.all() if report.evaluate(CUT)] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_static_page(browser, tmp_path, theme):
    """The demo exported to HTML by nbconvert shows the same reports, without a server or a kernel."""
    words = ["-m", "nbconvert", "--execute", "--to", "html", f"--theme={theme}", f"--output-dir={tmp_path}"]
    env = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython")}
    subprocess.run([sys.executable, *words, str(NOTEBOOKS / "demo.ipynb")], check=True, env=env, timeout=300)
    page = browser.new_page(viewport={"width": 1000, "height": 1400})
    page.goto((tmp_path / "demo.html").as_uri())
    cell = page.locator(".jp-CodeCell", has_text="kept = bytearray").first
    assert "RAM +128 MB → " in cell.inner_text().replace("\N{NO-BREAK SPACE}", " ")
    folder = Path(os.environ.get("BROWSER_PICTURES", tmp_path))
    page.screenshot(path=str(folder / f"static-{theme}.png"))
    page.close()
