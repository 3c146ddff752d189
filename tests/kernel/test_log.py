"""The log and the saved notebook of a real kernel: killed in the middle, executed in a batch."""

import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

from ipygpulogger import History

START = "from ipygpulogger import IPyGPULogger; il = IPyGPULogger(report={report!r}, log={log!r}, log_source=True).start()"


def test_a_killed_kernel_loses_the_running_cell_alone(kernel, tmp_path):
    """SIGKILL in the middle of cell 30: the 29 before it are there, whole, each with its own figures."""
    path = tmp_path / "run.jsonl"
    kernel.run(START.format(report="none", log=str(path)), silent=True)
    pid = kernel.value("__import__('os').getpid()")
    for i in range(29):
        kernel.run(f"x{i} = b'x' * ({i} << 20)" if i % 5 else "1 / 0", cell_id=f"cell {i}")
    kept = kernel.value("il.history.to_dicts()")
    asked = kernel.send("print('under way', flush=True); __import__('time').sleep(600)")
    kernel.wait_for_print(asked, "under way")
    os.kill(pid, signal.SIGKILL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # not even half a line
        records = History.load(path)
    assert json.loads(json.dumps(records.to_dicts())) == kept
    assert [record.cell_id for record in records] == [f"cell {i}" for i in range(29)]
    assert [record.status for record in records] == ["ok" if i % 5 else "error" for i in range(29)]


def test_a_kernel_killed_while_it_writes(driverless_env, tmp_path):
    """SIGKILL at any moment of a thousand records: those told as written are there, and the next run goes on."""
    path = tmp_path / "run.jsonl"
    program = (
        "import sys; sys.path.insert(0, sys.argv[2]); from made import plain; from ipygpulogger.storage.log import Log\n"
        "log = Log(sys.argv[1])\n"
        "for i in range(100_000): log.append(plain(i)); print(i, flush=True)"
    )
    written = []
    for _ in range(5):
        command = [sys.executable, "-c", program, str(path), str(Path(__file__).parents[1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=driverless_env) as process:
            for _ in range(200):
                told = int(process.stdout.readline())
            process.kill()
            rest = [line for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        written.append(int((rest or [told])[-1]))
    with warnings.catch_warnings():  # a line that the kill cut short is left out, and said to be
        warnings.filterwarnings("ignore", message=".*cut short")
        sizes = [record.gen.after_bytes for record in History.load(path)]
    for last in written:
        run = list(range(last + 1))
        assert sizes[: last + 1] == run
        sizes = sizes[last + 1 :]
        if sizes and sizes[0] == last + 1:  # written, but no longer told
            sizes = sizes[1:]
    assert sizes == []
