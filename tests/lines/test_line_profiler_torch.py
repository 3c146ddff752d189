"""Lines on torch's real allocator: to the byte, per device, and the user's own peaks as without us."""

import linecache
import subprocess
import sys

import pytest
import torch
from memory import MB

from ipygpulogger.lines.line_profiler import LineProfiler

pytestmark = pytest.mark.torch


def block(size_mb, device="cuda:0"):
    return torch.empty(size_mb * MB, dtype=torch.uint8, device=device)


def measured(source, name, **names):
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    lines = LineProfiler(lambda frame: frame.f_code.co_filename == name)
    lines.start()
    try:
        exec(compile(source, name, "exec"), {"block": block, "torch": torch, **names})
    finally:
        lines.stop()
    return {usage.lineno: usage for usage in lines.result(lambda _: ("", 0))}


def used(usage):
    return {
        gpu.index: (gpu.consumed_bytes // MB, gpu.peaked_bytes // MB, gpu.peak.quality) for gpu in usage.gpus
    }


def test_each_line_on_each_device(cuda):
    """64 MB kept, 512 MB needed for a moment, each on its device; a function's in the calling line too."""
    found = measured(
        """\
kept = block(64)
n = block(512).numel()
def both():
    block(100, "cuda:1")
    return block(32, "cuda:1")
other = both()
del kept
pass
""",
        "<devices>",
    )
    assert used(found[1]) == {0: (64, 0, "exact")}
    assert used(found[2]) == {0: (0, 512, "exact")}
    assert used(found[4]) == {1: (0, 100, "exact")}
    assert used(found[5]) == {1: (32, 0, "exact")}
    assert used(found[6]) == {1: (32, 68, "exact")}
    assert used(found[7]) == {0: (-64, 0, "exact")}
    assert used(found[8]) == used(found[3]) == {}


def test_first_used_within_a_line(kernel_env):
    """The line that imports torch, and the one that uses a device first, have what that moved."""
    program = """\
import torch
kept = torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")
n = torch.empty(512 * 2**20, dtype=torch.uint8, device="cuda").numel()
other = torch.empty(16 * 2**20, dtype=torch.uint8, device="cuda:1")
"""
    script = (
        "import linecache, sys\n"
        "from ipygpulogger.lines.line_profiler import LineProfiler\n"
        "source = sys.argv[1]\n"
        "lines = LineProfiler(lambda frame: frame.f_code.co_filename == '<first>')\n"
        "lines.start()\n"
        "exec(compile(source, '<first>', 'exec'), {})\n"
        "lines.stop()\n"
        "for line in lines.result(lambda _: ('', 0)):\n"
        "    print(line.lineno, [(g.index, g.consumed_bytes >> 20, g.peaked_bytes >> 20, g.peak.quality)"
        " for g in line.gpus])\n"
        "print(lines.notes(lambda _: ('', 0)))\n"
    )
    told = subprocess.check_output([sys.executable, "-c", script, program], env=kernel_env, text=True)
    assert told.splitlines() == [
        "1 []",
        "2 [(0, 64, 0, 'exact')]",
        "3 [(0, 0, 512, 'exact')]",
        "4 [(1, 16, 0, 'exact')]",
        "()",
    ]
