"""Logs of very many cells: `report` and `compare` tell the worst, and the page has these in full."""

import re

import pytest
from command_line import MB, made, saved

from ipygpulogger.analysis.totals import MOST
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
    """The worst cells are there in full, the totals are of all, and the plot has the highest peak."""
    assert main(["report", str(log), "--html", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert len(text) < 1 << 20
    shown = text.count('<details class="cell')
    assert 100 <= shown <= MOST
    words = re.sub(r"<[^>]*>", " ", re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)).replace("\xa0", " ")
    words = " ".join(words.split())
    assert f"{shown} of 20,000: those that needed most, took longest, or failed last" in words
    assert "20,000 cells · 40 failed" in words
    assert "Highest GPU 300 MB of 600 MB, in In [777]" in words
    assert "In [777]: 300 MB" in text  # in the plot
    assert "19,980 more" in capsys.readouterr().out


def test_a_page_that_just_fits_is_whole(tmp_path, capsys):
    """As many cells as a page shows have no fold; one more has."""
    for count in (MOST, MOST + 1):
        log, page = saved(tmp_path / "log.jsonl", *[made()] * count), tmp_path / f"{count}.html"
        assert main(["report", str(log), "--html", str(page)]) == 0
        is_whole = page.read_text().count('<details class="cell') == MOST
        assert is_whole == (count == MOST)


def test_a_comparison_of_many_cells_lists_those_that_grew_most(tmp_path, capsys):
    """A hundred of those that grew, in their order, and how many more cells there are of each kind."""
    grown = {number: 200 + number for number in range(0, 1500, 10)}
    base = [made(100, source=f"x = {number}") for number in range(1500)]
    new = [made(grown.get(number, 100), source=f"x = {number}") for number in range(1500)]
    only = [made(source=f"y = {number}") for number in range(30)]
    logs = [saved(tmp_path / "base.jsonl", *base), saved(tmp_path / "new.jsonl", *new, *only)]
    assert main(["compare", *map(str, logs)]) == 1
    lines = capsys.readouterr().out.splitlines()
    listed = [int(line.split()[4]) for line in lines if line.startswith("In [1]: x")]
    assert listed == list(range(500, 1500, 10))
    assert lines[-24:-22] == ["and 50 more that grew", "and 1,350 more that did not grow"]
    assert lines[-22] == "new: In [1]: y = 0"
    assert lines[-2:] == ["new: 10 more", "150 of 1500 cells grew by more than 5 % and 1 MB"]
    assert main(["compare", *map(str, reversed(logs))]) == 0
    assert "removed: 10 more" in capsys.readouterr().out
