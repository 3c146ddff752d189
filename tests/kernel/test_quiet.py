"""The option `quiet` and our own magics in a real kernel: what a notebook would keep of such a cell."""

import re

import pytest
from kernels import WAIT_FOR

MIME = "application/vnd.ipygpulogger.v1+json"
LONG = "import time; time.sleep(3.2)"

pytestmark = pytest.mark.kernel(begin=["%load_ext ipygpulogger\nil = get_ipython().user_ns['il']", WAIT_FOR])


def readable(data):
    """What a reader sees of an output: its text, with the tags of its HTML taken away."""
    return "".join(re.sub(r"<[^>]*>", "", data.get(kind, "")) for kind in ("text/plain", "text/html")).strip()


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


def test_the_live_line_of_a_long_cell_comes_and_goes(kernel):
    """A cell of three seconds under `quiet` is shown while it runs; of that nothing readable is left."""
    kernel.run("il.quiet = '10MB'")
    ran = kernel.run(LONG)
    shown = [
        message["content"]
        for message in ran.messages
        if message["msg_type"] in ("display_data", "update_display_data")
    ]
    assert "so far" in readable(shown[0]["data"])
    assert len({content["transient"]["display_id"] for content in shown}) == 1
    assert readable(shown[-1]["data"]) == ""
    assert not any(MIME in content["data"] for content in shown)


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
