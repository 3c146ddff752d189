"""%%gpulog and lines=True in real kernels, and in a real terminal: the table that a user sees, with its truth."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from kernels import TIMEOUT_S

MB = 2**20
ROW = re.compile(
    r"^[ >] +(?P<line>\d+) +(?P<hits>\d+) +\d+\.\d{3} +(?P<consumed>-?\d+) +(?P<peaked>\d+)  (?P<source>.*)$",
    re.MULTILINE,
)


def about(size_mb):
    return pytest.approx(size_mb, abs=2)


def table(printed):
    """The rows of the table: line number, hits, consumed and peaked MB, by source."""
    return {
        match["source"].strip(): tuple(int(match[name]) for name in ("line", "hits", "consumed", "peaked"))
        for match in ROW.finditer(printed)
    }


def recorded(kernel):
    """The same of the last record, in exact figures, with the place."""
    found = kernel.value(
        "[(l.source, l.place, l.lineno, l.hits, l.gen.consumed_bytes, l.gen.peaked_bytes)"
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
pytestmark = pytest.mark.kernel(shared=True, begin=BEGIN, around=stopped)

EARLIER = "\ndef transient(size_mb):\n    made = b'x' * (size_mb << 20)\n    return len(made)\n"
CELL = """

%%gpulog --lines --label acceptance
kept = b'x' * (64 << 20)
len(b'x' * (200 << 20))
for size_mb in (300,):
    transient(size_mb)
del kept
"""
TRUTH = {  # line, hits, consumed, peaked
    "kept = b'x' * (64 << 20)": (4, 1, 64, 0),
    "len(b'x' * (200 << 20))": (5, 1, 0, 200),
    "for size_mb in (300,):": (6, 2, 0, 0),
    "transient(size_mb)": (7, 1, 0, 300),
    "del kept": (8, 1, -64, 0),
    "made = b'x' * (size_mb << 20)": (3, 1, 300, 0),
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
    for source, (lineno, hits, consumed, peaked) in TRUTH.items():
        assert shown[source] == (lineno, hits, about(consumed), about(peaked)), source
        place = f"In [{earlier}]" if f"    {source}\n" in EARLIER else ""
        assert kept[source] == (place, lineno, hits, about(consumed), about(peaked)), source
    assert f"\nIn [{earlier}]:\n" in ran.stdout
    assert "(acceptance)" in ran.stdout
    heaviest = f"heaviest line 3 of In [{earlier}]: made = b'x' * (size_mb << 20)  +300 MB of RAM ("
    assert f"\n{heaviest}" in ran.stdout
    assert kernel.value("[il.running, il.record.label]") == [False, "acceptance"]


def test_a_cell_that_awaits(kernel):
    """Top-level await under %%gpulog: it waits, and its line includes what happens meanwhile."""
    ran = kernel.run(
        "%%gpulog --lines\nasync def work():\n    await asyncio.sleep(0)\n"
        "    return len(b'x' * (128 << 20))\nsize = await work()\nsize >> 20"
    )
    assert (ran.status, ran.result) == ("ok", "128")
    shown = table(ran.stdout)
    assert shown["size = await work()"] == (5, 1, about(0), about(128))
    assert shown["return len(b'x' * (128 << 20))"] == (4, 1, about(0), about(128))
    assert shown["await asyncio.sleep(0)"] == (3, 1, about(0), about(0))


# -- in a terminal --------------------------------------------------------------------------------


def ipython(env, cwd, typed):
    """What IPython prints in a real terminal while this is typed, one line after the other, each when asked."""
    terminal, its_end = pty.openpty()
    program = [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor"]
    env = {**env, "IPYTHONDIR": str(cwd), "TERM": "dumb", "COLUMNS": "200"}
    streams = {"stdin": its_end, "stdout": its_end, "stderr": its_end, "start_new_session": True}
    process = subprocess.Popen([*program, "--HistoryManager.enabled=False"], cwd=cwd, env=env, **streams)
    os.close(its_end)
    printed, deadline_s = "", time.monotonic() + TIMEOUT_S
    try:
        for line in [*typed, None]:
            asked = len(printed)
            while line is None or not re.search(r"(In \[\d+\]: |   \.+: ?)$", printed[asked:]):
                assert time.monotonic() < deadline_s, printed
                if select.select([terminal], [], [], 1)[0]:
                    printed += os.read(terminal, 65536).decode()
            os.write(terminal, line.encode() + b"\n")
    except OSError:  # it has ended
        return printed.replace("\r\n", "\n")
    finally:
        os.close(terminal)
        process.wait(TIMEOUT_S)


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
        "kept = b'x' * (64 << 20)": (4, 1, about(64), 0),
        "return len(kept)": (5, 1, 0, 0),
    }


def test_in_a_terminal(driverless_env, tmp_path):
    """IPython in a terminal waits for the whole cell, runs it once, and prints result, report and table."""
    printed = ipython(
        driverless_env,
        tmp_path,
        ["%load_ext ipygpulogger", "%gpulog stop", "%%gpulog --lines", "x = len(b'x' * (64 << 20))", "x >> 20", "", "", "il.running", "exit"],
    )  # fmt: skip
    assert "Out[3]: 64" in printed
    assert table(printed) == {
        "x = len(b'x' * (64 << 20))": (2, 1, about(0), about(64)),
        "x >> 20": (3, 1, 0, 0),
    }
    assert printed.count("(In [3])") == 1
    assert "Out[4]: False" in printed
