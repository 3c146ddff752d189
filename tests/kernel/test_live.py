"""Long cells in a real Jupyter kernel: one display, rewritten while the cell runs and then emptied; then the report."""

import re

import ipykernel
import pytest
from kernels import OURS, SOON, rich

MIME = "application/vnd.ipygpulogger.v1+json"
SHOWN = ("display_data", "update_display_data")
SUBSHELLS = pytest.mark.skipif(ipykernel.version_info[0] < 7, reason="ipykernel has subshells since 7.0")


pytestmark = pytest.mark.kernel(shared=True, begin=[SOON], around=rich)


def shown(ran):
    """The displays of a cell and their updates: kind, id, data; all the kernel sent belongs to some cell."""
    contents = [(m["msg_type"], m["content"]) for m in ran.messages if m["msg_type"] in SHOWN]
    return [(kind, content["transient"].get("display_id"), content["data"]) for kind, content in contents]


def until(kernel, asked, happened):
    """Until what the cell has shown is so."""
    kernel.wait_until(asked, lambda ran: happened(shown(ran)))


def times(number):
    return lambda shown: len(shown) >= number


def is_settled(ran):
    """One display, updates under its id, the last of which empties it; then a display of its own, the report."""
    *found, (kind, name, report) = shown(ran)
    kinds, names, bundles = zip(*found, strict=True)
    assert kinds == ("display_data", *["update_display_data"] * (len(found) - 1))
    assert len(found) >= 2
    assert len(set(names)) == 1
    assert None not in names
    assert all(set(data) == {"text/plain", "text/html"} for data in bundles[:-1])
    assert all(" s so far | Gen: " in data["text/plain"] for data in bundles[:-1])
    assert bundles[-1] == {"text/html": ""}
    assert (kind, name) == ("display_data", None)
    assert ran.kinds[-1] == "display_data"
    assert set(report) == {"text/plain", "text/html", MIME}
    assert report["text/plain"].startswith("RAM: Consumed Peaked  Used Total in ")
    label = bundles[0]["text/plain"].partition(":")[0]
    assert f"({label})" in report["text/plain"]
    return (*bundles[:-1], report)


@pytest.mark.kernel
def test_a_cell_of_five_seconds_as_users_have_it(kernel):
    """The real threshold and pace: one display and at least two updates under one id, then all is quiet."""
    kernel.run("import threading, time\n%load_ext ipygpulogger", silent=True)
    growing = (
        "kept = []\nfor _ in range(5):\n    kept.append(bytearray(b'x') * (20 << 20))\n    time.sleep(1)"
    )
    bundles = is_settled(kernel.run(growing))
    assert len(bundles) >= 3
    assert re.match(r"In \[1\]: [2-5] s so far \| Gen: \d+/0/", bundles[0]["text/plain"])
    assert len(kernel.run("1").displays) == 1
    kernel.run("%unload_ext ipygpulogger", silent=True)
    assert kernel.value(OURS) == []


def test_a_stop_in_a_long_cell_wipes_it_out(kernel):
    """stop() within the cell: what stood there is emptied, and nothing comes after."""
    asked = kernel.send(f"wait_for(go); il.stop(); names = {OURS}")
    until(kernel, asked, times(2))
    kernel.go.touch()
    found = shown(kernel.wait(asked))
    assert found[-1][2] == {"text/html": ""}
    assert found[-1][1] == found[0][1]
    assert kernel.value("names") == []


@pytest.mark.kernel(begin=[SOON])
def test_a_shutdown_in_a_long_cell_ends_the_kernel(kernel):
    """Our thread keeps no kernel alive."""
    kernel.begin(["il = IPyGPULogger(report='rich').start()"])
    asked = kernel.send("wait_for('/nowhere/at/all')")
    until(kernel, asked, times(2))
    kernel.manager.interrupt_kernel()
    kernel.manager.shutdown_kernel(now=False)
    assert not kernel.manager.is_alive()
