"""Logs of very many cells: `report` and `compare` tell the worst, and the page has these in full."""

import re

import pytest
from command_line import MB, made

from ipygpulogger.analysis.ranking import MOST
from ipygpulogger.cli import main
from ipygpulogger.records import DeviceUsage, Peak
from ipygpulogger.storage.formats import json_line

COUNT = 20_000


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Twenty thousand cells, every 500th of which failed; one needed most, on a device."""
    path = tmp_path_factory.mktemp("many") / "many.jsonl"
    size = 300 * MB
    device = DeviceUsage(0, size, Peak(size, size, "exact"), 0, "card", total_bytes=2 * size, used_bytes=size)
    lines = []
    for number in range(COUNT):
        values = {"gpus": (device,)} if number == 777 else {}
        cell = made(100 + number % 9, source=f"f{number % 40}(x)", **values)
        line = json_line(cell).replace('"In [1]"', f'"In [{number}]"')
        line = line.replace("00:00:00+", f"{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}+")
        line = line.replace('"execution_count": 1', f'"execution_count": {number}')
        lines.append(
            line if number % 500 else line.replace('"ok", "error": null', '"error", "error": "OSError"')
        )
    path.write_text("".join(lines))
    return path


def test_the_page_of_many_cells_is_small(log, tmp_path, capsys):
    """The worst cells are there in full, and the totals are of all."""
    assert main(["report", str(log), "--html", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert len(text) < 2 << 20
    assert text.count('<details class="cell') == MOST
    words = re.sub(r"<[^>]*>", " ", text).replace("\xa0", " ")
    words = " ".join(words.split())
    assert f"{MOST} of 20,000: those that needed most" in words
    assert "20,000 cells · 40 failed" in words
    assert "Highest GPU 300 MB of 600 MB, raised by In [777]" in words
    assert "19,980 more" in capsys.readouterr().out
