"""Two workers of a DataLoader with 200 MB each: both are counted, each peak is the worker's own, the sum holds."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not Path("/proc/self/smaps_rollup").exists(), reason="this kernel does not tell of children"
    ),
]

PROGRAM = r"""
import mmap, os, re, sys
import torch
from ipygpulogger import measure
from ipygpulogger.render import text

MB = 2**20
PLAN = [(0, 0), (0, 0), (200, 0), (200, 0), (0, 150), (0, 60)]  # what each item keeps, and needs for a moment


def own_bytes(how):
    "What this process has for itself: after a fork its private pages, else all that is resident."
    sizes = dict(re.findall(r"^(\w+): *(\d+) kB", open("/proc/self/smaps_rollup").read(), re.M))
    names = ["Private_Clean", "Private_Dirty"] if how == "fork" else ["Rss"]
    return 1024 * sum(int(sizes[name]) for name in names)


def block(size_mb):
    memory = mmap.mmap(-1, size_mb * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:: mmap.PAGESIZE] = b"x" * (size_mb * MB // mmap.PAGESIZE)
    return memory


class Items(torch.utils.data.Dataset):
    "Says the worker's pid, and what it had at the worst moment of this item and at its end."

    def __init__(self, how, gates):
        self.how, self.gates, self.kept = how, gates, []

    def __len__(self):
        return len(PLAN)

    def __getitem__(self, index):
        self.gates[index].wait()
        keep_mb, passing_mb = PLAN[index]
        if keep_mb:
            self.kept.append(block(keep_mb))
        passing = block(passing_mb) if passing_mb else None
        most = own_bytes(self.how)
        if passing is not None:
            passing.close()
        return torch.tensor([os.getpid(), most, own_bytes(self.how)])


def check(how, m, truth):
    children = m.last.children
    print(text.report(m.last), children.ended, children.largest)
    assert children.count == 2 + (how == "spawn"), "and the resource tracker"
    named = {child.pid: child for child in children.largest}
    for pid, most, last in truth:
        child = named[pid]
        print(how, child.name, (child.peak.lo_bytes - most) / MB, child.peak, (child.after_bytes - last) / MB)
        assert abs(child.peak.lo_bytes - most) < 2 * MB
        assert most < child.peak.hi_bytes + 2 * MB
        assert abs(child.after_bytes - last) < 2 * MB
    assert children.peak.lo_bytes > sum(last for _, _, last in truth) - 4 * MB
    assert children.peak.hi_bytes > sum(most for _, most, _ in truth) - 4 * MB
    return named


def run(how):
    gates = [torch.multiprocessing.get_context(how).Event() for _ in PLAN]
    loader = torch.utils.data.DataLoader(
        Items(how, gates), batch_size=1, num_workers=2, multiprocessing_context=how
    )
    with measure("first") as first:
        batches = iter(loader)
        for gate in gates[:4]:
            gate.set()
        told = [next(batches)[0].tolist() for _ in range(4)]
    with measure("rest") as rest:
        for gate in gates[4:]:
            gate.set()
        told += [next(batches)[0].tolist() for _ in range(2)]
    check(how, first, told[2:4])
    for child in check(how, rest, told[4:]).values():
        assert child.peak.quality == "exact"
    del batches, loader
    for worker in torch.multiprocessing.active_children():
        worker.join()


if __name__ == "__main__":
    run("fork")
    run("spawn")
"""


def test_two_workers_of_a_dataloader(kernel_env, tmp_path):
    """Forked and spawned ones: count 2; what each needed to within 2 MB; bounds of the sum that contain the truth."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program], env=kernel_env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
