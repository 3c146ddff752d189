"""What waits for the garbage collector: collected where that is worth its time, otherwise told."""

import cyclic_programs
import numpy as np
import pytest
from memory import MB

from ipygpulogger.owners import growth, uncollected
from ipygpulogger.runtime import full_collection

COSTS_S = {"free": 0.0, "dear": 100.0}
ARENAS_BYTES = 3 * MB // 2  # Python's own, of 1 MB, come and go


@pytest.fixture
def notebook(shell, monkeypatch, capsys):
    monkeypatch.setattr(growth, "BUDGET_S", 10)
    monkeypatch.setattr(uncollected, "_FOLLOW_S", 10)
    yield shell
    shell.user_ns.clear()


@pytest.mark.parametrize("cost", ["as it is", *COSTS_S])
def test_what_a_full_collection_would_give_back_is_never_told_as_held(notebook, monkeypatch, cost):
    """Arrays of 1 to 100 MB in cycles: whatever a full collection costs, the report tells the truth."""
    if cost in COSTS_S:
        monkeypatch.setattr(full_collection, "cost_s", lambda: COSTS_S[cost])
    cyclic_programs.check_that_nothing_is_told_as_held(
        notebook, lambda size_bytes: np.ones(size_bytes, "u1"), 15, ARENAS_BYTES
    )
