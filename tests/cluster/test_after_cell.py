"""What is shown after a cell of other processes' work: once, below the cell's own report, inside captures."""

import gc
import os
import socket
import subprocess
import sys
import weakref

import made
import pytest

from ipygpulogger import IPyGPULogger
from ipygpulogger.analysis.group import Group
from ipygpulogger.cluster.watcher import Watch
from ipygpulogger.engine.machine import machine
from ipygpulogger.records.process import Process, ProcessRecord


class FakeWatch(Watch):
    """A watch whose engines have done what a test puts into `done`."""

    def __init__(self, **options):
        super().__init__(None, **options)
        self.done = []
        self.started()

    def ended(self, label):
        done, self.done = self.done, []
        return [Group(label, [ProcessRecord.of(made.plain(), Process("node", 7, rank))]) for rank in done]

    def leave(self):
        pass


@pytest.fixture
def watching(shell):
    """A watch in the shell, as `w`."""
    with FakeWatch() as watch:
        shell.user_ns["w"] = watch
        yield watch


def run(shell, code):
    """Run a cell as a front end does."""
    return shell.run_cell(code, store_history=True)


@pytest.mark.parametrize("code", ["w.done += [0]", "w.done += [0]\n1 / 0", "w.done += [0]\nw.stop()"])
def test_one_table_after_the_cell(shell, watching, capsys, code):
    """Shown once, kept with the cell's label, also if the cell failed or stopped the watch.

    A cell without such work shows nothing, nor does what a front end runs for itself, nor a watch that shall not.
    """
    run(shell, code)
    (group,) = watching.records
    assert (group.label, len(watching.history)) == (f"In [{shell.execution_count - 1}]", 1)
    assert capsys.readouterr().out.count(repr(group)) == 1
    run(shell, "x = 1")
    if watching.is_running:
        shell.run_cell("w.done += [0]", store_history=False)
        assert len(watching.records) == 1
        watching.shows = False
        run(shell, "x = 1")
        assert len(watching.records) == 2
    assert "RAM in MB" not in capsys.readouterr().out


def test_what_is_broken_hurts_no_cell(shell, watching, capsys, monkeypatch):
    """A front end that displays nothing, a watch that fails: that is said once, and the others go on."""
    with monkeypatch.context() as patch, FakeWatch() as other:
        patch.setattr(type(shell.display_pub), "publish", lambda *_, **__: 1 / 0)
        shell.user_ns["other"] = other
        watching.ended = lambda _: 1 / 0
        for _ in range(2):
            assert run(shell, "other.done += [0]").success
        assert len(other.records) == 2
    said = capsys.readouterr().err
    assert (said.count("could not collect"), said.count("cannot show its tables")) == (1, 1)


def test_the_table_comes_last(shell, capsys):
    """Below the report of a logger that was started before the watch."""
    logger = IPyGPULogger().start()
    with FakeWatch() as found:
        shell.user_ns["w"] = found
        run(shell, "w.done += [0]")
        shown = capsys.readouterr().out
        assert shown.index("RAM: Consumed") < shown.index(repr(found.records[-1]))
    logger.stop()


def test_captured_within_a_capture(shell, watching, capsys):
    """The table of a captured cell is part of the captured output, and is not shown a second time."""
    run(shell, "%%capture out\nw.done += [0]")
    assert not capsys.readouterr().out
    count = shell.execution_count - 1
    assert watching.records[-1].label == f"In [{count}]"
    table = repr(watching.records[-1])
    assert table in [one.data["text/plain"] for one in shell.user_ns["out"].outputs]


def test_stopping_leaves_nothing(shell):
    """No callback remains, and nothing of ours keeps the watch alive."""
    before = list(shell.events.callbacks["post_run_cell"])
    watch = FakeWatch()
    again = weakref.ref(watch)
    watch.stop()
    watch.stop()
    assert shell.events.callbacks["post_run_cell"] == before
    del watch
    gc.collect()
    assert again() is None


def test_the_marks_of_its_processes_are_left_alone(shell, watching):
    """Of those on this machine that records came from, until the watch is stopped."""
    left_alone = machine().child_peaks._measuring_themselves
    here = socket.gethostname()
    processes = [Process(here, 4321), Process("elsewhere", 4322), Process(here, os.getpid())]
    watching.keep(Group("In [1]", [ProcessRecord.of(made.plain(), process) for process in processes]))
    assert left_alone == {4321}
    watching.stop()
    assert left_alone == set()


def test_a_script_keeps_its_records():
    """Without IPython there is no table; `records` has what was done by then."""
    program = """
import sys
from ipygpulogger.cluster import Group, Watch
class Fake(Watch):
    done = ["here"]
    leave = lambda self: None
    def ended(self, label):
        done, self.done = self.done, []
        return [Group(one, []) for one in done]
watch = Fake(None)
watch.started()
print(len(watch.records), len(watch.records), "IPython" in sys.modules)
watch.done = ["and there"]
watch.stop()
watch.ended = None
print(len(watch._groups))
"""
    ran = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, check=True)
    assert ran.stdout.split() == ["1", "1", "False", "2"]
