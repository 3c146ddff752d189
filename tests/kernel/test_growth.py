"""What grew, in a real Jupyter kernel: in both reports, in the saved record, over several runs."""

from contextlib import contextmanager

import pytest

MIME = "application/vnd.ipygpulogger.v1+json"


def report(ran):
    """What the cell's report says in the end: one that takes long on a busy machine is shown while it runs."""
    kinds = "display_data", "update_display_data"
    return [m["content"]["data"] for m in ran.messages if m["msg_type"] in kinds][-1]


BEGIN = (
    "import gc, threading, time; import numpy as np; MB = 2**20",
    # On a busy machine a walk may need longer than the budget; that is tested by itself.
    "from ipygpulogger.owners import growth; growth.BUDGET_S = 10",
)


@contextmanager
def extension(kernel):
    """The extension is loaded during a test."""
    kernel.begin(["%load_ext ipygpulogger"])
    yield
    kernel.begin(["%unload_ext ipygpulogger", "%reset -f out"])


pytestmark = pytest.mark.kernel(shared=True, begin=BEGIN, around=extension)


def test_a_cell_run_three_times(kernel):
    """The front end's name of the cell is what it is known by."""
    kernel.run("log = []")
    for _ in range(3):
        display = report(kernel.run("log.append(np.ones(20 * MB, 'u1'))", cell_id="c1"))
    assert "\ngrew in each of its last 3 runs: log" in display["text/plain"]
    (display,) = kernel.run("%gpulog summary").displays
    told = display["data"]["text/plain"]
    assert "<b>May leak</b>" in display["data"]["text/html"]
    assert "log.append(np.ones(20 * MB, 'u1')): 3 runs, " in told
    assert told.rstrip().endswith("each: log") or "MB: log" in told
