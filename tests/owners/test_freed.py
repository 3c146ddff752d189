"""What a cell freed is named, and why memory did not come back; nothing that lives is called freed."""

import ctypes
import sys

import numpy as np
import pytest
from memory import MB


@pytest.fixture
def told(run, shell):
    """Runs cells; returns what is said of freed memory of the last."""
    shell.user_ns.update(np=np, MB=MB, ctypes=ctypes, sys=sys)

    def told(*cells):
        run("pass")
        for cell in cells:
            record = run(cell)
            assert record.status == "ok"
        return [note for note in record.notes if note.startswith("freed") or "still held" in note]

    return told


KEPT = "kept = np.ones(60 * MB, 'u1')"
HOLDER = "class M: pass\nm = M()"
FREED = {  # the cells, and what is said of the last
    "deleted": ([KEPT, "del kept"], ["freed: kept 60 MB"]),
    "bound to None": ([KEPT, "x = y = np.ones(40 * MB, 'u1')", "x = y = kept = None"], ["freed: kept 60 MB, x 40 MB"]),
    "bound to something small": ([KEPT, "kept = 3"], ["freed: kept 60 MB"]),
    "some of what it held": (["lst = [np.ones(30 * MB, 'u1') for _ in range(3)]", "lst.pop(); None"], ["freed: lst 30 MB"]),
    "an attribute": ([HOLDER, "m.cache = np.ones(30 * MB, 'u1')", "m.cache = None"], ["freed: m 30 MB"]),
    "bytes and a bytearray": (["b = b'x' * (30 * MB); c = bytearray(b)", "del b, c"], ["freed: b 30 MB, c 30 MB"]),
    "deleted and bound anew": ([KEPT, f"del kept; {KEPT}"], []),
    "bound anew to less": ([KEPT, "kept = np.ones(20 * MB, 'u1')"], ["freed: kept 40 MB"]),
    "bound anew to more": ([KEPT, "kept = np.ones(80 * MB, 'u1')"], []),
    "in its place another name": ([KEPT, "del kept; new = np.ones(20 * MB, 'u1')"], ["freed: kept 60 MB"]),
    "a small one": (["kept = np.ones(MB // 2, 'u1')", "del kept"], []),
    "held by another name": ([KEPT, "other = kept", "del kept"], ["kept was dropped, its 60 MB are still held by other"]),
    "by one that is older": (
        ["other = None", "other = kept = np.ones(60 * MB, 'u1')", "del kept"],
        ["kept was dropped, its 60 MB are still held by other"],
    ),
    "by an attribute": (
        [KEPT, HOLDER, "m.cache = kept", "kept = None"],
        ["kept was dropped, its 60 MB are still held by m.cache"],
    ),
    "by an item": ([KEPT, "d = {'first': np.ones(MB // 2, 'u1'), 'a': kept}", "del kept"], ["kept was dropped, its 60 MB are still held by d['a']"]),
    "deeper": ([KEPT, "d = [[kept]]", "del kept"], ["kept was dropped, its 60 MB are still held by d"]),
    "by a view": ([KEPT, "v = kept[:10]", "del kept"], ["kept was dropped, its 60 MB are still held by v"]),
    "a view was dropped": ([f"{KEPT}; v = kept[:10]", "del v"], ["v was dropped, its 60 MB are still held by kept"]),
    "by Out": ([KEPT, "kept", "del kept"], ["kept was dropped, its 60 MB are still held by Out[3]"]),
    "of two one lives": (
        [KEPT, "more = np.ones(30 * MB, 'u1'); m = [kept]", "del kept, more"],
        ["freed: more 30 MB", "kept was dropped, its 60 MB are still held by m"],
    ),
    "where nobody looks": (
        [KEPT, "ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept)); at = id(kept)", "del kept"],
        [],
    ),
    "where nobody looks, beside another": (
        [KEPT, "more = np.ones(40 * MB, 'u1'); ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept)); at = id(kept)",
         "del kept, more"],
        [],
    ),
    "renamed": ([KEPT, "other = kept; del kept"], ["kept was dropped, its 60 MB are still held by other"]),
    "passed on to a name of the cell": ([KEPT, "other, kept = kept, 1"], []),
    "quiet": ([KEPT, "x = 1"], []),
}  # fmt: skip


@pytest.mark.parametrize(("cells", "notes"), FREED.values(), ids=FREED)
def test_what_was_freed(told, shell, cells, notes):
    """The name under which it was held, and what it held less; or who holds it still."""
    assert told(*cells) == notes
    if "at" in shell.user_ns:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(ctypes.cast(shell.user_ns["at"], ctypes.py_object).value))


def test_a_search_that_was_cut_short_proves_nothing(told, monkeypatch):
    """Neither that memory is free nor who holds it."""
    from ipygpulogger.owners import growth

    assert told(KEPT, "pass") == []
    monkeypatch.setattr(growth, "BUDGET_S", 0)
    big = "junk = [[i] for i in range(200_000)]; other = kept"
    assert told(big, "del kept") == []
