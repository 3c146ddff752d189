"""The original's own promises of `data` (seed-contract 1.1), each quoted beside what holds here."""

import subprocess
import sys

from ipygpulogger import Data, IPyGPULogger


def test_data_is_the_seeds(shell):
    """ "6 ints in MB, `time_delta` float seconds" (C7); "holds the LAST FINISHED cell; the running cell does not touch it"."""
    text = (
        "Data(gen_mem_used_delta=0, gen_mem_peaked=0, gen_mem_used=2161, gpu_mem_used_delta=0, "
        "gpu_mem_peaked=0, gpu_mem_used=1962, time_delta=0.0048329830169677734)"
    )
    assert repr(Data(0, 0, 2161, 0, 0, 1962, 0.0048329830169677734)) == text
    il = IPyGPULogger(report="none").start()
    shell.user_ns["il"] = il
    shell.run_cell("kept = b'x' * (32 << 20)", store_history=True)
    before = il.data
    assert [type(value) for value in before] == [int] * 6 + [float]
    shell.run_cell("more = b'x' * (64 << 20); seen = il.data", store_history=True)
    assert shell.user_ns["seen"] == before
    assert before.gen_mem_used_delta in (31, 32, 33)
    il.stop()


def test_outside_ipython_and_without_a_gpu(driverless_env):
    """ "outside IPython the constructor dies with AttributeError", "CPU-only: AssertionError": one sentence, and zeros."""
    program = (
        "import ipygpulogger\n"
        "try: ipygpulogger.IPyGPULogger()\n"
        "except RuntimeError as error: print(error)\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "il = ipygpulogger.IPyGPULogger(report='none').start(); shell.run_cell('x = 1'); print(il.data[3:6])"
    )
    said = subprocess.check_output(
        [sys.executable, "-c", program], text=True, env=driverless_env
    ).splitlines()
    assert said == [
        "IPyGPULogger works inside IPython; outside it, measure a block of code with ipygpulogger.measure.",
        "(0, 0, 0)",
    ]
