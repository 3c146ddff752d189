"""Records of other processes reach every logger that runs: its history, its log, its budget."""

import made
from reports import run

from ipygpulogger import History, IPyGPULogger
from ipygpulogger.cluster.watcher import keep
from ipygpulogger.records.process import Process, ProcessRecord

MB = 2**20


def from_rank(rank, size_bytes=0, **fields):
    return ProcessRecord.of(made.plain(size_bytes, **fields), Process("node", 100 + rank, rank))


def test_a_running_logger_keeps_them(shell, il, tmp_path):
    """In its history and its log, each with its process; its own last cell stays what it was."""
    run(shell, "x = 1")
    own, data = il.record, il.data
    il.log, il.log_source = str(tmp_path / "run.jsonl"), True
    found = [from_rank(rank, rank * MB) for rank in range(3)]
    assert keep(found) == found
    assert list(il.history) == [own, *found]
    assert (il.record, il.data) == (own, data)
    assert list(History.load(tmp_path / "run.jsonl")) == found
    run(shell, "x = 2")
    assert (il.record.source, len(il.history)) == ("x = 2", 5)


def test_only_while_it_runs(shell):
    """Neither before its start nor after its stop, and each of several loggers for itself."""
    first, second = IPyGPULogger(report="none"), IPyGPULogger(report="none")
    keep([from_rank(0)])
    first.start()
    keep([from_rank(1)])
    second.start()
    keep([from_rank(2)])
    first.stop()
    keep([from_rank(3)])
    second.stop()
    keep([from_rank(4)])
    assert [record.rank for record in first.history] == [1, 2]
    assert [record.rank for record in second.history] == [2, 3]


def test_a_budget_holds_for_each(il):
    """The rank above it says so, in the history and in what is returned."""
    il.budget = "150MB"
    kept = keep([from_rank(rank, 100 * (rank + 1) * MB) for rank in range(2)])
    assert [record.notes for record in kept] == [(), ("Over budget on RAM: highest 200 of 150 MB",)]
    assert list(il.history) == kept


def test_a_log_that_cannot_be_written_hurts_no_cluster(il, tmp_path, capsys):
    """It is said once; the records are in the history."""
    folder = tmp_path / "logs"
    folder.mkdir()
    il.log = str(folder / "run.jsonl")
    folder.rmdir()
    keep([from_rank(0), from_rank(1)])
    keep([from_rank(2)])
    assert capsys.readouterr().err.count("cannot write") == 1
    assert len(il.history) == 3
    folder.mkdir()
    keep([from_rank(3)])
    assert capsys.readouterr().err == ""
    assert len((folder / "run.jsonl").read_text().splitlines()) == 1
