"""What each rank of tests/cluster/test_torchrun.py runs; rank 0 prints what it gathered, one JSON a line."""

import json
import os
import signal
import sys
import time
import warnings

import torch
import torch.distributed as dist

from ipygpulogger import measure
from ipygpulogger.cluster import gather

MB = 2**20


def tell(name, group, **more):
    """Print a group: of each record its rank, its peak in MB and that of its first device; who is missing."""
    if group is None:
        return
    rows = [(r.rank, r.gen.peaked_bytes / MB, r.gpus[0].peaked_bytes / MB if r.gpus else None) for r in group]
    told = {"name": name, "rows": rows, "missing": group.missing, "device": torch.cuda.is_available()}
    told |= {
        "label": group.label,
        "hosts": sorted({r.host for r in group}),
        "pids": len({r.pid for r in group}),
    }
    print(json.dumps(told | more), flush=True)


def work(rank):
    """A transient of 100 MB times the rank plus one, in general RAM and on the device if there is one."""
    size = 100 * MB * (rank + 1)
    with measure("work") as m:
        block = bytearray(b"x") * size
        if torch.cuda.is_available():
            on_device = torch.empty(size, dtype=torch.uint8, device="cuda:0")
            del on_device
        del block
    return m


def torchrun(rank):
    """What a job that loses no rank shows, in one start."""
    work(rank)  # the first use of the device
    group = gather(work(rank))
    assert (group is None) == (rank != 0)
    tell("transients", group)
    for _ in range(2):  # one rank late, one early
        time.sleep(0.2 * (rank == 1))
        tell("again", gather(work(rank).last))
    tell("one not measured", gather(None if rank == 1 else work(rank), label="work"))
    with measure("other") as m:
        pass
    tell("another label", gather(m, label="named"))
    try:
        gather(3)
    except TypeError as error:
        tell_error(rank, error)
    dist.barrier()
    dist.destroy_process_group()
    try:
        gather(m)
    except RuntimeError as error:
        tell_error(rank, error)


def tell_error(rank, error):
    if rank == 0:
        print(json.dumps({"name": type(error).__name__, "error": str(error)}), flush=True)


def killed(rank):
    """Rank 1 dies before it sends anything; then rank 0, which has the store, so that rank 2 is alone."""
    m = work(rank)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began_s = time.monotonic()
    group = gather(m, timeout_s=1.5)
    tell("killed", group, time_s=time.monotonic() - began_s)
    tell("and next", gather(m, timeout_s=1.5))
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.read(1)  # rank 0 is gone
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        began_s = time.monotonic()
        answers = [gather(m) for _ in range(3)]
        time_s = time.monotonic() - began_s
    said = [str(warning.message) for warning in warned]
    print(json.dumps({"answers": answers, "time_s": time_s, "said": said}), flush=True)


def forked(name, size=3):
    """Start the ranks of a job by forking; tell how those ended that were killed, and let the others know."""
    reads, writes = os.pipe()
    children = []
    for rank in range(size):
        child = os.fork()
        if not child:
            os.dup2(reads, 0)
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
            run(name)
            os._exit(0)
        children.append(child)
    killed = [-os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children[:2]]
    os.write(writes, b"!")
    left = os.waitstatus_to_exitcode(os.waitpid(children[2], 0)[1])
    print(json.dumps({"killed": killed, "left": left}), flush=True)


def run(name):
    dist.init_process_group("gloo")
    globals()[name](dist.get_rank())


if __name__ == "__main__":
    forked(sys.argv[1]) if "RANK" not in os.environ else run(sys.argv[1])
