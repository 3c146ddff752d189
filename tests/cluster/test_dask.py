"""Tasks of a real Dask cluster: each told on its worker, whatever becomes of it and of the worker."""

import asyncio
import os
import socket
import time
from multiprocessing.resource_tracker import ensure_running

import pytest

pytestmark = pytest.mark.cluster

distributed = pytest.importorskip("distributed", reason="distributed is not installed, see nox -s cluster")

from dask import config as dask_config  # noqa: E402 - behind what may skip the file

from ipygpulogger import measure  # noqa: E402 - the same
from ipygpulogger.cluster import watch  # noqa: E402 - behind what may skip the file

MB = 1 << 20
PATIENT = {"distributed.deploy.lost-worker-timeout": "5 minutes"}  # a busy machine restarts slowly
QUIET = {"dashboard_address": ":0", "silence_logs": "CRITICAL"}


@pytest.fixture(scope="module", autouse=True)
def resource_tracker():
    """The process that `multiprocessing` keeps, which no test is to be blamed for."""
    ensure_running()


@pytest.fixture(scope="module")
def client():
    """Two workers with two threads each, in processes of their own."""
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=2, **QUIET) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def watching(client):
    """A watch of that cluster."""
    with watch(client, report=False) as found:
        yield found


def hungry(size_mb, seconds=0.0):
    """Touch so much memory for a moment."""
    block = bytearray(size_mb * MB)
    block[::4096] = bytes(len(block[::4096])).replace(b"\0", b"\1")
    del block
    time.sleep(seconds)
    return size_mb


def held(size_mb, dask_worker):
    """Give a worker this much memory to keep, beside its tasks."""
    dask_worker.kept_for_a_test = bytearray(size_mb * MB).replace(b"\0", b"\1")


for function in (hungry, held):
    function.__module__ = "__main__"  # sent by value: the workers do not import the tests


def only(group):
    (record,) = group
    return record


def test_a_task_is_told_on_its_worker(client, shell, capsys):
    """150 MB for a moment, within 2 MB, beside 200 MB that its worker holds; one table, below its cell."""
    client.run(held, 200)
    shell.user_ns.update(client=client, watch=watch, hungry=hungry)
    shell.run_cell("w = watch(client)", store_history=True)
    capsys.readouterr()
    shell.run_cell("size = client.submit(hungry, 150, pure=False).result()", store_history=True)
    found = shell.user_ns["w"]
    record = only(found.records[-1])
    shown = capsys.readouterr().out
    assert abs(record.gen.peaked_bytes - 150 * MB) < 2 * MB
    assert record.gen.before_bytes > 200 * MB
    assert (record.task, record.host, record.status) == ("hungry", socket.gethostname(), "ok")
    assert (record.worker, record.pid) in {
        (f"worker {worker['name']}", pid)
        for (address, worker), pid in zip(
            client.scheduler_info()["workers"].items(), client.run(os.getpid).values(), strict=True
        )
    }
    assert record.notes == ()
    assert shown.strip() == repr(found.records[-1])
    shell.run_cell("x = 1", store_history=True)
    assert (len(found.records), len(found.history)) == (1, 1)
    assert not capsys.readouterr().out
    shell.run_cell("w.stop()", store_history=True)
    client.run(held, 0)
    hungry_again = client.submit(hungry, 1, pure=False)
    hungry_again.result()
    assert len(found.records) == 1


def test_tasks_of_every_kind(client, watching):
    """What failed says so, each attempt of it; coroutines, nested tasks and graphs are tasks like others."""

    def fails():
        raise ValueError("as asked")

    def nests():
        with distributed.worker_client() as inner:
            return inner.submit(hungry, 50, key="inner").result()

    async def waits():
        await asyncio.sleep(0)

    with pytest.raises(ValueError, match="as asked"):
        client.submit(fails, retries=1).result()
    failed = watching.records[-1]
    assert [(one.task, one.status, one.error) for one in failed] == [("fails", "error", "ValueError")] * 2
    client.submit(waits).result()
    assert only(watching.records[-1]).task == "waits"
    client.submit(nests).result()
    nested = {one.task: one for one in watching.records[-1]}
    assert set(nested) == {"nests", "inner"}
    assert abs(nested["inner"].gen.peaked_bytes - 50 * MB) < 2 * MB
    graph = {("sum-1a2b3c4d", 0): (sum, [1, 2]), "last": (sum, [("sum-1a2b3c4d", 0), 4])}
    assert client.get(graph, "last") == 7
    assert {one.task for one in watching.records[-1]} >= {"last"}


