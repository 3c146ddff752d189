"""Child processes: what is their own counts, what they share with the process that forked them does not.

Each case runs in a process of its own: what the kernel says of children that ended is the largest of all.
"""

import mmap
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from memory import MB

from ipygpulogger import measure
from ipygpulogger.engine.children import ChildPeaks
from ipygpulogger.engine.machine import Machine
from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import Measurement
from ipygpulogger.sources.system import linux
from ipygpulogger.sources.system.child_process import ChildProcess, Descendants
from ipygpulogger.sources.system.forked import WALK_S_PER_BYTE, Starts, forks

pytestmark = [
    pytest.mark.linux("children are not listed there"),
    pytest.mark.skipif(
        Descendants().visit(ChildProcess.observe) is None or not Path("/proc/self/smaps_rollup").exists(),
        reason="this kernel does not tell of children",
    ),
]

START = """
import mmap, multiprocessing, os, pty, random, subprocess, sys
sys.path.insert(0, {tests!r})
from memory import MB
from ipygpulogger import measure
from ipygpulogger.render import text

class Block:
    "Private memory of so many MB, which a fork copies; the tests' usual blocks are shared with a child."

    def __init__(self, size_mb):
        self._map = mmap.mmap(-1, size_mb * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._map[:: mmap.PAGESIZE] = b"x" * (size_mb * MB // mmap.PAGESIZE)

    def free(self):
        self._map.close()

def blip(size_mb):
    Block(size_mb).free()

def mb(size_bytes):
    return round(size_bytes / MB)

def python_forks(words):
    "As `!` in a notebook: a fork with a terminal, then exec."
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(words[0], words)
    while True:
        try:
            if not os.read(fd, 1000):
                break
        except OSError:
            break
    os.waitpid(pid, 0)
    os.close(fd)

def worker(work):
    "A fork that goes on with our program."
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    os.waitpid(pid, 0)

"""


def in_a_new_process(program):
    """Run a program that asserts what it knows."""
    program = START.format(tests=str(Path(__file__).parents[1])) + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_shell_line_says_nothing():
    """Small programs, however started by a process of 100 MB: what it held is no memory of theirs."""
    in_a_new_process(
        """
        kept = Block(100)
        ways = [
            lambda: python_forks(["/bin/sh", "-c", "echo hi"]),
            lambda: os.system("true"),
            lambda: subprocess.run(["true"]),
            lambda: subprocess.run(["true"], preexec_fn=lambda: None),
            lambda: os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", "true"], os.environ), 0),
            lambda: worker(lambda: None),
            lambda: worker(lambda: os.system("true")),
        ]
        for way in ways:
            with measure() as m:
                way()
            assert m.last.children is None and "child" not in text.report(m.last), way
        """
    )


@pytest.fixture
def waiting():
    """Three forked children that do nothing; their pids."""
    reader, writer = os.pipe()
    pids = []
    for _ in range(3):
        pids.append(os.fork())
        if pids[-1] == 0:
            os.read(reader, 1)
            os._exit(0)
    yield pids
    os.write(writer, b"xxx")
    for pid in pids:
        os.waitpid(pid, 0)
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("fault", ["no flags", "no smaps"])
def test_a_child_of_which_little_is_told(fault, monkeypatch, waiting):
    """Without its flags it is left out; where its pages may not be walked, it has at least nothing."""
    pid = waiting[0]
    real = linux.read

    def refuse(path):
        if path == f"/proc/{pid}/{'stat' if fault == 'no flags' else 'smaps_rollup'}":
            raise PermissionError(path)
        return real(path)

    monkeypatch.setattr(linux, "read", refuse)
    peaks = ChildPeaks(Machine())
    found = {child.pid: child for child in peaks.observe()}
    if fault == "no flags":
        assert pid not in found
    else:
        peaks.walk(found.values(), 1)
        assert found[pid].shares is None


def test_a_mark_within_its_precision_is_no_peak(waiting, monkeypatch):
    """After a reset, and without a page fault since; what lies beyond was there."""
    child = ChildProcess(waiting[0], None)
    child.observe()
    child.reset()
    for more_bytes, told_bytes in ((0, 0), (1, child.precision_bytes + 1)):
        status = 50 * MB, 50 * MB + child.precision_bytes + more_bytes
        monkeypatch.setattr(linux, "resident_and_mark_bytes", lambda _, status=status: status)
        (reading,) = child.observe().readings
        assert reading == (50 * MB, 50 * MB + told_bytes)


