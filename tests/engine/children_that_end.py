"""Children that come, need memory and go within a scope; each says itself what it had at the worst moment.

Run as a program: ``CHILDREN_WERE_READ=a-new-file python children_that_end.py CASE``. It measures the case, and
checks what is told of each child and of all together: within 2 MB of the truth, or bounds that contain it, of
which the lower one is 90 % of the truth. A child whose parent has to read it lives until it was read.
"""

import concurrent.futures
import json
import mmap
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

MB = 2**20
NEAR_BYTES = 2 * MB
HELPERS_BYTES = 40 * MB  # of multiprocessing: the fork server, its resource tracker
BIG_MB = 150
READS = "CHILDREN_WERE_READ"  # names a file, one byte longer after each time that children were read


def block(size_mb):
    """Private memory of so many MB."""
    memory = mmap.mmap(-1, size_mb * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:: mmap.PAGESIZE] = b"x" * (size_mb * MB // mmap.PAGESIZE)
    return memory


def own_bytes(how):
    """Return what this process has for itself: after a fork its private pages, else all that is resident."""
    sizes = dict(re.findall(r"^(\w+): *(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE))
    names = ["Private_Clean", "Private_Dirty"] if "fork" in how else ["Rss"]
    return 1024 * sum(int(sizes[name]) for name in names)


def count_reads():
    """Write into a file how often this process completed a read of its children, which wait for that."""
    from ipygpulogger.engine.children import ChildPeaks

    descriptor = os.open(os.environ[READS], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    observe, ours = ChildPeaks.observe, os.getpid()

    def counted(*args, **kwargs):
        living = observe(*args, **kwargs)
        if os.getpid() == ours:
            os.write(descriptor, b".")
        return living

    ChildPeaks.observe = counted


def until_read(times=2):
    """Wait until the children were read so often again; of two reads one began after this."""
    path, late_s = Path(os.environ[READS]), time.monotonic() + 60
    enough = path.stat().st_size + times
    while path.stat().st_size < enough:
        assert time.monotonic() < late_s, "this child is never read"
        time.sleep(0.005)


def blip(how, size_mb, seen=False):
    """Need so much for a moment, and live until it was seen; return who did and what it had."""
    passing = block(size_mb)
    most_bytes = own_bytes(how)
    passing.close()
    if seen:
        until_read()
    return os.getpid(), most_bytes


def measures(how, sizes_mb, seen):
    """Need memory within measurements of this process's own, each of which resets its mark."""
    from ipygpulogger import measure

    most_bytes = 0
    for size_mb in sizes_mb:
        with measure() as m:
            most_bytes = max(most_bytes, blip(how, size_mb, seen)[1])
        assert abs(m.last.gen.peaked_bytes - size_mb * MB) < 3 * MB, m.last.gen
    return os.getpid(), most_bytes


def told(children, truth, *, exact=False):
    """Check what is told of each child, given what it had at most."""
    named = {}
    for child in children.largest:  # of one that called exec, the larger of both programs
        named[child.pid] = max(child, named.get(child.pid, child), key=lambda one: one.peak.lo_bytes)
    for pid, most_bytes in truth.items():
        peak = named[pid].peak
        print(pid, most_bytes / MB, peak, flush=True)
        assert 0.9 * most_bytes < peak.lo_bytes < most_bytes + NEAR_BYTES, (peak, most_bytes)
        assert not exact if peak.hi_bytes is None else peak.hi_bytes > most_bytes - NEAR_BYTES, (
            peak,
            most_bytes,
        )


def told_together(children, at_once_bytes, one_bytes, *, most_bytes=0, bounded=False):
    """Check what is told of all children: what they had at once lies in the bounds."""
    peak = children.peak
    print("together", at_once_bytes / MB, peak)
    assert 0.9 * one_bytes < peak.lo_bytes < (most_bytes or at_once_bytes) + HELPERS_BYTES, peak
    assert not bounded if peak.hi_bytes is None else peak.hi_bytes > at_once_bytes - 4 * NEAR_BYTES, peak


def beside_a_thread():
    """Let there be one more, as a kernel has them; from 3.12 on Python warns of forks then."""
    warnings.simplefilter("ignore")
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def pool(how, *, closed):
    """Two workers of a pool that begins in the scope, each with so much at once."""
    if not closed:
        beside_a_thread()
    with measure() as m, multiprocessing.get_context(how).Pool(2) as workers:
        truth = dict(workers.starmap(blip, [(how, BIG_MB, not (closed and how == "fork"))] * 2, chunksize=1))
        if closed:
            workers.close()
            workers.join()
    told(m.last.children, truth, exact=closed and how == "fork")
    told_together(m.last.children, sum(truth.values()), max(truth.values()), bounded=closed and how == "fork")
    assert m.last.children.ended >= 2


def rounds():
    """Pools that come one after the other in one scope: bounds of their sum contain the truth."""
    truth = {}
    with measure() as m:
        for _ in range(3):
            with concurrent.futures.ProcessPoolExecutor(
                2, mp_context=multiprocessing.get_context("fork")
            ) as workers:
                for one in [workers.submit(blip, "fork", BIG_MB) for _ in range(2)]:
                    pid, most_bytes = one.result()
                    truth[pid] = max(most_bytes, truth.get(pid, 0))
    told(m.last.children, truth, exact=True)
    two_bytes = 2 * max(truth.values())
    told_together(m.last.children, BIG_MB * MB, BIG_MB * MB, most_bytes=two_bytes, bounded=True)


class Items:
    """A dataset whose items each need much for a moment, and say what their worker had."""

    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 4

    def __getitem__(self, index):
        import torch

        return torch.tensor(blip(self.how, BIG_MB, self.how != "fork"))


def dataloader(how, *, cells, epochs=1, persistent=False):
    """Two workers, which come and go in each epoch unless they are persistent."""
    import torch

    loader = torch.utils.data.DataLoader(
        Items(how), batch_size=1, num_workers=2, multiprocessing_context=how, persistent_workers=persistent
    )
    for _ in range(cells):
        truth = {}
        with measure() as m:
            for batch in (batch for _ in range(epochs) for batch in loader):
                for pid, most_bytes in batch.tolist():
                    truth[pid] = max(most_bytes, truth.get(pid, 0))
        told(m.last.children, truth, exact=how == "fork")
        two_bytes = 2 * max(truth.values())
        told_together(
            m.last.children, 2 * BIG_MB * MB, BIG_MB * MB, most_bytes=two_bytes, bounded=how == "fork"
        )
    del loader


def program(size_mb, more=""):
    """The words that start a program which needs so much, says how much it had, and lives on for a while."""
    folder, name = Path(__file__).parent, Path(__file__).stem
    text = (
        f"import json, os, sys, time; sys.path.insert(0, {str(folder)!r}); from {name} import *;"
        f"print(json.dumps(blip('program', {size_mb}, True)), flush=True); {more}"
    )
    return [sys.executable, "-c", text]


def programs():
    """Each is read while it lives, however large an earlier one was."""
    for size_mb in (200, 120):
        with measure() as m:
            done = subprocess.run(program(size_mb), stdout=-1, check=True)
        told(m.last.children, dict([json.loads(done.stdout)]))


def execs_as_program():
    """A program that was large, and replaces itself by a small one that goes on."""
    small = [sys.executable, "-I", "-S", "-c", "input()"]
    with (
        measure() as m,
        subprocess.Popen(program(BIG_MB, f"os.execv({small[0]!r}, {small!r})"), stdin=-1, stdout=-1) as child,
    ):
        truth = dict([json.loads(child.stdout.readline())])
        while b"-S" not in Path(f"/proc/{child.pid}/cmdline").read_bytes():
            time.sleep(0.01)
        time.sleep(0.1)
        child.stdin.close()
        child.wait()
    told(m.last.children, truth)


def execs_in_a_fork():
    """A fork of ours that was large, was read, and becomes a small program."""
    reader, writer = os.pipe()
    small = [sys.executable, "-I", "-S", "-c", "input()"]
    theirs, ours = os.pipe()
    beside_a_thread()
    with measure() as m:
        pid = os.fork()
        if pid == 0:
            os.dup2(theirs, 0)
            os.close(ours)
            os.write(writer, json.dumps(blip("fork", BIG_MB, True)).encode())
            os.execv(small[0], small)
        truth = dict([json.loads(os.read(reader, 100))])
        while b"-S" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            time.sleep(0.001)
    told(m.last.children, truth)
    assert m.last.children.peak.lo_bytes > 0.9 * truth[pid]
    os.write(ours, b"\n")
    os.close(ours)
    os.waitpid(pid, 0)


def measuring_worker(how):
    """Its own measurements reset its mark; the largest came before a small one."""
    sizes_mb = [20, 199, 10]
    with measure() as m, multiprocessing.get_context(how).Pool(1) as workers:
        truth = dict([workers.apply(measures, (how, sizes_mb, how != "fork"))])
        workers.close()
        workers.join()
    told(m.last.children, truth, exact=how == "fork")
    with measure(), multiprocessing.get_context(how).Pool(1) as workers:  # and one that lives on
        workers.apply(os.getpid)
        for _ in range(2):
            with measure() as m:
                truth = dict([workers.apply(measures, (how, sizes_mb, how != "fork"))])
            told(m.last.children, truth, exact=how == "fork")
        with measure() as m:
            truth = dict([workers.apply(blip, (how, 30))])
        told(m.last.children, truth, exact=how == "fork")
    with multiprocessing.get_context(how).Pool(1) as workers:  # one that began while nothing was measured
        workers.apply(os.getpid)
        for _ in range(2):
            with measure() as m:
                truth = dict([workers.apply(measures, (how, sizes_mb, True))])
            told(m.last.children, truth)


def killed():
    """A worker that is killed from outside, after it lived for a while."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    # Where Python would warn of the next fork, no thread of ours reads the children of a single-threaded program.
    read = sys.version_info < (3, 12)
    with measure() as m:
        child = context.Process(target=lambda: (theirs.send(blip("fork", BIG_MB, read)), signal.pause()))
        child.start()
        truth = dict([ours.recv()])
        os.kill(child.pid, signal.SIGKILL)
        child.join()
    if not read:
        assert (m.last.children.ended, m.last.children.peak.hi_bytes) == (1, None)
        return
    told(m.last.children, truth)
    (one,) = (one for one in m.last.children.largest if one.pid in truth)
    assert one.peak.hi_bytes is m.last.children.peak.hi_bytes is None, "nobody knows what it did at its end"


def plain_forks():
    """As os.fork is used: `os._exit`, or the end of the program; very short lives too."""
    for way in ("_exit", "sys.exit"):
        for size_mb in (BIG_MB, 40, 8):
            reader, writer = os.pipe()
            with measure() as m:
                pid = os.fork()
                if pid == 0:
                    os.write(writer, json.dumps(blip("fork", size_mb)).encode())
                    os._exit(0) if way == "_exit" else sys.exit(0)
                os.waitpid(pid, 0)
            told_one(m.last.children, dict([json.loads(os.read(reader, 100))]))
            (one,) = m.last.children.largest
            assert one.name == Path("/proc/self/comm").read_text().strip()


def unlucky_moments():
    """A fork is one child also if it is looked at before it has a card, or has left its figures but goes on."""
    from ipygpulogger.sources.system import forked, linux

    children_of, read, parent = linux.children_of, linux.read, os.getpid()
    for late_s, on_s in ((0.3, 0.0), (0.3, 0.3), (0.0, 0.3)):
        figures, theirs = os.pipe()
        with measure() as m:
            linux.read = lambda path, late_s=late_s: (
                os.getpid() != parent and time.sleep(late_s),
                read(path),
            )[1]
            pid = os.fork()
            if pid == 0:
                linux.read = read
                figure = blip("fork", 40)
                forked.forks.leave()
                os.write(theirs, json.dumps(figure).encode())
                time.sleep(on_s)
                os._exit(0)
            linux.read = read
            truth = dict([json.loads(os.read(figures, 100))])
            linux.children_of = lambda _: ()  # the kernel may leave one out while another one ends
            with measure():
                pass
            linux.children_of = children_of
            with measure():
                pass
            os.waitpid(pid, 0)
        told_one(m.last.children, truth)
        assert m.last.children.ended == 1


def told_one(children, truth):
    """As `told`, where a few megabytes of copied pages are much beside the truth."""
    ((pid, most_bytes),) = truth.items()
    (one,) = (one for one in children.largest if one.pid == pid)
    print(pid, most_bytes / MB, one.peak)
    assert most_bytes - 8 * MB < one.peak.lo_bytes < most_bytes + NEAR_BYTES
    assert most_bytes - NEAR_BYTES < one.peak.hi_bytes < most_bytes + 25 * MB


CASES = {
    "fork pool": lambda: pool("fork", closed=True),
    "fork pool, terminated": lambda: pool("fork", closed=False),
    "spawn pool": lambda: pool("spawn", closed=True),
    "forkserver pool": lambda: pool("forkserver", closed=True),
    "fork pools in turn": rounds,
    "programs": programs,
    "a program that calls exec": execs_as_program,
    "a fork that calls exec": execs_in_a_fork,
    "a fork that measures": lambda: measuring_worker("fork"),
    "a spawned one that measures": lambda: measuring_worker("spawn"),
    "a fork that is killed": killed,
    "plain forks": plain_forks,
    "unlucky moments": unlucky_moments,
}
OF_TORCH = {
    "epochs in one cell": lambda: dataloader("fork", cells=1, epochs=3),
    "an epoch a cell": lambda: dataloader("fork", cells=3),
    "persistent workers": lambda: dataloader("fork", cells=3, persistent=True),
    "spawned workers": lambda: dataloader("spawn", cells=2),
}

if __name__ == "__main__":
    from ipygpulogger import measure
    from ipygpulogger.engine import children as engine

    engine.LARGEST = 100
    engine.WALK_S = 10  # no child is too large to look through
    kept = block(60)  # which the forked ones share
    count_reads()
    (CASES | OF_TORCH)[sys.argv[1]]()
    for left in multiprocessing.active_children():
        left.join(5)
