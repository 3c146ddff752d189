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

    def describe(self):
        return ""


@pytest.fixture
def watching(shell):
    """A watch in the shell, as `w`."""
    with FakeWatch() as watch:
        shell.user_ns["w"] = watch
        yield watch


def run(shell, code):
    """Run a cell as a front end does."""
    return shell.run_cell(code, store_history=True)


def test_one_table_after_the_cell(shell, watching, capsys):
    """Shown once, kept with the cell's label; a cell without such work shows nothing."""
    run(shell, "w.done += [0]")
    count = shell.execution_count - 1
    assert [group.label for group in watching.records] == [f"In [{count}]"]
    assert len(watching.history) == 1
    shown = capsys.readouterr().out
    assert shown.strip() == repr(watching.records[-1])
    run(shell, "x = 1")
    assert len(watching.records) == 1
    assert not capsys.readouterr().out


def test_the_table_comes_last(shell, watching, capsys):
    """Below the report of a logger that was started after the watch."""
    logger = IPyGPULogger()
    shell.user_ns["logger"] = logger
    run(shell, "logger.start();")
    capsys.readouterr()
    run(shell, "w.done += [0]")
    shown = capsys.readouterr().out
    assert shown.index("RAM: Consumed") < shown.index(repr(watching.records[-1]))
    logger.stop()


def test_no_table_where_all_is_quiet(shell, watching, capsys):
    """Of a running logger that has `quiet`, but kept; `%%gpulog` asks for it, and without a logger it is there."""
    logger = IPyGPULogger(quiet="30MB").start()
    quiet_since = len(watching.records)
    run(shell, "w.done += [0]")
    assert len(watching.records) == quiet_since + 1
    assert repr(watching.records[-1]) not in capsys.readouterr().out
    for ask in ("%%gpulog\n", ""):
        run(shell, f"{ask}w.done += [0]")
        assert repr(watching.records[-1]) in capsys.readouterr().out
        logger.stop()


def test_captured_within_a_capture(shell, watching, capsys):
    """The table of a captured cell is part of the captured output, and is not shown a second time."""
    run(shell, "%%capture out\nw.done += [0]")
    assert not capsys.readouterr().out
    count = shell.execution_count - 1
    assert watching.records[-1].label == f"In [{count}]"
    table = repr(watching.records[-1])
    assert table in [one.data["text/plain"] for one in shell.user_ns["out"].outputs]


def test_a_failed_cell_has_its_table(shell, watching, capsys):
    """Work that ended in an error is shown as well."""
    run(shell, "w.done += [0]\n1 / 0")
    assert repr(watching.records[-1]) in capsys.readouterr().out


def test_only_kept_where_no_report_is_wanted(shell, capsys):
    """`report=False` keeps the records and shows nothing."""
    with FakeWatch(report=False) as watch:
        shell.user_ns["w"] = watch
        run(shell, "w.done += [0]")
    assert len(watch.records) == 1
    assert not capsys.readouterr().out


def test_a_broken_watch_hurts_no_cell(shell, watching, capsys):
    """Why it failed is said once; the other watches go on."""
    with FakeWatch() as other:
        shell.user_ns["other"] = other
        watching.ended = lambda _: 1 / 0
        for _ in range(2):
            assert run(shell, "other.done += [0]").success
        assert len(other.records) == 2
    assert capsys.readouterr().err.count("could not collect") == 1


def test_a_front_end_that_displays_nothing_hurts_no_cell(shell, watching, capsys, monkeypatch):
    """The records are kept, and why nothing is shown is said once."""
    monkeypatch.setattr(type(shell.display_pub), "publish", lambda *_, **__: 1 / 0)
    for _ in range(2):
        assert run(shell, "w.done += [0]").success
    assert len(watching.records) == 2
    assert capsys.readouterr().err.count("cannot show its tables") == 1


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


def test_stopped_in_the_cell_that_did_the_work(shell, capsys):
    """What is complete by then is shown and kept, with the label of the cell."""
    shell.user_ns["Fake"] = FakeWatch
    run(shell, "with Fake() as w:\n    w.done += [0]")
    (group,) = shell.user_ns["w"].records
    assert group.label == f"In [{shell.execution_count - 1}]"
    assert capsys.readouterr().out.count(repr(group)) == 1


def test_the_marks_of_its_processes_are_left_alone(shell, watching):
    """Of those on this machine that records came from, until the watch is stopped."""
    left_alone = machine().child_peaks._measuring_themselves
    here = socket.gethostname()
    processes = [Process(here, 4321), Process("elsewhere", 4322), Process(here, os.getpid())]
    watching.keep(Group("In [1]", [ProcessRecord.of(made.plain(), process) for process in processes]))
    assert left_alone == {4321}
    watching.stop()
    assert left_alone == set()


def test_silent_code_takes_no_table(shell, watching, capsys):
    """What a front end runs for itself shows no table; the next cell does."""
    shell.run_cell("w.done += [0]", store_history=False)
    assert not watching.records
    run(shell, "x = 1")
    assert len(watching.records) == 1


def test_a_script_keeps_its_records():
    """Without IPython there is no table; `records` has what was done by then."""
    program = """
import sys
from ipygpulogger.cluster import Group, Watch
class Fake(Watch):
    done = ["here"]
    leave = describe = lambda self: ""
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