def test_a_forked_child_begins_without_its_parents_children(waiting):
    """A process identifier of one of those may be that of a child of its own later."""
    with measure():
        pids = [os.fork()]
        if pids[0]:
            pids.append(os.fork())
        if not all(pids):
            try:
                os._exit(bool(forks.count or forks.living) or forks.mine["pid"] != os.getpid())
            finally:
                os._exit(1)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]


def test_the_last_figures_of_a_forked_child():
    """Shared memory that it maps is in them to the page, as files are, and its page faults are."""
    with measure():
        pid = os.fork()
        if not pid:
            try:
                card = forks.mine
                forks.leave()
                before_bytes, faults = card["mapped_bytes"], card["faults"]
                shared = mmap.mmap(-1, 20 * MB)
                shared[:: mmap.PAGESIZE] = b"x" * (20 * MB // mmap.PAGESIZE)
                forks.leave()
                more_bytes = card["mapped_bytes"] - before_bytes
                os._exit(not (0 <= more_bytes - 20 * MB < MB and card["faults"] > faults))
            finally:
                os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def test_forks_are_walked_while_there_is_time(waiting):
    """Small ones first; one for which no time is left is not walked, also if it was in an earlier scope."""
    peaks = ChildPeaks(Machine())
    forks = [child for child in peaks.observe() if child.pid in waiting]
    peaks.walk(forks, 10)
    assert all(child.is_walked for child in forks)
    sizes = sorted(child.current_bytes for child in forks)
    peaks.walk(forks, (sizes[0] + sizes[1] / 2) * WALK_S_PER_BYTE)
    assert [child.is_walked for child in sorted(forks, key=lambda one: one.current_bytes)] == [
        True,
        False,
        False,
    ]


def figures(process, pids):
    """What each of these children has, its peak, and what it forked from."""
    return {
        child.pid: (child.current_bytes, child.high_bytes, child.forked, child.parent and child.parent.pid)
        for child in process.visit(ChildProcess.observe)
        if pids is None or child.pid in pids
    }


def started(program):
    """A running program that waits for a line, and then says one."""
    words = [sys.executable, "-I", "-S", "-u", "-c", f"print()\ninput()\n{program}\nprint()\ninput()"]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    child.stdout.readline()
    while b") S " not in Path(f"/proc/{child.pid}/stat").read_bytes():  # it is on its way to wait
        time.sleep(0.001)
    return child


def ended(child):
    child.kill()
    child.communicate()


CHILD = """
import subprocess, sys
held, children = [], []
for line in sys.stdin:
    word = line.strip()
    if word == "more":
        held.append(b"x" * (5 << 20))
    elif word == "less" and held:
        held.pop()
    elif word == "blip":
        b"x" * (7 << 20)
    elif word == "child":
        children.append(subprocess.Popen(["sleep", "100"]))
    elif word == "end child" and children:
        children[-1].kill()
        children.pop().wait()
    print()
"""


def test_any_children_are_as_a_first_look_finds_them():
    """Whatever they did meanwhile: allocated, freed, started children of their own, ended, were orphaned."""
    program = """
        import ctypes, time
        from ipygpulogger.sources.system.child_process import ChildProcess, Descendants
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans become our children

        def figures(process):
            living = process.visit(ChildProcess.observe)
            return {one.pid: (one.current_bytes, one.high_bytes, one.parent and one.parent.pid) for one in living}

        chance, running, known = random.Random(3), [], Descendants()
        for step in range(50):
            word = chance.choice(["start", "more", "less", "blip", "child", "end child", "die", "nothing"])
            if word == "start" or not running:
                words = [sys.executable, "-I", "-S", "-u", "-c", CHILD]
                running.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            one = chance.choice(running)
            if word == "die":
                running.remove(one)
                one.kill()
                one.wait()
            elif word not in ("start", "nothing"):
                one.stdin.write(word.encode() + os.linesep.encode())
                one.stdin.flush()
                one.stdout.readline()
            for _ in range(100):  # until nothing runs any more
                found = figures(known)
                if figures(Descendants()) == found == figures(known):
                    break
                time.sleep(0.02)
            else:
                raise AssertionError((step, word, found, figures(Descendants())))
        for pid in found:
            os.kill(pid, 9)
        """
    in_a_new_process(f"CHILD = {CHILD!r}\n" + textwrap.dedent(program))


ADOPTING = """
import ctypes, subprocess
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
shell = subprocess.Popen(["sh", "-c", "sleep 100 & echo $! && wait"], stdout=subprocess.PIPE)
print(shell.pid, int(shell.stdout.readline()), flush=True)
input()
"""


def state_and_parent(pid):
    """The state of a process and the pid of its parent, as the kernel tells them."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]


def until(so):
    """Wait for something, however busy the machine is."""
    deadline_s = time.monotonic() + 20
    while not so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_an_orphan_that_a_waiting_child_adopts_is_found():
    """The child does not run for that, and has one more child all the same."""
    words, pipe = [sys.executable, "-c", ADOPTING], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as child:
        shell, orphan = map(int, child.stdout.readline().split())
        process = Descendants()
        for _ in range(2):
            until(lambda: state_and_parent(child.pid)[0] == "S")
            assert figures(process, None).keys() >= {child.pid, shell, orphan}
        os.kill(shell, 9)
        until(lambda: (state_and_parent(shell)[0], state_and_parent(orphan)[1]) == ("Z", str(child.pid)))
        assert figures(process, None).keys() & {child.pid, shell, orphan} == {child.pid, orphan}
        os.kill(orphan, 9)
        child.kill()


EXECS = """
import mmap, os, sys
x = b"x" * (30 << 20)
print(flush=True)
input()
os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", "print(flush=True); input()"])
"""


def test_a_child_that_calls_exec_is_another_one():
    """Both are at least what was seen of them: nobody knows what they had in between."""
    words = [sys.executable, "-I", "-S", "-c", EXECS]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        scope = Scope().open()
        child.stdin.write(b"\n")
        child.stdin.flush()
        child.stdout.readline()
        scope.close()
        found = scope.result(Measurement, "x").children
        child.kill()
    was, now = sorted((one for one in found.largest if one.pid == child.pid), key=lambda one: not one.ended)
    assert (was.ended, was.peak.hi_bytes, now.ended, now.peak.hi_bytes) == (True, None, False, None)
    assert was.peak.lo_bytes > 30 * MB > now.peak.lo_bytes
    assert found.ended == 0


def test_a_child_on_its_way_to_exec_is_not_there_yet(monkeypatch, waiting):
    """After a vfork it has the memory of its parent: none of that is its own, and its mark is ours."""
    pid = waiting[0]
    real, same = linux.read, {f"/proc/{pid}/statm", "/proc/self/statm"}
    monkeypatch.setattr(linux, "read", lambda path: b"1 2 3 4 5 6 7" if path in same else real(path))
    assert pid not in figures(Descendants(), None)
    monkeypatch.undo()
    assert pid in figures(Descendants(), None)


def test_programs_are_noticed_where_subprocess_is_imported_later(monkeypatch):
    """A terminal may not have imported it as the first cell begins."""
    noticed = []
    starts = Starts(lambda: noticed.append(1))
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "subprocess")
        starts.put_on()
    starts.put_on()
    try:
        subprocess.run([sys.executable, "-c", ""], check=True)
    finally:
        starts.take_off()
    assert noticed


def test_a_zombie_has_ended():
    """Killed, and nobody waited for it: it is gone, and its peak is at least what was seen."""
    child = started("")
    scope = Scope().open()
    os.kill(child.pid, 9)
    while b") Z " not in Path(f"/proc/{child.pid}/stat").read_bytes():
        time.sleep(0.001)
    scope.close()
    found = scope.result(Measurement, "x").children
    (gone,) = (one for one in found.largest if one.pid == child.pid)
    assert (gone.ended, gone.after_bytes, gone.peak.hi_bytes, found.ended) == (True, 0, None, 1)
    child.communicate()


def test_a_child_of_another_user_is_bounded(monkeypatch):
    """Its mark may be read and not reset: the highest that it ever had bounds each cell's peak."""
    real = linux.reset_mark

    def refuse(pid="self"):
        if pid != "self":
            raise PermissionError(pid)
        real(pid)

    monkeypatch.setattr(linux, "reset_mark", refuse)
    child = started("x = b'x' * (90 << 20); del x")
    child.stdin.write(b"\n")
    child.stdin.flush()
    child.stdout.readline()
    scope = Scope().open()
    scope.close()
    (one,) = (one for one in scope.result(Measurement, "x").children.largest if one.pid == child.pid)
    assert one.peak.lo_bytes == one.after_bytes < 40 * MB < 90 * MB < one.peak.hi_bytes
    ended(child)
