"""Cells that run out of memory, and `%gpulog free`, in a real kernel on the simulated machine."""

import re
from contextlib import contextmanager

import pytest
from memory import MB

START = """
%load_ext ipygpulogger
%gpulog start report=text
import torch
from types import SimpleNamespace as Small
def gpu(size_mb):
    return torch.empty(int(size_mb * 2**20), dtype=torch.uint8, device='cuda')
class Box:
    def __init__(self, *values):
        self.values = values
"""
# The device has 16384 MB. Sizes below leave room for the context of the tests' own process, and do without it.


BEGIN = [START, "torch.cuda.synchronize()", "__import__('gc').freeze(); _begun = set(globals())"]
KERNEL = {"gpu": True, "env": {"PYTORCH_CUDA_ALLOC_CONF": None}, "begin": BEGIN}
pytestmark = [pytest.mark.torch, pytest.mark.kernel(**KERNEL)]


@contextmanager
def cleared(kernel):
    """Afterwards there is no name and no tensor more; the next test has the same kernel."""
    yield
    new = "[name for name in globals() if name[0] != '_' and name not in _begun]"
    kernel.run(f"for _name in {new}:\n    del globals()[_name]")
    kernel.run("%gpulog free")
    assert allocated_mb(kernel) == 0


def theirs_mb(gpu):
    """What the test process itself holds on the device: a neighbour of the kernel."""
    row = gpu.dev[0].mine()
    return row.used // MB if row else 0


def kernels_mb(gpu, kernel):
    """What the driver says that the kernel holds: the truth."""
    return gpu.dev[0].mine(int(kernel.pid)).used // MB


def allocated_mb(kernel):
    return kernel.value("__import__('torch').cuda.memory_allocated()") / MB


def card(ran):
    """The card's lines, with their indentation."""
    return ran.stdout[ran.stdout.index("Out of memory on") :].splitlines()


def advice(ran):
    return next(line for line in card(ran) if line.startswith("  -> "))[5:]


DEATH = """
def step(n):
    act = gpu(2000)
    return act, gpu(n)
"""


def test_a_death_in_a_function(kernel, gpu):
    """The card names the variable that holds the most and the frame that still does; free gives it back."""
    gpu.dev[0].add_process(4242, 1000 * MB)
    kernel.run("x, small = gpu(6000), __import__('torch').ones(1, device='cuda')")
    out = f"Out[{kernel.value('get_ipython().execution_count')}]"
    kernel.run("Box(gpu(500))")
    ran = kernel.run(DEATH + "step(9000)")
    first, last, second, held, hidden = card(ran)[:5]
    free_mb = kernel.value("__import__('torch').cuda.mem_get_info()[0]") // MB
    assert first == f"Out of memory on cuda:0: asked 8.79 GiB, free {free_mb} MB"
    neighbours_mb = 1000 + theirs_mb(gpu)
    assert second == f"  live 8500 MB, cached 2 MB, fragmented 2 MB, other processes {neighbours_mb} MB"
    assert held == f"  held by: x 6000 MB, last traceback: step.act 2000 MB, {out} 500 MB"
    assert hidden == "  hidden: the last traceback 2000 MB, Out 500 MB"
    assert last.startswith("  -> ")
    assert "too much were asked for" in last
    allocated, used = allocated_mb(kernel), kernels_mb(gpu, kernel)
    ran = kernel.run("%gpulog free")
    assert ran.stdout.startswith(f"dropped: last traceback (step.act 2000 MB), {out} 500 MB\n"), ran.stdout
    assert "came back: cuda:0 2500 MB (the device 2500 MB), RAM " in ran.stdout
    assert allocated - allocated_mb(kernel) == pytest.approx(2500, rel=0.01)
    assert used - kernels_mb(gpu, kernel) == pytest.approx(2500, rel=0.01)
    assert kernel.run("x.numel()").result == str(6000 * MB)


# -- the one next step, taken ----------------------------------------------------------------------


def test_advice_free(kernel):
    """Where `Out` holds what is missing: free, run again, and it fits."""
    kernel.run("Box(gpu(6000))")
    ran = kernel.run("y = gpu(10000)")
    out = re.search(r"Out\[\d+\]", ran.stdout)[0]
    assert advice(ran) == f"`%gpulog free` gives 6000 MB back ({out}). Then run the cell again: it fits."
    kernel.run("%gpulog free")
    assert kernel.run("y = gpu(10000)").status == "ok"


def test_pieces_are_named_before_the_cell_is_run_again(kernel):
    """What the cell itself cuts up it would cut up again, though there is room once the error has left."""
    told = advice(kernel.run("a = gpu(12000); del a\n[gpu(100), gpu(11950)]"))
    assert re.search(r"expandable_segments:True` before .*: 1(1899|1900) MB lie unused in pieces", told)


def test_advice_other_processes(kernel, gpu):
    """Where without them the cell would have run, it does."""
    neighbour = gpu.dev[0].add_process(4242, 9000 * MB)
    ran = kernel.run("y = gpu(10000)")
    assert f"without their {9000 + theirs_mb(gpu)} MB it would have fit." in advice(ran)
    neighbour.kind = neighbour.used = 0
    assert kernel.run("y = gpu(10000)").status == "ok"


