"""`%%gpulog --peak` in a real kernel: however a cell ends it has its table, and nothing records afterwards."""

from contextlib import contextmanager

import pytest
from memory import MB

BEGIN = (
    "import asyncio, signal, sys, torch\nfrom ipygpulogger import IPyGPULogger\nil = IPyGPULogger().start()",
)
FIRST = """
weight = torch.zeros(4 << 20, dtype=torch.uint8, device='cuda')
def moment(mb):
    block = torch.empty(mb << 20, dtype=torch.uint8, device='cuda')
"""


@contextmanager
def begun(kernel):
    """A kernel whose first cell defined the function; the other tests have the same one."""
    if not kernel.value("'moment' in globals()"):
        kernel.run(FIRST)
    yield


pytestmark = [
    pytest.mark.torch,
    pytest.mark.kernel(
        gpu=True, begin=BEGIN, around=begun, shared=True, env={"PYTORCH_CUDA_ALLOC_CONF": None}
    ),
]
HELD = ("variables", "weight", "before the cell", 4 * MB)
LINE = "block = torch.empty(mb << 20, dtype=torch.uint8, device='cuda')"
MOMENT = ("temporaries", LINE, "In [1]:4", 8 * MB)
CELLS = {
    "ok": "moment(8)",
    "error": "moment(8)\n1 / 0",
    "interrupted": "moment(8)\nsignal.raise_signal(signal.SIGINT)",
    "async": "async def later():\n    await asyncio.sleep(0.01)\n    moment(8)\nawait later()",
    "captured": "%%capture\nmoment(8)",
    "timed": "%%time\nmoment(8)",
    "lines": "moment(8)",
}
OPTIONS = {"lines": "--peak --lines"}
STATUS = {"error": "error", "interrupted": "interrupted"}


@pytest.mark.parametrize("how", CELLS)
def test_its_table_and_nothing_left(kernel, how):
    """The rows are those of the function's line in the earlier cell, to the byte; torch is as it was."""
    before = kernel.value("torch.autograd._engine_run_backward.__module__")
    ran = kernel.run(f"%%gpulog {OPTIONS.get(how, '--peak')}\n{CELLS[how]}")
    rows = "[(r.kind, r.name, r.place.rpartition(', ')[2], r.size_bytes) for r in il.record.at_peak if r.device == 'cuda:0']"
    assert [tuple(row) for row in kernel.value(rows)] == [MOMENT, HELD]
    assert kernel.value("il.record.status") == STATUS.get(how, "ok")
    assert "At the peak" in ran.stdout
    assert not kernel.value("torch._C._cuda_isHistoryEnabled()")
    assert kernel.value("torch.autograd._engine_run_backward.__module__") == before
    assert not kernel.value("bool(sys.modules['torch.optim.optimizer']._global_optimizer_post_hooks)")


ASK = "torch.empty(9 << 20, dtype=torch.uint8, device='cuda')"
PLACES = {  # the line of the cell that has `ASK`
    f"b = {ASK}": 2,
    f"x = 1\n%time b = {ASK}": 3,
    f"%time {ASK}": 2,
    f"%%time\n\nx = 1\nb = {ASK}": 5,
    f"x = 1\n%timeit -n1 -r1 {ASK}": 3,
    f"%%timeit -n1 -r1\nx = 1\n{ASK}": 4,
    f"x = 1\n%prun -q b = {ASK}": 3,
    f"%%prun -q\nx = 1\nb = {ASK}": 4,
    f"%%capture\nb = {ASK}": 3,
    f"x = 1\nexec({ASK!r})": 3,
    f"def inner():\n    return eval({ASK!r})\nb = inner()": 3,
    f"%%time\nx = 1\nexec({ASK!r})": 4,
    f"for i in range(1):\n    %time b = {ASK}": 3,
}


@pytest.mark.parametrize("cell", PLACES)
def test_the_line_of_the_cell_that_asked(kernel, cell):
    """Below a magic, and in code from a text: never `<timed exec>:1`."""
    kernel.run(f"%%gpulog --peak\n{cell}")
    label = kernel.value("il.record.label")
    found = "[row.place for row in il.record.at_peak if row.place != 'before the cell' and row.size_bytes > 1 << 20]"
    assert kernel.value(found) == [f"{label}:{PLACES[cell]}"]
