"""Both ends of Dask's watch without Dask: what a worker measures and sends, and what the notebook takes."""

import asyncio
import itertools
import sys
import types

import pytest

from ipygpulogger import cluster
from ipygpulogger.cluster.arrivals import Arrivals
from ipygpulogger.cluster.dask_worker import Tasks

ADDRESS = "tcp://10.0.0.7:4000"


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    """What is asked of Dask's own modules, where Dask may not be installed."""
    utils = types.SimpleNamespace(key_split=lambda key: str(key).rpartition("-")[0] or str(key))
    monkeypatch.setitem(sys.modules, "dask", types.SimpleNamespace(utils=utils))
    monkeypatch.setitem(sys.modules, "dask.utils", utils)
    monkeypatch.setitem(
        sys.modules, "distributed", types.SimpleNamespace(WorkerPlugin=object, SchedulerPlugin=object)
    )


class Worker:
    """What is asked of a worker."""

    def __init__(self, name=0):
        self.name, self.address = name, ADDRESS
        self.events = []
        self.state = types.SimpleNamespace(tasks={})

    def log_event(self, topic, message):
        assert topic == "topic"
        self.events.append(message)

    def arrived(self):
        """What its events bring."""
        arrivals = Arrivals()
        for message in self.events:
            if "record" in message:
                arrivals.take(message["record"])
        return arrivals.group("cell")


@pytest.fixture
def worker():
    return Worker()


@pytest.fixture
def tasks(worker):
    """A worker's tasks."""
    found = Tasks(worker, "topic", ("another host", 1))
    yield found
    found.close()


def ran(tasks, key):
    """A task from beginning to end."""
    tasks.transition(key, "ready", "executing")
    tasks.transition(key, "executing", "memory")


def test_what_becomes_of_a_task(worker, tasks):
    """A failure names its exception; what was cancelled is told when its thread has ended, or not at all.

    A key that is a tuple tells the block. Who was never seen to begin has no record.
    """
    worker.state.tasks["bad-1"] = types.SimpleNamespace(exception_text="KeyError('x')")
    for key, *states in [
        ("bad-1", "ready", "executing", "error"),
        ("gone-1", "ready", "executing", "long-running", "released", "cancelled", "error"),
        ("again-1", "constrained", "executing", "rescheduled"),
        (("sum-1a2b", 0, 3), "ready", "executing", "memory"),
        ("seen late", "executing", "memory"),
        ("runs on", "ready", "executing", "long-running", "released"),
    ]:
        for start, finish in itertools.pairwise(states):
            tasks.transition(key, start, finish)
    tasks.close()  # a plugin that is removed does not tell what runs on
    found = {record.task: (record.worker, record.status, record.error) for record in worker.arrived()}
    assert {task.rpartition("[")[2]: told for task, told in found.items()} == {
        "bad": ("worker 0", "error", "KeyError"),
        "gone": ("worker 0", "interrupted", None),
        "again": ("worker 0", "interrupted", None),
        "0, 3]": ("worker 0", "ok", None),
    }


class Client:
    """What is asked of a client; its class is of the package distributed."""

    __module__ = "distributed.client"
    asynchronous = False

    def __init__(self):
        self.id, self.status = "Client-1", "running"
        self.handlers, self.plugins, self.known = {}, {}, []

    def sync(self, function):
        return asyncio.run(function())

    def subscribe_topic(self, topic, handler):
        self.handlers[topic] = handler

    def unsubscribe_topic(self, topic):
        del self.handlers[topic]

    async def register_plugin(self, plugin, name):
        self.plugins[name] = plugin
        return {ADDRESS: {"status": "OK"}} if self.known else {}

    async def unregister_worker_plugin(self, name):
        del self.plugins[name]

    async def get_events(self, _):
        return [(0.0, message) for message in self.known]


@pytest.fixture
def client():
    return Client()


@pytest.fixture
def watching(client):
    with cluster.watch(client, report=False) as found:
        yield found


def sent(worker):
    """Its events as the scheduler passes them on."""
    return [{**message, "worker": ADDRESS} for message in worker.events]


def test_what_arrives_is_one_group(client, watching, worker, tasks):
    """With what could not be measured, and what is no event of a worker, each counted."""
    ran(tasks, "a-1")
    ran(tasks, "b-1")
    handler = client.handlers[watching._topic]
    handler((1.0, "no event"))
    assert watching.records == []  # what is no event is said with the next group
    good = sent(worker)[-1]
    bad = [None, {}, {"worker": ADDRESS}, {**good, "record": b"x"}, {**good, "record": 1}]
    for message in [*sent(worker), {**good, "record": b""}, *bad]:
        handler((1.0, message))
    group = watching.records[-1]
    assert [record.task for record in group] == ["a", "b"]
    assert group.notes == (
        "6 of what arrived are not valid and left out",
        "1 more tasks ended, whose records did not arrive",
    )
    assert len(watching.records) == 1


def test_a_worker_that_cannot_measure_is_said_once(client, capsys):
    """What it said before the subscription counts. Where a cluster is gone, what cannot be removed is said."""
    client.known = [{"worker": ADDRESS, "unable": "No module named 'ipygpulogger'"}]
    watching = cluster.watch(client, report=False)
    client.handlers[watching._topic]((1.0, client.known[0]))
    said = capsys.readouterr().err
    assert said.count("cannot measure the tasks of some workers: No module named 'ipygpulogger'.") == 1
    assert cluster.watch(client) is watching
    assert repr(watching) == "<DaskWatch: running, 0 records>"
    client.plugins.clear()
    watching.stop()
    watching.stop()
    assert capsys.readouterr().err.count("could not be removed") == 1
    assert repr(watching) == "<DaskWatch: stopped, 0 records>"
    client.sync = lambda _: 1 / 0  # what cannot be installed is the user's to see
    with pytest.raises(ZeroDivisionError):
        cluster.watch(client)
    assert client.handlers == {}


def test_what_no_client_is():
    """A cluster is not one, and an object of another package neither; a class derived from a client's is."""
    cluster_itself = type("LocalCluster", (), {"__module__": "distributed.deploy.local"})()
    with pytest.raises(TypeError, match=r"such as Client\(cluster\)"):
        cluster.watch(cluster_itself)
    asynchronous = Client()
    asynchronous.asynchronous = True
    with pytest.raises(ValueError, match="not asynchronous"):
        cluster.watch(asynchronous)
    with pytest.raises(TypeError, match=r"takes an ipyparallel\.Client"):
        cluster.watch(object())
    with cluster.watch(type("Derived", (Client,), {"__module__": "another"})()) as watching:
        assert type(watching).__name__ == "DaskWatch"
