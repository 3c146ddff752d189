"""``%gpulog panel`` in the real JupyterLab: what it shows, clicks and keys, and what a notebook keeps of it.

What was seen is kept as pictures in the folder that BROWSER_PICTURES names, or in pytest's own.
"""

import json
import os
import re
from contextlib import suppress
from pathlib import Path

import pytest
from lab import PHONE_PX, WAIT_MS, cell_of, notebook, open_notebook, run_cells, serving, wait_for_prompt
from playwright.sync_api import expect

pytestmark = pytest.mark.browser
expect.set_options(timeout=WAIT_MS)

LOAD, PANEL = "%load_ext ipygpulogger", "%gpulog panel"
STORED_BYTES = 5000
REAL = [
    LOAD,
    PANEL,
    "kept = bytearray(b'x') * (120 << 20)",
    "blip = bytearray(b'x') * (300 << 20); del blip",
    *(f"text_{number} = {number}" for number in range(30)),
]
FEW = [*REAL[:4], "last = 1"]
# A session of a hundred cells on two devices; the 33rd, and if so wished the last, ran out of memory.
HUNDRED = """
import random
from datetime import datetime, timedelta, timezone
from ipygpulogger.records import CellRecord, DeviceUsage, Peak, RamUsage
from ipygpulogger.records.explained import OutOfMemory
MB, GB, TOTAL = 2**20, 2**30, 16 << 30
random.seed(1)
now, held = datetime.now(timezone.utc) - timedelta(hours=1), [400, 500, 300]
def use(which, step):
    before = min(held[which], 9000)
    held[which] = max(100, before + random.choice([0, 0, 0, step, -step // 2]))
    top = max(before, held[which]) + random.choice([0, 0, step, 3 * step])
    return before * MB, held[which] * MB, Peak(top * MB, top * MB, "exact")
def device(index):
    before, after, peak = use(index + 1, 400)
    used = after + 700 * MB
    return DeviceUsage(before, after, peak, index, "NVIDIA A100", total_bytes=TOTAL, used_bytes=used, free_bytes=TOTAL - used)
for count in range(1, 101):
    failed = count == 33 or count == 100 and FAILS
    advice = "Release `old_model` (4.1 GB), which no later cell uses: `del old_model`"
    oom = OutOfMemory("cuda:0", 8 * GB, 5 * GB, 9 * GB, GB, 0, 0, 0, 0, (), advice) if failed else None
    took = 200 if count == 60 else random.choice([.01, .05, .3, 2, 14, 60])
    il.history.append(CellRecord(label=f"In [{count}]", started_at=now, time_s=took, gen=RamUsage(*use(0, 60)),
        gpus=(device(0), device(1)), execution_count=count, cell_id=None, source=f"train(<b>{count}</b>)",
        status="error" if failed else "ok", error="OutOfMemoryError" if failed else None, out_of_memory=oom))
    now += timedelta(seconds=took)
"""
SHOWN = (
    """FAILS = True
il.history._records.clear()
"""
    + HUNDRED
    + "from ipygpulogger.notebook.panel import panel_of\npanel_of(il).show()\nil.stop()"
)


@pytest.fixture(scope="module", params=["light", "dark"])
def lab(request, tmp_path_factory):
    """A server; its address, its folder and the theme."""
    home = tmp_path_factory.mktemp("lab")
    work = home / "work"
    work.mkdir()
    with serving(home, request.param) as address:
        yield address, work, request.param


@pytest.fixture
def page(lab, browser):
    page = browser.new_page(viewport={"width": 1100, "height": 900})
    page.set_default_timeout(WAIT_MS)
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console",
        lambda said: errors.append(said.text) if said.type == "error" and "gpulog" in said.text else None,
    )
    yield page
    page.close()
    # JupyterLab's as a page goes, and Notebook 7's as one comes.
    theirs = "Canceled", "reading 'schema'", "'filebrowser:open-path' not registered"
    assert [error for error in errors if not any(one in error for one in theirs)] == []


