"""GPU cells in a real kernel, with the default settings, on the simulated machine."""

import re
from contextlib import contextmanager

import pytest
from kernels import WAIT_FOR
from memory import MB

START = "from ipygpulogger import IPyGPULogger; il = IPyGPULogger().start()"
TENSOR = "{name} = torch.empty({size_mb} << 20, dtype=torch.uint8, device='cuda:{device}')"


@contextmanager
def neighbours(kernel):
    """What the test process itself holds on each device is a neighbour of the kernel."""
    for i in range(2):
        row = kernel.gpu.dev[i].mine()
        THEIRS_MB[f"GPU{i}"] = row.used // MB if row else 0
    THEIRS_MB["GPU"], THEIRS_MB["Gen"] = THEIRS_MB["GPU0"], 0
    yield


THEIRS_MB = {}
pytestmark = [pytest.mark.torch, pytest.mark.kernel(gpu=True, begin=[WAIT_FOR, START], around=neighbours)]


def keep(name, size_mb, device=0):
    return TENSOR.format(name=name, size_mb=size_mb, device=device)


def transient(size_mb, device=0):
    return keep("_t", size_mb, device) + "; del _t"


def rows(ran):
    """{row: (consumed, peaked, used without the test's own, remarks)} of the last report in a cell.

    Without the course of a cell that took long: that depends on the machine.
    """
    report = ran.stdout[ran.stdout.rindex("RAM: Consumed Peaked  Used Total in") :]
    found = {}
    for line in report.splitlines()[1:]:
        name, colon, rest = line.partition(":")
        if colon and name in {"Gen", "GPU", "GPU0", "GPU1"}:
            figures, _, remarks = rest.partition(" MB")
            consumed, peaked, used = map(int, figures.split())
            found[name] = consumed, peaked, used - THEIRS_MB[name], remarks.strip(" ▁▂▃▄▅▆▇█")
    return found


def test_a_session(kernel):
    """Import, keep, need for a moment, free: exact to the MB, the context is nobody's cell, the import is named."""
    imported = kernel.run("import torch")
    assert "GPU" not in rows(imported)
    assert "libraries loaded: torch" in imported.stdout
    assert "unexplained" not in imported.stdout
    assert rows(kernel.run("1"))["GPU"] == (0, 0, 500, "")
    assert rows(kernel.run(keep("x", 100)))["GPU"] == (100, 0, 600, "")
    assert rows(kernel.run(transient(700)))["GPU"] == (0, 700, 600, "")
    assert rows(kernel.run(keep("y", 300) + "; " + transient(200)))["GPU"] == (300, 200, 900, "")
    assert rows(kernel.run("del x, y"))["GPU"] == (-400, 0, 500, "")
    assert kernel.value("il.data[3:6]") == [-400, 0, 500 + THEIRS_MB["GPU"]]


def test_what_moves_between_cells(kernel, gpu):
    """The context made before a cell is named; a tensor that goes in no cell is told, a neighbour is not ours."""
    kernel.run("import torch")
    first = kernel.run("1")
    assert "before this cell: + context 500 MB (cuda:0)" in first.stdout
    assert "between cells" not in first.stdout
    kernel.run(keep("x", 100))
    kernel.run("del x", silent=True)
    gpu.dev[0].add_process(1, 3000 * MB)
    told = kernel.run("2").stdout.splitlines()
    assert [line for line in told if "cells" in line] == ["between cells: cuda:0 -100 MB"]
    assert kernel.value("il.record.between") == [["cuda:0", -100 * MB]]
    assert "cells" not in kernel.run("3").stdout


def test_the_size_that_fits(kernel):
    """%gpulog fit: the size at which the room ends is the last that runs; the next one is out of memory."""
    kernel.run("import torch; other = torch.empty(1 << 30, dtype=torch.uint8, device='cuda')")
    kernel.run(
        "def step(n):\n    return len(torch.empty((100 + 4 * n) << 20, dtype=torch.uint8, device='cuda'))"
    )

    def ran_with(size):
        return kernel.run(f"batch_size = {size}\nstep(batch_size)").status

    ran_with(8)
    assert "ran with one size only (batch_size: 8)" in kernel.run("%gpulog fit").stdout
    ran_with(32)
    ran_with(16)
    fit = kernel.run("%gpulog fit").stdout
    assert "cuda:0: 100 MB, and 4 MB for each of batch_size; every run is within 1 MB of that line." in fit
    size = int(re.search(r"up to batch_size = (?:about )?([\d,]+),", fit)[1].replace(",", ""))
    kernel.run(keep("more", 4 * (size - 200)))  # so that the end is near enough to be told exactly
    size = int(re.search(r"up to batch_size = ([\d,]+),", kernel.run("%gpulog fit").stdout)[1])
    assert (ran_with(size + 1), ran_with(size)) == ("error", "ok")
    told = kernel.run("%gpulog fit").stdout
    assert f"failed: OutOfMemoryError at batch_size = {size + 1}" in told
    assert f"up to batch_size = {size}," in told
