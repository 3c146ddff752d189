"""Whether a peak on a GPU is seen: tensors of known size, needed for a moment, on the simulated GPU of the tests."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bench import TESTS

from . import outputs
from .environments import GPU
from .peaks import Trials
from .tables import Table
from .tools import LIGHT, START, Tool

if TYPE_CHECKING:
    from .running import Setting

HELD_MS = (0.5, 2, 10)
TRUTHS_MB = {"8 MB": 8, "1 GB, then empty_cache": 1024, "10 times 1 MB": 10}
CELLS = {
    "8 MB": "transient([8], {held_ms}, False)",
    "1 GB, then empty_cache": "transient([1024], {held_ms}, True)",
    "10 times 1 MB": "transient([1] * 10, {held_ms}, False)",
}
CONTEXT = "import time, torch\nkept = torch.ones(8, device='cuda')\n"
TRANSIENT = """
def transient(sizes, held_ms, empty):
    tensors = [torch.empty(size << 20, dtype=torch.uint8, device="cuda") for size in sizes]
    time.sleep(held_ms / 1000)
    del tensors
    if empty:
        torch.cuda.empty_cache()
"""
TOOLS = (
    Tool(
        "cell_logger",
        "ipyexperiments, CellLogger",
        GPU,
        "",
        f"{CONTEXT}from ipyexperiments import IPyExperimentsPytorch\nexp = IPyExperimentsPytorch()",
        told=lambda ran, _: outputs.cell_logger(ran.text, "GPU"),
    ),
    Tool(
        "memlab",
        "pytorch_memlab, %%mlrun",
        GPU,
        "",
        f"{CONTEXT}%load_ext pytorch_memlab",
        magic="%%mlrun -f transient\n",
        told=lambda ran, _: outputs.memlab(ran.text),
        digit_mb=0.01,
    ),
    *(
        Tool(
            key,
            f"ipygpulogger, {key}",
            GPU,
            "",
            CONTEXT + START.format(options),
            told=lambda ran, _: outputs.ipygpulogger(ran.text, "GPU"),
            is_ours=True,
        )
        for key, options in (("defaults", ""), ("light", LIGHT))
    ),
)


def gpu(setting: Setting) -> Table:
    """The share of transients on the GPU that are told right, and the error."""
    rounds = setting.few(30, 3)
    asked = {tool.key for tool in setting.tools} | {"memlab"}
    measuring = [tool for tool in TOOLS if tool.key in asked]
    held = " / ".join(f"{held_ms:g}" for held_ms in HELD_MS)
    title = f"On a simulated GPU: % of {rounds} rises that are measured right, held for {held} ms"
    machine, reason = _machine(setting)
    if reason:
        return Table("gpu", title, [], remarks=[f"Not run: {reason}."])
    trials = Trials(TRUTHS_MB, HELD_MS)
    with setting.field(tools=measuring, env=machine) as tools:
        tools.silently(TRANSIENT)
        for _, tool in tools.turns(rounds):
            for kind, cell in CELLS.items():
                for held_ms in HELD_MS:
                    trials.ask(tools, tool, kind, held_ms, cell.format(held_ms=held_ms))
        columns = trials.columns(tools, measuring)
    remark = (
        "The truth is what the tensors hold. ipyexperiments reads the whole device, where torch's allocator takes 20 MB for "
        "a tensor of 8 MB."
    )
    return Table("gpu", title, measuring, columns, [remark])


def _machine(setting: Setting) -> tuple[dict[str, str], str | None]:
    """The variables that put a kernel on the simulated machine, and why there is none."""
    failed = setting.environments.failed
    reason = failed.get(GPU) or failed.get("torch")
    if reason is None:
        sys.path.insert(0, str(TESTS))
        import simgpu

        reason = simgpu.why_not()
        if reason is None and simgpu.find_torch_lib() is None:
            reason = "the CUDA build of torch is not installed"
        if reason is None:
            return simgpu.environment(simgpu.start(devices=1, mem_mb=16384)), None
    return {}, reason
