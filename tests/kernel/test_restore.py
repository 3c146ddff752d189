"""The restore functions in a real kernel: whatever IPython does with an exception, the memory is back."""

import pytest
from memory import MB

TORCH = pytest.mark.torch

START = """
import gc, subprocess, sys, weakref
from ipygpulogger.utils.ipython import *
held = []
class Memory(bytearray):
    pass
def memory(size_mb):
    mine = Memory(size_mb * 2**20)
    held.append(weakref.ref(mine))
    return mine
class RunOut(RuntimeError):
    pass
def run_out():
    raise RunOut('CUDA out of memory. Tried to allocate 9.00 GiB')
"""

START_ON_GPU = """
import torch
def memory(size_mb):
    mine = torch.empty(size_mb << 20, dtype=torch.uint8, device='cuda')
    held.append(weakref.ref(mine))
    return mine
def run_out():
    return memory(99000)
RunOut = torch.OutOfMemoryError
"""


pytestmark = pytest.mark.kernel(gpu=True)


def begin(kernel, *more):
    for source in (START, *more, "gc.freeze()"):  # what is there now is no garbage: collecting is quick
        ran = kernel.run(source)
        assert ran.status == "ok", ran.reply


def alive(kernel):
    """How many of the objects that were made are still held, after the cell and its traceback."""
    return kernel.value("sum(one() is not None for one in held)")


def allocated_mb(kernel):
    return kernel.value("__import__('torch').cuda.memory_allocated()") / MB


# What fails, as a function without arguments called `fails`; each holds two objects at least.
FAILING = {
    "nested functions": """
def fails():
    mine = memory(2)
    def inner(x=mine):
        yours = memory(2)
        return mine, x, yours, run_out()
    inner()
""",
    "generators": """
def steps():
    mine = memory(2)
    yield 1
    yield mine, run_out()
def fails():
    mine = memory(2)
    return [x for x in steps()], mine
""",
    "a chain": """
def inner():
    mine = memory(2)
    return mine, run_out()
def fails():
    mine = memory(2)
    try:
        inner()
    except Exception as error:
        raise ValueError('the epoch failed', 2) from error
""",
    "while it is handled": """
def inner():
    mine = memory(2)
    return mine, run_out()
def fails():
    mine = memory(2)
    try:
        inner()
    except Exception:
        cleaning = memory(2)
        cleaning.no_such_name = {}['a']
""",
    "an interrupt in the clean-up": """
def inner():
    mine = memory(2)
    return mine, run_out()
def fails():
    mine = memory(2)
    try:
        inner()
    finally:
        raise KeyboardInterrupt
""",
}

CALLS = {
    "gpu_mem_restore": "gpu_mem_restore(fails)()",
    "ipython_tb_clear_frames": "ipython_tb_clear_frames(fails)()",
    "gpu_mem_restore_ctx": "with gpu_mem_restore_ctx():\n    fails()",
    "ipython_tb_clear_frames_ctx": "with ipython_tb_clear_frames_ctx():\n    fails()",
    "get_ref_free_exc_info": "try:\n    fails()\nexcept BaseException:\n    get_ref_free_exc_info()\n    raise",
}


@pytest.mark.parametrize("mode", ["Plain", "Context", "Verbose", "Minimal"])
def test_memory_is_back(kernel, mode):
    """However a call fails and however the shell shows it: no object of the call is left after the cell."""
    begin(kernel, f"%xmode {mode}")
    for name, source in FAILING.items():
        kernel.run(source)
        assert kernel.run("fails()").status == "error"
        assert alive(kernel), f"{name}: nothing is held without us"
        kernel.run("1 / 0")  # IPython forgets the last error
        kernel.run("gc.collect(); held.clear()")
        for call, cell in CALLS.items():
            ran = kernel.run(cell)
            assert ran.status == "error"
            assert kernel.value("len(held)") >= 2
            assert alive(kernel) == 0, (name, call)
            kernel.run("held.clear()")


def test_the_traceback_is_shown(kernel):
    """The notebook shows the failing line of every frame, as without us, and `%debug` its place."""
    begin(kernel, FAILING["a chain"])
    ran = kernel.run("gpu_mem_restore(fails)()")
    shown = "\n".join(ran.reply["traceback"])
    for word in ("run_out", "inner", "RunOut", "CUDA out of memory", "the epoch failed", "direct cause"):
        assert word in shown
    last = "__import__('sys').last_value.__cause__.__traceback__.tb_next"
    assert kernel.value(f"{last}.tb_frame.f_code.co_name") == "inner"
    assert kernel.value(f"{last}.tb_lineno") == 3  # the shell strips the empty line before


