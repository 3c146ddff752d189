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
