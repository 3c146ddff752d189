"""General RAM at the peak of the cells of a real kernel: by line, and with the names that hold it."""

import pytest

from ipygpulogger.sources.system import memray as source

pytestmark = pytest.mark.skipif(not source.installed(), reason="memray is not installed")

BEGIN = [
    "import asyncio, numpy as np, pandas as pd\nMB = 1 << 20\npd.DataFrame({'warm': ['a', 'b']}) * 2;",
    "from ipygpulogger import IPyGPULogger\nil = IPyGPULogger(report='none', peak=True).start()",
]
ROWS = "[(r.device, r.kind, r.name, r.place, round(r.size_bytes / MB, 1)) for r in il.record.at_peak if r.size_bytes > 4 * MB]"
FIRST = """
a = np.ones(8 * MB)
df = pd.DataFrame({c: np.ones(MB) for c in "wxyz"}, copy=False)
n = len(b'x' * (48 * MB))"""
PLACELESS = {("others", ""), ("allocated without a Python stack", ""), ("small objects of Python", "")}
HELPER = "def T(mb):\n    return np.ones(mb << 17)"
IN_THREADS = """\
def work():
    return len(b"x" * (24 * MB))
await asyncio.gather(asyncio.to_thread(work), asyncio.to_thread(lambda: None))
import os, warnings
with warnings.catch_warnings():  # Python 3.12 and later warn that a process with threads forks
    warnings.simplefilter("ignore", DeprecationWarning)
    child = os.fork()
if not child:
    os._exit(len(b"x" * (99 * MB)) & 1)
assert os.waitpid(child, 0)[1] == 0
"""


DELETED = {  # a cell, and the name of its first line's 24 MB at the peak, which another line made
    "deleted": ("a = np.ones(3 * MB)\nb = a * 2\ndel a", "a (deleted)"),
    "bound to None": ("a = np.ones(3 * MB)\nb = a * 2\na = None", "a (deleted)"),
    "bound anew": ("a = np.ones(3 * MB)\nb = a * 2\na = b[:3]", "a (deleted)"),
    "an operator's result": ("a = b + 1\nc = a * 2\ndel a", "a (deleted)"),
    "of Python's own": ("a = bytes(24 * MB)\nb = a + b'x'\ndel a", "a (deleted)"),
    "of a helper": ("a = T(24)\nb = a * 2\ndel a", ""),
    "together": ("a = np.ones(3 * MB); x = 1\nb = a * 2\ndel a, x", ""),
    "a temporary": ("a = np.ones(3 * MB).sum() + len(bytes(48 * MB))\ndel a", ""),
    "put into a list": (
        "rows = []\nn = rows.append(np.ones(3 * MB))\nb = rows[0] * 2\nrows.clear()\ndel n",
        "",
    ),
    "kept by a helper": ("a = keeps(24)\nb = np.ones(3 * MB)\nkept.clear()\ndel a", ""),
    "in a loop": ("for i in range(2):\n    a = np.ones(3 * MB)\nb = a * 2\ndel a", ""),
    "deleted before": ("a = np.ones(3 * MB)\nc = [a]\ndel a\nb = c[0] * 2\ndel c", ""),
}


@pytest.mark.kernel(begin=BEGIN)
def test_a_variable_that_the_cell_deleted(kernel):
    """It is named where the cell's text proves that the name held the memory at the peak; else it is a temporary."""
    kernel.run(f"b = np.ones(3 * MB)\n{HELPER}")
    kernel.run("kept = []\ndef keeps(mb):\n    kept.append(np.ones(mb << 17))\n    return kept[0][:3]")
    for law, (code, name) in DELETED.items():
        assert kernel.run(code).status == "ok"
        found = [tuple(row) for row in kernel.value(ROWS)]
        if name:
            assert [row[:3] for row in found if row[2] == name] == [("cpu", "variables", name)], (law, found)
        else:
            assert not [row for row in found if "(deleted)" in row[2]], (law, found)
            assert any(row[1] == "temporaries" for row in found), (law, found)


@pytest.mark.linux("nothing forks there", "macos")
@pytest.mark.kernel(begin=BEGIN)
def test_lines_and_names_are_those_that_the_user_sees(kernel):
    """In one notebook: numpy, C and pandas, a failed cell, threads and tasks, a child; within 1 %."""
    pytest.importorskip("pandas")

    def rows(code, status="ok"):
        ran = kernel.run(code)
        assert ran.status == status, ran.reply
        assert not ran.stderr
        found = kernel.value(ROWS)
        assert {row[0] for row in found} == {"cpu"}
        return [tuple(row[1:]) for row in found]

    assert rows(FIRST) == [
        ("variables", "a", "In [1]:2", 64.0),
        ("temporaries", "n = len(b'x' * (48 * MB))", "In [1]:4", 48.0),
        ("variables", "df", "In [1]:3", 32.0),
    ]
    assert rows("%%time\nmore = df * 2") == [("variables", "more", "In [2]:2", 32.0)]
    assert rows("%%prun -q\nz = np.ones(MB)") == [
        ("variables", "z", kernel.value("il.record.at_peak[0].place"), 8.0)
    ]
    assert rows("def fails():\n    inner = np.ones(4 * MB)\n    1 / 0\nfails()", "error") == [
        ("variables", "last traceback: fails.inner", "In [4]:2", 32.0)
    ]
    kernel.run(HELPER)
    helped = "return np.ones(mb << 17)"
    assert rows("big = T(24)\nlen([T(8), T(9)])") == [
        ("variables", "big", "In [6]:1 → T, In [5]:2", 24.0),
        ("temporaries", helped, "In [6]:2 → T, In [5]:2", 17.0),
    ]
    assert rows("%%time\nmore = T(32)") == [("variables", "more", "In [7]:2 → T, In [5]:2", 32.0)]
    assert rows(IN_THREADS) == [("temporaries", 'return len(b"x" * (24 * MB))', "In [8]:2", 24.0)]
    # A name stands for what it holds; what else lives stands under the line.
    assert rows("w = np.ones(2 * MB); rest = {i: bytes(60_000) for i in range(201)}") == [
        ("variables", "w", "In [9]:1", 16.0),
        ("variables", "w = np.ones(2 * MB); rest = {i: bytes(60_000) for i in range(201)}", "In [9]:1", 11.5),
    ]
    # What IPython asks for to show an error is not the cell's, and what its threads ask for has no place; `%%prun` hides stacks.
    kernel.run("raise ValueError('x')")
    told = kernel.value("[(r.name, r.place) for record in il.history for r in record.at_peak]")
    assert {tuple(one) for one in told if not one[1].startswith("In [") and one[0] != "z"} <= PLACELESS
    assert (
        kernel.value(
            "[note for record in il.history for note in record.notes if not note.startswith('freed: ')]"
        )
        == []
    )
