"""%%gpulog and lines=True in real kernels, and in a real terminal: the table that a user sees, with its truth."""

import re
import sys
from contextlib import contextmanager

import pytest

MB = 2**20
ROW = re.compile(
    r"^[ >] +(?P<line>\d+) +(?P<hits>\d+) +\d+\.\d\d? s +(?P<consumed>-?\d+) +(?P<needed>\d+)  (?P<source>.*)$",
    re.MULTILINE,
)


def about(size_mb):
    return pytest.approx(size_mb, abs=2)


def table(printed):
    """The rows of the table: line number, hits, consumed and needed MB, by source."""
    return {
        match["source"].strip(): tuple(int(match[name]) for name in ("line", "hits", "consumed", "needed"))
        for match in ROW.finditer(printed)
    }


def recorded(kernel):
    """The same of the last record, in exact figures, with the place."""
    found = kernel.value(
        "[(l.source, l.place, l.lineno, l.hits, l.gen.consumed_bytes, l.gen.needed_bytes)"
        " for l in il.record.lines]"
    )
    return {source: (place, *counts, c / MB, p / MB) for source, place, *counts, c, p in found}


@contextmanager
def stopped(kernel):
    """The logger is stopped, in the printed form; nothing of tracing remains afterwards."""
    kernel.begin(["%gpulog start report=text lines=False compact=False", "%gpulog stop"])
    yield
    kernel.begin(["%gpulog stop"])
    monitoring = "[sys.monitoring.get_tool(i) for i in range(6)]" if sys.version_info >= (3, 12) else "[]"
    assert set(kernel.value(monitoring)) <= {None}
    assert kernel.value("sys.gettrace() is None")
    assert kernel.value("len(machine().scopes)") == 0


BEGIN = "%load_ext ipygpulogger", "import asyncio, json, sys; from ipygpulogger.engine.machine import machine"
pytestmark = [
    pytest.mark.kernel(shared=True, begin=BEGIN, around=stopped),
    pytest.mark.linux("elsewhere what lines needed is a range"),
]

EARLIER = "\ndef transient(size_mb):\n    made = b'x' * (size_mb << 20)\n    return len(made)\n"
CELL = """

%%gpulog --lines --label acceptance
kept = b'x' * (64 << 20)
len(b'x' * (200 << 20))
for size_mb in (300,):
    transient(size_mb)
del kept
"""
TRUTH = {  # line, hits, consumed, needed
    "kept = b'x' * (64 << 20)": (4, 1, 64, 64),
    "len(b'x' * (200 << 20))": (5, 1, 0, 200),
    "for size_mb in (300,):": (6, 2, 0, 0),
    "transient(size_mb)": (7, 1, 0, 300),
    "del kept": (8, 1, -64, 0),
    "made = b'x' * (size_mb << 20)": (3, 1, 300, 300),
    "return len(made)": (4, 1, 0, 0),
}


def test_the_acceptance_cell(kernel):
    """64 MB kept, 200 MB for a moment, 300 MB in an earlier cell's function, -64 MB for del: printed and kept."""
    earlier = kernel.run(EARLIER).reply["execution_count"]
    ran = kernel.run(CELL)
    assert ran.status == "ok"
    assert ran.stderr == ""
    shown, kept = table(ran.stdout), recorded(kernel)
    assert set(shown) == set(kept) == set(TRUTH)
    for source, (lineno, hits, consumed, needed) in TRUTH.items():
        assert shown[source] == (lineno, hits, about(consumed), about(needed)), source
        place = f"In [{earlier}]" if f"    {source}\n" in EARLIER else ""
        assert kept[source] == (place, lineno, hits, about(consumed), about(needed)), source
    assert f"\nIn [{earlier}]:\n" in ran.stdout
    assert "(acceptance)" in ran.stdout
    heaviest = f"heaviest line 3 of In [{earlier}]: made = b'x' * (size_mb << 20)  +300 MB of RAM ("
    assert f"\n{heaviest}" in ran.stdout
    assert kernel.value("[il.running, il.record.label]") == [False, "acceptance"]


# -- in a terminal --------------------------------------------------------------------------------


def test_measure_lines_names_the_cell(kernel):
    """Not the temporary file under which a kernel compiles it."""
    ran = kernel.run(
        "from ipygpulogger import measure_lines\n@measure_lines\ndef step():\n"
        "    kept = b'x' * (64 << 20)\n    return len(kept)"
    )
    number = ran.reply["execution_count"]
    printed = kernel.run("step()").stdout
    assert f"\nIn [{number}]:\n" in printed
    assert "ipykernel" not in printed
    assert ".py" not in printed
    assert table(printed) == {
        "kept = b'x' * (64 << 20)": (4, 1, about(64), about(64)),
        "return len(kept)": (5, 1, 0, 0),
    }