def test_what_is_cancelled_is_told_when_it_ends(client, watching):
    """Its thread runs on, and so does its measurement."""

    def waits():
        distributed.Event("begun").set()
        distributed.Event("go").wait(30)

    future = client.submit(waits, pure=False)
    assert distributed.Event("begun", client).wait(30)
    key = future.key

    def is_cancelled(dask_worker):
        task = dask_worker.state.tasks.get(key)
        return task is not None and task.state == "cancelled"

    future.cancel()
    deadline_s = time.monotonic() + 30
    while not any(client.run(is_cancelled).values()):  # or the task may end before its worker hears of it
        assert time.monotonic() < deadline_s
    assert watching.records == []
    distributed.Event("go", client).set()
    while not watching.records:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    record = only(watching.records[-1])
    assert (record.task, record.status) == ("waits", "interrupted")


def test_a_task_keeps_its_peak_while_cells_end(client, watching):
    """The notebook's own measurements leave the marks of its workers alone, and say that their own peak of them is a lower bound."""

    def works():
        hungry(150)
        distributed.Event("needed").set()
        distributed.Event("measured").wait(60)

    future = client.submit(works, pure=False)
    assert distributed.Event("needed", client).wait(60)
    for _ in range(2):
        with measure() as m:
            pass
    distributed.Event("measured", client).set()
    future.result()
    record = only(watching.records[-1])
    assert record.gen.peak.quality == "exact"
    assert abs(record.gen.peaked_bytes - 150 * MB) < 2 * MB
    with measure() as m:
        client.submit(hungry, 100, pure=False).result()
    children = m.last.children
    assert children.peak.lo_bytes <= children.before_bytes + 102 * MB
    assert children.peak.hi_bytes is None


def test_tasks_that_share_a_process_say_so(client, watching):
    """Two threads of one worker, and none of them alone."""

    def meets(mine, other):
        distributed.Event(mine).set()
        assert distributed.Event(other).wait(60)

    (address, *_) = client.scheduler_info()["workers"]
    client.gather([client.submit(meets, *names, workers=[address]) for names in ("ab", "ba")])
    assert [one.notes for one in watching.records[-1]] == [("shared with 1 other task of its process",)] * 2
    client.submit(hungry, 10, pure=False).result()
    assert only(watching.records[-1]).notes == ()


def test_stopping_leaves_nothing(client):
    """No plugin on the workers."""
    before = client.run(lambda dask_worker: sorted(dask_worker.plugins))
    found = watch(client, report=False)
    assert client.run(lambda dask_worker: sorted(dask_worker.plugins)) != before
    found.stop()
    found.stop()
    assert client.run(lambda dask_worker: sorted(dask_worker.plugins)) == before
    client.submit(hungry, 1, pure=False).result()
    assert found.records == []


def test_workers_that_come_and_go():
    """One that joins is measured, and those that are restarted are measured again."""
    with (
        dask_config.set(PATIENT),
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, **QUIET) as cluster,
        distributed.Client(cluster) as client,
        watch(client, report=False) as watching,
    ):
        cluster.scale(2)
        client.wait_for_workers(2)
        client.gather(client.map(hungry, [5, 6], seconds=0.2, pure=False))
        assert {one.worker for one in watching.records[-1]} == {"worker 0", "worker 1"}
        client.restart()
        client.submit(hungry, 60, pure=False).result()
        record = only(watching.records[-1])
        assert abs(record.gen.peaked_bytes - 60 * MB) < 2 * MB
    assert watching.records


def test_a_worker_without_the_package_works_on(capsys):
    """It joins, runs its tasks, and how to install the package is said once."""
    without = "import sys; sys.modules['ipygpulogger'] = None"
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, preload=[without], **QUIET) as cluster,
        distributed.Client(cluster) as client,
        watch(client, report=False) as watching,
    ):
        assert client.submit(hungry, 5).result() == 5
        cluster.scale(2)
        client.wait_for_workers(2)
        assert client.submit(hungry, 6).result() == 6
        assert watching.records == []
    said = capsys.readouterr().err
    assert said.count("ipygpulogger cannot measure the tasks of some workers") == 1
    assert 'client.register_plugin(distributed.PipInstall(["ipygpulogger"]))' in said


def test_workers_in_the_notebooks_process(gpu):
    """Threads of it: everything is shared with the notebook, and each record says so; a client that is closed."""
    with distributed.Client(processes=False, n_workers=1, threads_per_worker=1, **QUIET) as client:
        watching = watch(client, report=False)
        client.submit(hungry, 60).result()
        record = only(watching.records[-1])
        assert record.pid == os.getpid()
        assert record.notes == ("shared with the notebook: the worker is a thread of its process",)
        assert abs(record.gen.peaked_bytes - 60 * MB) < 2 * MB
    watching.stop()
    with pytest.raises(ValueError, match="that is connected"):
        watch(client)