@pytest.fixture
def shot(lab, page, tmp_path):
    folder = Path(os.environ.get("BROWSER_PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return lambda name: page.screenshot(path=str(folder / f"panel-{name}-{lab[2]}.png"))


def begun(page, lab, name, cells):
    """A new notebook, whose cells run; its panel."""
    (lab[1] / f"{name}.ipynb").write_text(notebook(*cells))
    open_notebook(page, lab[0], f"{name}.ipynb")
    page.keyboard.press("Control+b")  # no side bar
    run_cells(page)
    return page.locator(".jp-Notebook .gl").first


def ran(page, lab, name, cells):
    """The same, when the last cell has ended."""
    panel = begun(page, lab, name, cells)
    wait_for_prompt(page, cells[-1])
    expect(panel.locator(".gl-bars")).to_contain_text("left")
    return panel


def bands(panel):
    return panel.locator("button.gl-band")


def saved(page, lab, name):
    """The notebook as it is saved now."""
    path = lab[1] / f"{name}.ipynb"
    before = path.stat().st_mtime_ns
    page.wait_for_timeout(3500)  # the picture follows two seconds after the last cell
    page.keyboard.press("Control+s")
    for _ in range(WAIT_MS // 100):
        page.wait_for_timeout(100)
        with suppress(ValueError):  # it is being written
            if path.stat().st_mtime_ns != before:
                return json.loads(path.read_text())
    raise AssertionError("the notebook was not saved")


def test_a_session(page, lab, shot):
    """Bars, a band for each cell, those that needed most; a click shows the report and scrolls to the cell."""
    panel = ran(page, lab, "a_session", REAL)
    expect(bands(panel)).to_have_count(len(REAL))
    expect(panel.locator(".gl-most")).to_contain_text(re.compile(r"\[4\] (299|300|301) MB"))
    expect(panel.locator(".gl-bars")).to_contain_text(
        re.compile(r"RAM\s*\d+ MB of [\d.]+ GB [\d.]+ [GM]B left highest \d+ MB")
    )
    expect(panel.locator("[aria-live=polite]")).to_contain_text(f"In [{len(REAL)}]")
    shot("session")
    far = bands(panel).nth(len(REAL) - 5)
    far.click()
    expect(panel.locator(".gl-report")).to_contain_text("text_25 = 25")
    expect(cell_of(page, "text_25")).to_be_in_viewport()
    strip = page.locator(".gl-strip")
    page.wait_for_timeout(300)
    cell_of(page, "text_29").scroll_into_view_if_needed()
    expect(strip).to_be_visible()
    expect(strip).to_contain_text(re.compile(r"RAM\s*\d+ MB of"))
    shot("strip")
    strip.get_by_label("Show the memory panel").click()
    expect(panel).to_be_in_viewport()
    expect(strip).to_be_hidden()


def test_in_notebook_7(page, lab, shot):
    """Notebook 7 shows the same: bars, bands, a report that a click shows; it scrolls to the cell."""
    pytest.importorskip("notebook")
    (lab[1] / "seven.ipynb").write_text(notebook(*REAL))
    page.goto(f"{lab[0]}/notebooks/seven.ipynb")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    run_cells(page)
    panel = page.locator(".jp-Notebook .gl").first
    wait_for_prompt(page, REAL[-1])
    expect(bands(panel)).to_have_count(len(REAL))
    expect(panel.locator(".gl-bars")).to_contain_text(re.compile(r"RAM\s*\d+ MB of"))
    expect(panel.locator(".gl-most")).to_contain_text(re.compile(r"\[4\] (299|300|301) MB"))
    panel.scroll_into_view_if_needed()
    shot("notebook-7")
    bands(panel).nth(len(REAL) - 5).click()
    expect(panel.locator(".gl-report")).to_contain_text("text_25 = 25")
    expect(cell_of(page, "text_25")).to_be_in_viewport()
    shot("notebook-7-strip")


def test_keys(page, lab):
    """Tab reaches one band; arrows, Home and End move; Enter shows its report, Escape closes it; no cell runs."""
    panel = ran(page, lab, "keys", FEW)
    assert panel.locator("button.gl-band[tabindex='0']").count() == 1
    bands(panel).last.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(bands(panel).nth(2)).to_be_focused()
    expect(panel.locator(".gl-hint")).to_contain_text("In [3]")
    page.keyboard.press("Enter")
    expect(panel.locator(".gl-report")).to_contain_text("kept = bytearray")
    expect(bands(panel).nth(2)).to_have_attribute("aria-expanded", "true")
    assert re.match(
        r"In \[3\] · .*RAM \+\d+ MB, needed \d+ MB", bands(panel).nth(2).get_attribute("aria-label")
    )
    page.wait_for_timeout(3000)  # the picture was renewed meanwhile: the focus stays
    expect(bands(panel).nth(2)).to_be_focused()
    page.keyboard.press("Escape")
    expect(panel.locator(".gl-report")).to_be_hidden()
    page.keyboard.press("End")
    expect(bands(panel).last).to_be_focused()
    expect(cell_of(page, "last = 1").locator(".jp-InputPrompt")).to_have_text("[5]:")


def test_a_hundred_cells(page, lab, shot):
    """On two devices, with a budget; on a phone nothing is cut; the report's foreign text is text."""
    panel = ran(
        *(page, lab, "hundred"),
        [
            LOAD,
            "%gpulog start budget=12GB",
            f"FAILS = False\n{HUNDRED}",
            PANEL,
            *(f"x = {n}" for n in range(30)),
        ],
    )
    assert bands(panel).count() >= 100
    panel.scroll_into_view_if_needed()
    for name in ("RAM", "GPU0", "GPU1"):
        expect(panel.locator(".gl-bars")).to_contain_text(name)
    assert panel.locator(".gl-failed").count() == 1
    bands(panel).nth(59).click()
    expect(panel.locator(".gl-report")).to_contain_text("train(<b>60</b>)")
    bands(panel).nth(59).focus()
    panel.evaluate("panel => panel.scrollIntoView({ block: 'start' })")
    page.wait_for_timeout(500)
    shot("hundred")
    page.set_viewport_size({"width": PHONE_PX, "height": 900})
    page.wait_for_timeout(800)
    panel.evaluate("panel => panel.scrollIntoView({ block: 'start' })")
    page.wait_for_timeout(300)
    shot("phone")
    edge = panel.bounding_box()["x"] + panel.bounding_box()["width"]
    for one in panel.locator(".gl-words span, .gl-most span").all():
        assert one.bounding_box()["x"] + one.bounding_box()["width"] <= edge + 1, one.inner_text()


def test_out_of_memory(page, lab, shot):
    """Red, with the next step, until another cell ended."""
    panel = begun(page, lab, "failed", [LOAD, SHOWN])
    expect(panel.locator(".gl-alarm")).to_have_text(
        "Out of memory · In [100] · Release old_model (4.1 GB), which no later cell uses: del old_model"
    )
    panel.scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    shot("out-of-memory")


def test_while_a_cell_runs(page, lab, shot):
    """The running cell is a band of its own, with its time; it needs no animation to be seen."""
    page.emulate_media(reduced_motion="reduce")
    long = "import time\nheld = bytearray(b'x') * (200 << 20)\ntime.sleep(6)"
    panel = begun(page, lab, "live", [LOAD, PANEL, long])
    page.mouse.move(5, 5)
    expect(panel.locator(".gl-runs")).to_be_visible()
    expect(panel.locator(".gl-hint")).to_contain_text(re.compile(r"In \[3\] runs: \d"))
    assert panel.locator(".gl-runs").evaluate("one => getComputedStyle(one).animationName") == "none"
    shot("running")
    wait_for_prompt(page, "time.sleep")
    expect(panel.locator(".gl-runs")).to_have_count(0)
    expect(panel.locator("[aria-live=polite]")).to_contain_text(
        re.compile(r"In \[3\] · \d\.\d+ s · RAM \+2\d\d MB")
    )


def test_a_new_view_of_the_output(page, lab, shot):
    """Beside the notebook: the same panel, alive; a click there scrolls the notebook, whose strip is not needed."""
    panel = ran(page, lab, "a_new_view_of_the_output", REAL)
    panel.click(button="right", position={"x": 400, "y": 5})
    page.get_by_text("Create New View for Cell Output").click()
    views = page.locator(".gl")
    expect(views).to_have_count(2)
    new = page.locator(".jp-LinkedOutputView .gl")
    expect(bands(new)).to_have_count(len(REAL))
    cell_of(page, "text_29").locator(".jp-Editor").click()
    page.keyboard.press("Shift+Enter")
    expect(bands(new)).to_have_count(len(REAL) + 1)
    bands(new).nth(3).click()
    expect(cell_of(page, "blip = ")).to_be_in_viewport()
    expect(new.locator(".gl-report")).to_contain_text("blip = bytearray")
    expect(page.locator(".gl-strip")).to_be_hidden()
    shot("new-view")


def test_two_panels(page, lab):
    """Two outputs of one session: both are alive and show the same."""
    ran(page, lab, "two", [*FEW, f"{PANEL}", "after = 1"])
    views = page.locator(".jp-Notebook .gl")
    expect(views).to_have_count(2)
    for view in views.all():
        expect(bands(view)).to_have_count(7)


def test_the_kernel_restarts(page, lab):
    """The panel says that it is not live; the same cell makes a new one."""
    panel = ran(page, lab, "the_kernel_restarts", FEW)
    page.get_by_role("menubar").get_by_text("Kernel", exact=True).click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Restart Kernel…$")).click()
    page.locator(".jp-Dialog .jp-mod-accept, .jp-Dialog .jp-mod-warn").last.click()
    expect(panel.locator("[aria-live=polite]")).to_contain_text("Not live")
    page.get_by_text("| Idle").wait_for()
    bands(panel).first.click()  # nobody answers
    run_cells(page)
    wait_for_prompt(page, "last = 1")
    panel = page.locator(".jp-Notebook .gl").first
    expect(bands(panel)).to_have_count(5)
    expect(page.locator(".gl-strip:visible")).to_have_count(0)
    assert "rror" not in cell_of(page, PANEL).locator(".jp-OutputArea").inner_text()


def test_the_page_is_loaded_anew(page, lab):
    """The panel comes back with the session's cells, and goes on."""
    panel = ran(page, lab, "reload", [*FEW, "later = bytearray(b'x') * (77 << 20)"])
    saved(page, lab, "reload")
    page.goto(f"{lab[0]}/lab/tree/reload.ipynb?reset")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    panel = page.locator(".jp-Notebook .gl").first
    expect(bands(panel)).to_have_count(6)
    cell_of(page, "later = ").locator(".jp-Editor").click()
    page.keyboard.press("Shift+Enter")
    expect(bands(panel)).to_have_count(7)


def test_what_a_notebook_of_200_cells_stores(page, lab):
    """One picture, under 5 KB for the panel, and nothing of it in the notebook's metadata."""
    ran(page, lab, "many", [LOAD, PANEL, *(f"text_{number} = {number}" for number in range(200))])
    kept = saved(page, lab, "many")
    (output,) = kept["cells"][1]["outputs"]
    assert set(output["data"]) == {"text/plain", "text/html"}
    assert "RAM of this process" in "".join(output["data"]["text/html"])
    assert len(json.dumps(output)) < STORED_BYTES
    assert set(kept["metadata"]) == {"kernelspec", "language_info"}


@pytest.mark.parametrize("trusted", [True, False])
def test_a_notebook_without_its_kernel(page, lab, shot, trusted):
    """The picture, in a notebook that is trusted as in one that is not; no error."""
    ran(page, lab, "a_notebook_without_its_kernel", FEW)
    name = "a_notebook_without_its_kernel"
    kept = saved(page, lab, name)
    if not trusted:
        name = "elsewhere"
        kept["cells"][2]["outputs"][0]["metadata"]["another"] = "signature"
        (lab[1] / "elsewhere.ipynb").write_text(json.dumps(kept))
    page.get_by_role("menubar").get_by_text("Kernel", exact=True).click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Shut Down Kernel$")).click()
    page.get_by_text("No Kernel").first.wait_for()
    page.goto(f"{lab[0]}/lab/tree/{name}.ipynb?reset")
    output = cell_of(page, PANEL).locator(".jp-OutputArea-output")
    expect(output).to_contain_text("RAM of this process, highest")
    page.wait_for_timeout(1500)
    expect(output).to_contain_text("live: %gpulog panel")
    assert page.locator(".gl").count() == 0
    assert "rror" not in output.inner_text()
    shot("without-kernel")