def test_never(kernel):
    """With "0" the debugger sees every value; without a reason too; the variable is read per call."""
    begin(kernel, FAILING["a chain"], "import os\nos.environ['FASTAI_TB_CLEAR_FRAMES'] = '0'")
    kernel.run("gpu_mem_restore(fails)()")
    inner = "__import__('sys').last_value.__cause__.__traceback__.tb_next.tb_frame"
    assert kernel.value(f"len({inner}.f_locals['mine'])")
    kernel.run("os.environ['IPYGPULOGGER_TB_CLEAR_FRAMES'] = '1'; held.clear()")
    kernel.run("gpu_mem_restore(fails)()")
    assert alive(kernel) == 0


def test_where_am_i(kernel):
    """In a kernel, also one whose environment does not say so, it is True; in what that starts, False."""
    begin(kernel)
    for environment in ("", "import os; os.environ.pop('JPY_PARENT_PID', None); os.environ['_'] = 'code'"):
        kernel.run(environment)
        assert kernel.run("(is_in_ipython(), IS_IN_IPYTHON, is_in_colab(), IS_IN_COLAB)").result == (
            "(True, True, False, False)"
        )
    kernel.run("os.environ['JPY_PARENT_PID'] = '1'; os.environ['_'] = 'jupyter-notebook'")
    ask = "import IPython; from ipygpulogger.utils.ipython import is_in_ipython as ask; print(ask())"
    ran = kernel.run(f"print(subprocess.check_output([sys.executable, '-c', {ask!r}]))")
    assert ran.stdout == "b'False\\n'\n"


# -- GPU memory ------------------------------------------------------------------------------------

ON_GPU = """
def fails():
    mine = memory(1024)
    return step(mine)
def step(x):
    act = memory(1024)
    return x, act, run_out()
"""


@TORCH
@pytest.mark.parametrize("extension", [None, "text", "rich"])
def test_two_gigabytes(kernel, gpu, extension):
    """A decorated function that fails with OOM gives its 2 GB back, to the device too; without it they stay."""
    load = [f"%load_ext ipygpulogger\n%gpulog start report={extension}"] if extension else []
    begin(kernel, START_ON_GPU, *load, ON_GPU, "torch.cuda.synchronize(); kept = memory(100)")
    pid = kernel.value("__import__('os').getpid()")
    before = gpu.dev[0].mine(pid).used
    kernel.run("fails()")
    assert allocated_mb(kernel) == 2148
    kernel.run("1 / 0")
    kernel.run("gc.collect(); torch.cuda.empty_cache(); held.clear()")
    assert gpu.dev[0].mine(pid).used == before
    for call, cell in CALLS.items():
        ran = kernel.run(cell)
        assert ran.reply["ename"] == "OutOfMemoryError"
        assert "Tried to allocate 96.68 GiB" in ran.reply["evalue"]
        assert allocated_mb(kernel) == 100, call
        if call != "get_ref_free_exc_info":  # it returns what `sys.exc_info` does, and no more
            assert gpu.dev[0].mine(pid).used == before, call
    assert kernel.run("kept.numel()").result == str(100 * MB)


@TORCH
def test_the_card(kernel):
    """What the report says of an out-of-memory cell is right: no traceback holds anything any more."""
    load = "%load_ext ipygpulogger\n%gpulog start report=text"
    begin(kernel, START_ON_GPU, load, ON_GPU, "kept = memory(100)")
    ran = kernel.run("fails()")
    assert "last traceback: step.act 1024 MB" in ran.stdout
    assert "hidden: the last traceback 2048 MB" in ran.stdout
    kernel.run("1 / 0")
    ran = kernel.run("gpu_mem_restore(fails)()")
    assert "failed: OutOfMemoryError" in ran.stdout
    # 99000 MB: the frames are cleared that would tell it exactly, so that it is said as torch does.
    assert "Out of memory on cuda:0: asked 96.68 GiB" in ran.stdout
    assert "held by: kept 100 MB" in ran.stdout
    assert "traceback" not in ran.stdout
    assert "%gpulog free" not in ran.stdout
    assert kernel.value("get_ipython().user_ns['il'].record.out_of_memory.traceback_bytes") == 0
    ran = kernel.run("%gpulog free")
    assert ran.stdout.startswith("nothing hidden: no array was in Out or in a traceback\n")


@TORCH
def test_a_failed_assert(kernel, gpu):
    """The user reads what to do; once, and the exception is CUDA's."""
    begin(kernel, START_ON_GPU, "def fails():\n    act = memory(1024)\n    return act[:1].cpu()")
    kernel.run("torch.cuda.synchronize()")
    gpu.fault("cudaStreamSynchronize", 710)
    ran = kernel.run("gpu_mem_restore(gpu_mem_restore(fails))()")
    gpu.clear()
    assert "device-side assert triggered" in ran.reply["evalue"]
    assert ran.stderr.count("you must restart the kernel to continue") == 1
    assert allocated_mb(kernel) == 0
