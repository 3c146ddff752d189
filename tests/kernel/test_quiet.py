"""The option `quiet` and our own magics in a real kernel: what a notebook would keep of such a cell."""

import pytest
from kernels import WAIT_FOR

MIME = "application/vnd.ipygpulogger.v1+json"
pytestmark = pytest.mark.kernel(begin=["%load_ext ipygpulogger\nil = get_ipython().user_ns['il']", WAIT_FOR])


def test_a_small_cell_leaves_nothing(kernel):
    """No output at all in rich mode; a large one, a failed one and %%gpulog have their report."""
    kernel.run("il.quiet = '10MB'")
    before = kernel.value("len(il.history)")
    assert kernel.run("x = 1").kinds == []
    assert kernel.run("6 * 7").kinds == ["execute_result"]
    assert MIME in kernel.run("kept = bytearray(b'x') * (30 << 20)").displays[0]["data"]
    assert kernel.run("1 / 0").kinds == ["error", "display_data"]
    assert kernel.run("%%gpulog\nx = 1").kinds == ["display_data"]
    assert kernel.value("len(il.history)") == before + 5


@pytest.mark.torch
@pytest.mark.kernel(gpu=True, begin=["%load_ext ipygpulogger", "import torch\ntorch.ones(1, device='cuda')"])
def test_what_moves_on_a_gpu_counts(kernel):
    """64 MB of it that are kept, freed or needed for a moment are reported, and 2 MB are not."""
    kernel.run("%gpulog start quiet=10MB")

    def is_reported(code):
        ran = kernel.run(code)
        assert ran.status == "ok"
        return bool(ran.displays)

    for size_mb, reported in ((64, True), (2, False)):
        make = f"torch.empty({size_mb} << 20, dtype=torch.uint8, device='cuda')"
        is_reported(f"kept = {make}; del kept")  # whatever is loaded once
        assert is_reported(f"kept = {make}") == reported
        assert is_reported("del kept") == reported
        assert is_reported(f"t = {make}; del t") == reported
    assert kernel.value("[len(r.gpus) for r in il.history[-6:]]") == [1] * 6
