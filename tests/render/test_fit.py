"""What is said of the memory of a cell over the size of its data."""

import dataclasses
import re

from hypothesis import given, settings
from hypothesis import strategies as st
from made import TEXTS, UNSHRUNK, records
from sessions import cells, gpu, ram

from ipygpulogger.analysis.fit import RAM, CellFit, Headroom, fit_of
from ipygpulogger.render import fit as rendered

MB = 2**20
GPU = ("cuda", 0, None)


def told(*runs, left_mb=9000, source="loss = step(batch)"):
    """A fit of runs on one device, each given as (size, need in MB), with 1000 MB of others."""
    usages = [gpu(1000, 1000, 1000 + need_mb) for _, need_mb in runs]
    found = [
        dataclasses.replace(record, dimensions=(("x", size),))
        for record, (size, _) in zip(cells(*usages, source=source), runs, strict=True)
    ]
    return fit_of(found, {GPU: Headroom(1000 * MB, left_mb * MB)})


def test_the_text_of_a_line():
    """The runs by their size, the size at which the room ends, the line, how near the runs are."""
    assert rendered.report(told((16, 1240), (64, 4453), (32, 2311))) == (
        "In [1], In [2], In [3]: loss = step(batch)\n"
        "   x   cuda:0 MB\n"
        "  16        1240  In [1]\n"
        "  32        2311  In [3]\n"
        "  64        4453  In [2]\n"
        "cuda:0: enough up to x = 131, with 9000 MB left for it.\n"
        "cuda:0: 169 MB, and 66.9 MB for each of x; every run is within 1 MB of that line.\n"
        "Leave a few percent: what the allocator loses to fragmentation is not in this figure."
    )


def test_what_else_is_said():
    """Two points, a far end, no headroom, no line, no figure, and what is missing."""
    two = rendered.report(told((16, 100), (32, 200), left_mb=9000))
    assert "enough up to x = about 1,300, with 9000 MB left for it." in two
    assert "The largest that ran is 32: try one in between." in two
    assert "cuda:0: 6.25 MB for each of x.\n" in two
    assert two.endswith(
        "figure.\nTwo sizes always lie on a line: a run with a third one shows whether it holds."
    )
    assert "not enough for x = 1, with 90 MB left" in rendered.report(told((1, 100), (2, 190), left_mb=90))
    near, off = (rendered.report(told((16, 1240), (64, most), (32, 2311))) for most in (4490, 4520))
    sizes = [int(re.search(r"enough up to x = (\d+), with 9000 MB", text)[1]) for text in (near, off)]
    assert 131 > sizes[0] > sizes[1] > 110  # the farther the runs are off, the less is promised
    square = rendered.report(told((8, 64), (16, 256), (32, 1024), (64, 4096)))
    assert square.endswith("cuda:0: not a line: by it, nothing would need -863 MB.")
    zigzag = rendered.report(told((8, 64), (16, 900), (32, 100), (64, 4096)))
    assert re.search(
        r"cuda:0: not a line: (the runs lie up to \d+ MB off|by it, nothing would need -\d+ MB)\.", zigzag
    )
    for none in (square, zigzag):
        assert "9000 MB are left for the cell, but the runs do not show up to which x that is enough." in none
    again = rendered.report(told((16, 900), (16, 100), (32, 200)))
    assert "In [1]  " not in again
    assert rendered.report(told((16, 100), (16, 100))) == (
        "In [1], In [2]: loss = step(batch)\nIn [2] ran with one size only (x: 16): run it again with another size."
    )
    hidden = fit_of(cells(ram(0, 1)), {RAM: Headroom(0, None)})
    assert "its code names no array" in rendered.report(hidden) or "No cell so far" in rendered.report(hidden)


@settings(deadline=None, max_examples=12, phases=UNSHRUNK)
@given(st.lists(records(source=TEXTS, cell_id=TEXTS), max_size=6), TEXTS)
def test_whatever_the_records_say(found, name):
    """Records of any machine, with names of any kind, are told on lines without control characters."""
    alike = {"source": "x", "cell_id": "a", "status": "ok", "gpulog_only": False}
    same = [
        dataclasses.replace(one, dimensions=((name, at % 3), ("b", at)), **alike)
        for at, one in enumerate(found, 1)
    ]
    for records_of_it in (found, same):
        result = fit_of(records_of_it, {RAM: Headroom(0, 1 << 30)})
        assert isinstance(result, CellFit)
        assert rendered.report(result).replace("\n", "").isprintable()
