"""Children that do as they are told, in a process of its own; each says itself what it has and had at most.

Run as a program: ``python child_programs.py SEED STEPS``. It starts children in every way, lets them allocate, free,
need memory for a moment and die, in any order, under scopes that nest and overlap, and checks every peak.
"""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
from multiprocessing.connection import Client, Listener

from children_that_end import MB, NEAR_BYTES, block, own_bytes

STEPS = ["take", "free", "blip", "blip", "open", "open", "close", "start", "end", "kill"]
WAYS = ["fork", "spawn", "forkserver", "program"]


def obey(pipe, how):
    """Do what the parent says, and answer with what we had at the worst moment of it, and have now."""
    kept = []
    pipe.send((own_bytes(how), own_bytes(how)))
    while True:
        what, size_mb = pipe.recv()
        if what == "end":
            return
        if what == "take":
            kept.append(block(size_mb))
        elif what == "free" and kept:
            kept.pop().close()
        elif what == "blip":
            passing = block(size_mb)
            top_bytes = own_bytes(how)
            passing.close()
        elif what == "child":
            subprocess.run([sys.executable, "-I", "-S", "-c", f"x = b'x' * ({size_mb} << 20)"], check=True)
        now_bytes = own_bytes(how)
        pipe.send((top_bytes if what == "blip" else now_bytes, now_bytes))


class Worker:
    """A child, and what it is known to have."""

    def __init__(self, how):
        self.how = how
        if how == "program":
            listener = Listener()
            words = [sys.executable, __file__, "obey", listener.address]
            self.process = subprocess.Popen(words)
            self.pipe = listener.accept()
        else:
            context = multiprocessing.get_context(how)
            self.pipe, theirs = context.Pipe()
            self.process = context.Process(target=obey, args=(theirs, how))
            self.process.start()
        self.pid = self.process.pid
        _, self.now_bytes = self.pipe.recv()

    def does(self, *command):
        """Let it do something; return what it had at the worst moment."""
        self.pipe.send(command)
        top_bytes, self.now_bytes = self.pipe.recv()
        return top_bytes

    def end(self, how):
        if how == "kill":
            os.kill(self.pid, signal.SIGKILL)
        else:
            self.pipe.send(("end", 0))
        (self.process.wait if self.how == "program" else self.process.join)()
        self.now_bytes = 0


class Measured:
    """A scope, and the truth about it: the most that each child had within, and all of them together."""

    def __init__(self, scope, workers):
        self.scope, self.before = scope, {worker.pid for worker in workers}
        self.most = {worker.pid: worker.now_bytes for worker in workers}
        self.together = sum(self.most.values())
        self.ended = 0

    def note(self, workers, mover, top_bytes):
        self.most[mover.pid] = max(self.most.get(mover.pid, 0), top_bytes)
        others_bytes = sum(worker.now_bytes for worker in workers if worker is not mover)
        self.together = max(self.together, others_bytes + top_bytes)


def near(told_bytes, true_bytes):
    return abs(told_bytes - true_bytes) < NEAR_BYTES


def check(measured, workers, helpers_bytes):
    """Every child's peak, exact where the kernel allows; the sum within its bounds."""
    from ipygpulogger.records import Measurement

    for worker in workers:  # what its parent wrote to meanwhile became a forked child's own
        measured.note(workers, worker, worker.does("nothing", 0))
    measured.scope.close()
    children = measured.scope.result(Measurement, "x").children
    found = {child.pid: child for child in children.largest}
    living = {worker.pid: worker for worker in workers}
    slack_bytes = NEAR_BYTES * (1 + len(measured.most)) + helpers_bytes
    for pid, most_bytes in measured.most.items():
        child, peak = found.get(pid), found[pid].peak if pid in found else None
        if pid not in living:
            # What its parent wrote to since the child last said what it has became the child's own.
            assert child is None or (child.ended and peak.lo_bytes < most_bytes + 2 * NEAR_BYTES), child
            continue
        assert near(child.after_bytes, living[pid].now_bytes), (living[pid].how, child, living[pid].now_bytes)
        assert peak.lo_bytes - NEAR_BYTES < most_bytes < peak.hi_bytes + NEAR_BYTES, (child, peak, most_bytes)
        if "fork" not in living[pid].how:
            assert peak.quality == "exact", peak
        if pid in measured.before or "fork" not in living[pid].how:
            both = near(peak.lo_bytes, most_bytes) and near(peak.hi_bytes, most_bytes)
            assert both, (living[pid].how, child, peak, most_bytes)
    assert children.peak.lo_bytes < measured.together + slack_bytes, (children.peak, measured.together)
    assert children.ended >= measured.ended
    highest_bytes = children.peak.hi_bytes
    assert children.ended if highest_bytes is None else highest_bytes + slack_bytes > measured.together, (
        children
    )


def main(seed, steps):  # noqa: C901 - one branch for each kind of step
    from ipygpulogger.engine import children as engine
    from ipygpulogger.engine.scope import Scope

    engine.WALK_S = 10  # no child is too large to look through
    engine.LARGEST = 100
    chance = random.Random(seed)
    kept = block(60)  # which the forked ones share
    workers, scopes = [Worker(how) for how in WAYS], []
    for _ in range(steps):
        what = chance.choice(STEPS)
        if what == "open" or not scopes:
            scopes.append(Measured(Scope().open(), workers))
        elif what == "close":
            # The helpers of multiprocessing: the fork server, its resource tracker
            check(scopes.pop(chance.randrange(len(scopes))), workers, 60 * MB)
        elif what == "start" and len(workers) < 6:
            workers.append(Worker(chance.choice(WAYS)))
            for one in scopes:
                one.note(workers, workers[-1], workers[-1].now_bytes)
        elif what in ("end", "kill") and len(workers) > 2:
            gone = workers.pop(chance.randrange(len(workers)))
            for one in scopes:
                one.ended += gone.pid in one.before
            gone.end(what)
        else:
            mover = chance.choice(workers)
            did = what if what in ("take", "free", "blip") else "blip"
            top_bytes = mover.does(did, chance.randrange(1, 90))
            for one in scopes:
                one.note(workers, mover, top_bytes)
    for one in scopes:
        check(one, workers, 60 * MB)
    for worker in workers:
        worker.end("end")
    kept.close()


if __name__ == "__main__":
    if sys.argv[1] == "obey":
        obey(Client(sys.argv[2]), "program")
    else:
        try:
            main(*map(int, sys.argv[1:]))
        except BaseException:
            import traceback

            traceback.print_exc()
            os.killpg(0, signal.SIGKILL)  # children wait for a word, and multiprocessing for them
