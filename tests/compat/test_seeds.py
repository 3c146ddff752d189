"""The original's own promises (seed-contract 1.1 and 1.6), each quoted beside what holds here.

Those of its siblings stand with the rooms that keep them: 1.2 and 1.5 in test_device*.py and
test_gpu_mem_trace*.py, 1.3 in test_tracebacks*.py, 1.4 in tests/callbacks, section 2 in test_experiment*.py.
"""

import re
import subprocess
import sys

import pytest

from ipygpulogger import Data, IPyGPULogger

HEAD = r"RAM: Consumed Peaked  Used Total in (\d+\.\d{3})s \((In \[\d+\])\)"
ROW = r"    ( {0,4}-?\d+)  ( {0,4}\d+)    ( {0,4}\d+) MB"


def reports(printed):
    """(seconds, label, the figures of row Gen) of each report that was printed."""
    found = re.findall(rf"^{HEAD}\nGen:{ROW}", printed, re.MULTILINE)
    assert len(found) == printed.count("RAM:")
    return [(float(seconds), label, *map(int, figures)) for seconds, label, *figures in found]


def test_data_is_the_seeds(shell):
    """ "6 ints in MB (`int(bytes/2**20)`), `time_delta` float seconds"; C7: its seven fields."""
    text = (
        "Data(gen_mem_used_delta=0, gen_mem_peaked=0, gen_mem_used=2161, gpu_mem_used_delta=0, "
        "gpu_mem_peaked=0, gpu_mem_used=1962, time_delta=0.0048329830169677734)"
    )
    assert repr(Data(0, 0, 2161, 0, 0, 1962, 0.0048329830169677734)) == text
    il = IPyGPULogger(report="none").start()
    shell.run_cell("x = 1", store_history=True)
    il.stop()
    assert [type(value) for value in il.data] == [int] * 6 + [float]


def test_data_is_of_the_last_finished_cell(shell):
    """ "`data` holds the LAST FINISHED cell; the running cell does not touch it"."""
    il = IPyGPULogger(report="none").start()
    shell.user_ns["il"] = il
    shell.run_cell("kept = b'x' * (32 << 20)", store_history=True)
    before = il.data
    shell.run_cell("more = b'x' * (64 << 20); seen = il.data", store_history=True)
    assert shell.user_ns["seen"] == before
    assert before.gen_mem_used_delta in (31, 32, 33)
    il.stop()


def test_long_and_compact(shell, capsys):
    """The seed's f-strings, long and compact, from real cells."""
    il = IPyGPULogger().start()
    capsys.readouterr()
    shell.run_cell("x = 1", store_history=True)
    assert len(reports(capsys.readouterr().out)) == 1
    il.compact = True
    shell.run_cell("x = 1", store_history=True)
    il.stop()
    line = r"Gen: -?\d+/\d+/\d+ MB.* \| \d+\.\d{3}s \| In \[\d+\] \(Consumed/Peaked/Used Total\)\n"
    assert re.fullmatch(line, capsys.readouterr().out)


def test_consumed_and_peaked(shell, capsys):
    """C11: "one rule everywhere: `peaked = peak - max(before, after)`, never negative"."""
    il = IPyGPULogger().start()
    capsys.readouterr()
    for code in ("kept = b'x' * (200 << 20)", "len(b'x' * (300 << 20))", "del kept"):
        shell.run_cell(code, store_history=True)
    il.stop()
    (_, _, *kept), (_, _, *blip), (_, _, *gone) = reports(capsys.readouterr().out)
    for (consumed, peaked, _), truth in ((kept, (200, 0)), (blip, (0, 300)), (gone, (-200, 0))):
        assert abs(consumed - truth[0]) <= 1
        assert abs(peaked - truth[1]) <= 1


def test_the_cell_with_start_prints_and_the_cell_with_stop_does_not(shell, capsys):
    """ "the cell containing start() DOES print a report"; "the cell containing stop() prints nothing"; C15."""
    shell.run_cell("from ipygpulogger import IPyGPULogger; il = IPyGPULogger().start()", store_history=True)
    assert len(reports(capsys.readouterr().out)) == 1
    shell.run_cell("il.stop()", store_history=True)
    shell.run_cell("x = 1", store_history=True)
    assert "RAM" not in capsys.readouterr().out


@pytest.mark.parametrize("code", ["", "   \n"])
def test_an_empty_cell(shell, capsys, code):
    """1.7: an empty cell "fires post_run_cell only (the originals then print ...)": here nothing."""
    il = IPyGPULogger().start()
    capsys.readouterr()
    shell.run_cell(code, store_history=True)
    il.stop()
    assert capsys.readouterr().out == ""


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
