"""Cells that run out of memory under --peak, and `%gpulog snapshot`, in a real kernel."""

import pickle
import re

import pytest
from memory import MB

START = """
%load_ext ipygpulogger
%gpulog start report=text
import torch
def gpu(size_mb, device="cuda"):
    return torch.empty(size_mb << 20, dtype=torch.uint8, device=device)
"""
FAILS = """%%gpulog --peak
act = gpu(2000)
more = [gpu(100) for _ in range(3)]
gpu(40000)
"""
THREAD = """%%gpulog --peak
import threading
def fails():
    try:
        gpu(70000, "cuda:1")
    except torch.OutOfMemoryError:
        pass
other = gpu(50, "cuda:1")
thread = threading.Thread(target=fails)
thread.start(); thread.join()
act = gpu(300)
gpu(40000)
"""

pytestmark = [
    pytest.mark.torch,
    pytest.mark.kernel(gpu=True, env={"PYTORCH_CUDA_ALLOC_CONF": None}),
]


def alive(kernel):
    return kernel.value(
        "[(row.device, row.name, row.size_bytes, row.blocks) for row in il.record.out_of_memory.alive]"
    )


def test_the_card_has_what_was_alive(kernel):
    """Not what the peak's table has, but what there was when the allocation failed, of the device that failed."""
    assert kernel.run(START).status == "ok"
    ran = kernel.run(FAILS)
    card = ran.stdout[ran.stdout.index("Out of memory on cuda:0") :]
    line = r"In \[2\]:{} → gpu, In \[1\]:5"
    rows = (
        rf"variables  act +{line.format(2)}  2000 MB\n *variables  more +{line.format(3)} +300 MB  3 blocks"
    )
    assert re.search(rf"  alive then: variables 2300 MB\n    {rows}", card)
    assert re.search(rf"At the peak, .*\n  {rows}", card)  # it was the same
    assert alive(kernel) == [["cuda:0", "act", 2000 * MB, 1], ["cuda:0", "more", 300 * MB, 3]]
    kernel.run("del act, more\n%gpulog free")
    kernel.run(THREAD)
    assert alive(kernel) == [["cuda:0", "act", 300 * MB, 1]]
    assert not kernel.value("torch._C._cuda_isHistoryEnabled()")
    kernel.run("%gpulog start peak=True\ndel act\n%gpulog free")
    again = kernel.run(FAILS.partition("\n")[2]).stdout
    assert re.search(r"alive then: variables 2300 MB\n    variables  act ", again)


def test_the_file_is_torchs_own(kernel, tmp_path):
    """Its blocks alone, or within a recorded cell the events so far; the recording goes on."""
    kernel.run(START)
    kernel.run("x = gpu(20)")
    path = tmp_path / "memory.pickle"
    said = kernel.run(f"%gpulog snapshot {path}").stdout
    assert said.startswith(f"1 block written to {path}, for https://pytorch.org/memory_viz.\n")
    found = pickle.loads(path.read_bytes())
    torchs = kernel.value("sorted(torch.cuda.memory._snapshot())")
    assert sorted(found) == torchs
    said = kernel.run(f"%%gpulog --peak\ny = gpu(30)\n%gpulog snapshot {path}\nz = gpu(40)").stdout
    assert "2 blocks and " in said
    events = [event for trace in pickle.loads(path.read_bytes())["device_traces"] for event in trace]
    assert [event["size"] for event in events if event["action"] == "alloc"] == [30 * MB]
    rows = "sorted((row.name, row.size_bytes) for row in il.record.at_peak if row.device != 'cpu')"
    assert kernel.value(rows) == [["x", 20 * MB], ["y", 30 * MB], ["z", 40 * MB]]
    refused = kernel.run("%gpulog snapshot no/such/folder/x.pickle")
    assert "%gpulog snapshot: cannot write no/such/folder/x.pickle" in refused.stderr


def written(kernel, tmp_path, *words):
    """What the command says after the path, and the actions of the events in the file."""
    path = tmp_path / "memory.pickle"
    path.unlink(missing_ok=True)
    ran = kernel.run(f"%gpulog snapshot {' '.join(words)} {path}")
    if not path.exists():
        return ran.stderr.strip(), []
    found = pickle.loads(path.read_bytes())
    assert sorted(found) == kernel.value("sorted(torch.cuda.memory._snapshot())")
    events = [event for trace in found["device_traces"] for event in trace]
    return ran.stdout.partition("\nRAM")[0].strip().replace(str(path), "PATH"), [
        (event["action"], event["size"], bool(event.get("frames")))
        for event in events
        if event["action"] != "snapshot"
    ]


def failed_events(kernel, tmp_path, where):
    """The sizes of the allocations in the file, which is of the failed cell or block, and says so."""
    said, events = written(kernel, tmp_path, "--failed")
    assert said.startswith(f"The out-of-memory error in {where}: "), said
    assert ("oom", 40000 * MB, True) in events
    return [size // MB for action, size, stack in events if action == "alloc" and stack]


def test_with_failed_it_is_of_the_failure(kernel, tmp_path):
    """Until the next failure or the end of the reports, whatever is allocated; without it, of the present."""
    kernel.run(START)
    number = kernel.value("get_ipython().execution_count")
    kernel.run(FAILS)
    kernel.run("del act, more\n%gpulog free\ny = gpu(30)")
    said, events = written(kernel, tmp_path)
    assert said == (
        "1 block written to PATH, for https://pytorch.org/memory_viz.\nThat is the present. The out-of-memory"
        f" error in In [{number}]: %gpulog snapshot --failed PATH"
    )
    assert not events
    kernel.run("gpu(40000)")  # not recorded
    assert failed_events(kernel, tmp_path, f"In [{number}]") == [2000, 100, 100, 100]
    kernel.run("%gpulog start peak=True")
    number = kernel.value("get_ipython().execution_count")
    assert kernel.run("try:\n    gpu(40000)\nexcept torch.OutOfMemoryError:\n    pass").status == "ok"
    assert failed_events(kernel, tmp_path, f"In [{number}]") == []
    kernel.run("%gpulog stop\n%gpulog start peak=False")
    assert written(kernel, tmp_path)[0].startswith("1 block written to PATH")
    refused = "--failed is for the last recorded cell in which a GPU ran out of memory, and there is none"
    assert refused in written(kernel, tmp_path, "--failed")[0]