def test_advice_limit(kernel):
    """The process's own limit is named; without it the cell runs."""
    kernel.run("torch.cuda.set_per_process_memory_fraction(0.25)")
    ran = kernel.run("y = gpu(5000)")
    assert "Raise the limit that this process set itself" in advice(ran)
    assert kernel.run("torch.cuda.set_per_process_memory_fraction(1.0); y = gpu(5000)").status == "ok"


def test_no_advice_to_free_what_is_needed_again(kernel):
    """What the failed cell's frames hold would be enough, but the cell makes it again."""
    kernel.run("x = gpu(6000)")
    ran = kernel.run(DEATH + "step(8500)")
    assert re.search(r"Use less at once: about \d+ MB too much were asked for\.$", advice(ran))


def test_no_advice_to_switch_on_what_is_on(kernel):
    """Nor is it repeated that memory lies in pieces."""
    kernel.run("import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'")
    told = advice(kernel.run("a = gpu(12000); del a; b = gpu(100); c = gpu(11950)"))
    kernel.run("del os.environ['PYTORCH_CUDA_ALLOC_CONF']")
    assert "Restart" not in told


CYCLE = """
class Kept: pass
def cyclic(n):
    act, kept = gpu(n), Kept()
    try:
        gpu(20000)
    except RuntimeError as error:
        kept.error = error
        raise
"""


def test_the_second_failure_in_a_row(kernel, gpu):
    """What the first failed call held is counted neither as used nor as missing, though it is in a cycle."""
    kernel.run(CYCLE)
    kernel.run("from ipygpulogger.runtime import collector; collector.cost_s = lambda: 9.0")
    kernel.run("cyclic(8000)")
    ran = kernel.run("cyclic(6000)")
    assert "live 14000 MB" in ran.stdout  # at the error
    assert "waits for the garbage collector" not in ran.stdout
    assert allocated_mb(kernel) == 6000
    free_mb = kernel.value("__import__('torch').cuda.mem_get_info()[0]") // MB
    found = re.fullmatch(
        r"`%gpulog free` gives 6000 MB back \(the failed call's cyclic\.act\). Use less at once:"
        r" about (\d+) MB too much were asked for\.",
        advice(ran),
    )
    assert abs(int(found[1]) - (20000 - free_mb)) <= 11  # hundredths of a GiB, and on the safe side
    assert "came back: cuda:0 6000 MB" in kernel.run("%gpulog free").stdout


BATCH = {
    "an argument": "def step(batch_size):\n    a, b = gpu({a} * batch_size), gpu({b} * batch_size)\n"
    "    return gpu({c} * batch_size)\nstep({n})",
    "a global": "BS = {n}\ndef step():\n    a, b = gpu({a} * BS), gpu({b} * BS)\n    return gpu({c} * BS)\nstep()",
    "an attribute": "args = Small(); args.train_batch_size = {n}\ndef step(args):\n    n = args.train_batch_size\n"
    "    a, b = gpu({a} * n), gpu({b} * n)\n    return gpu({c} * n)\nstep(args)",
    "the cell's own": "bs = {n}\na = gpu({a} * bs); b = gpu({b} * bs); c = gpu({c} * bs)",
}


@pytest.mark.parametrize("how", BATCH)
@pytest.mark.parametrize(
    ("fixed", "parts", "batch"), [(2000, (30, 20, 40), 200), (100, (1, 1, 150), 900), (9000, (7, 1, 1), 720)]
)
@pytest.mark.kernel(**KERNEL, shared=True, around=cleared)
def test_advice_batch(kernel, how, fixed, parts, batch):
    """The number it names fits, and two more do not; they fail at the last of three allocations."""
    kernel.run(f"x = gpu({fixed})")
    a, b, c = parts
    source = BATCH[how].replace("{a}", str(a)).replace("{b}", str(b)).replace("{c}", str(c))
    ran = kernel.run(source.replace("{n}", str(batch)))
    fits, of = map(int, re.search(r"smaller batch: \D*(\d+)`? instead of (\d+)", advice(ran)).groups())
    assert of == batch
    assert ("`del` what" in advice(ran)) == (how == "the cell's own")
    kernel.run("%gpulog free")
    kernel.run("a = b = c = None")
    assert kernel.run(source.replace("{n}", str(fits))).status == "ok"
    kernel.run("a = b = c = None")
    ran = kernel.run(source.replace("{n}", str(max(fits + 2, round(fits * 1.004)))))
    assert ran.status == "error"


# -- other ways to die -----------------------------------------------------------------------------


@pytest.mark.parametrize("report", ["text", "rich", "none", "stopped"])
def test_it_pins_nothing(kernel, report):
    """Memory comes back exactly when it does without us, and the debugger's traceback is whole."""
    kernel.run("il.stop()" if report == "stopped" else f"%gpulog start report={report}")
    kernel.run(DEATH + "step(30000)")
    inspect = "__import__('sys').last_traceback.tb_next.tb_next.tb_frame.f_locals['act'].numel()"
    assert kernel.value(inspect) == 2000 * MB
    assert allocated_mb(kernel) == 2000
    kernel.run("1")
    assert allocated_mb(kernel) == 2000
    kernel.run(
        "import sys\nfor name in ('last_type', 'last_value', 'last_traceback', 'last_exc'):\n"
        "    sys.__dict__.pop(name, None)\nget_ipython().InteractiveTB.tb = None\nimport gc; gc.collect()"
    )
    assert allocated_mb(kernel) == 0
