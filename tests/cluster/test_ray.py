"""Tasks and actors of a real Ray: each measured in its worker, and what must stay as without a watch."""

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from ipygpulogger.cluster import watch

pytestmark = pytest.mark.cluster

ray = pytest.importorskip("ray", reason="ray is not installed, see nox -s cluster")

MB = 2**20
INIT = {
    "address": "local",
    "num_cpus": 2,
    "include_dashboard": False,
    "_node_ip_address": "127.0.0.1",
    "logging_level": "ERROR",
}


@pytest.fixture(scope="module", autouse=True)
def started():
    """One Ray for the file, for it takes seconds to start.

    A table waits for records until none came for a third of a second: on a busy machine they come late.
    """
    with pytest.MonkeyPatch.context() as patient:
        patient.setattr("ipygpulogger.cluster.ray._PAUSE_S", 0.1)
        patient.setattr("ipygpulogger.cluster.ray._LOOKS", 100)
        ray.init(**INIT)
        yield
        ray.shutdown()


@pytest.fixture
def watching():
    """Ray, watched; and nothing of the watch left behind."""
    own = ray.remote
    with watch(ray) as found:
        yield found
    assert own is ray.remote
    assert not any(name.startswith("ipygpulogger") for name in ray.util.list_named_actors())


def transient(size_mb):
    """A function that holds this much for a moment."""

    def hold():
        return len(b"x" * (size_mb * MB))

    return hold


def by_task(group):
    """The records by their task; one each."""
    found = {record.task: record for record in group}
    assert len(found) == len(group)
    return found


def test_a_peak_is_told_of_its_task_on_its_worker(watching):
    """An actor with 150 MB for a moment, beside the 50 MB that it keeps and another task's 60 MB."""

    @ray.remote
    class Model:
        def __init__(self):
            self.kept = bytearray(50 * MB)

        def step(self):
            return os.getpid(), len(b"x" * (150 * MB))

    @ray.remote
    def load():
        return os.getpid(), len(b"x" * (60 * MB))

    model = Model.remote()
    (actor, _), (other, _) = ray.get([model.step.remote(), load.remote()])
    found = by_task(watching.records[-1])
    assert list(found) and set(found) == {"Model.__init__", "Model.step", "load"}
    step = found["Model.step"]
    assert step.gen.peaked_bytes == pytest.approx(150 * MB, abs=2 * MB)
    assert step.gen.peak.quality == "exact"
    assert found["load"].gen.peaked_bytes == pytest.approx(60 * MB, abs=2 * MB)
    assert found["Model.__init__"].gen.consumed_bytes == pytest.approx(50 * MB, abs=2 * MB)
    assert (step.pid, found["load"].pid) == (actor, other)
    assert step.worker == found["Model.__init__"].worker != found["load"].worker
    assert step.worker.startswith("worker ")
    assert len({record.host for record in found.values()}) == 1
    assert not step.notes
    assert watching.records[-1].missing == watching.records[-1].notes == ()


def test_what_is_declared_stays_as_it_was(watching):  # noqa: C901 - one class with each kind of method
    """Options, resources, name, generators, class and static methods, groups."""

    def add(a: int, b: int = 2, *, c: int = 3) -> int:
        return a + b + c

    class Actor:
        def __init__(self, start=0):
            self.total, self.both = start, threading.Barrier(2)

        def add(self, more=1):
            self.total = self._sum(more)
            return self.total

        def _sum(self, more):
            return self.total + more

        @ray.method(num_returns=2)
        def two(self):
            return 1, 2

        @ray.method(concurrency_group="io")
        def wait(self):
            self.both.wait(60)

        def count(self, n):
            for i in range(n):
                yield str(i)

        @staticmethod
        def echo(value):
            return value

        @classmethod
        def named(cls):
            return cls.__name__

        def fail(self):
            raise KeyError("no")

    ours = ray.remote(num_cpus=0.5, max_retries=1)(add)
    assert (ours._default_options["num_cpus"], ours._default_options["max_retries"]) == (0.5, 1)
    assert ray.get(ours.remote(1, c=4)) == 7
    assert ray.get(ours.options(name="an addition", num_cpus=1).remote(1)) == 6
    assert ray.get(ray.remote(ours.bind(1)._body).remote(1)) == 6  # as a graph does
    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        ours.remote()
    actor = ray.remote(concurrency_groups={"io": 2})(Actor).remote(5)
    assert "<locals>.Actor, " in repr(actor)
    assert ray.get(actor.add.remote(more=2)) == 7
    assert ray.get(actor.two.remote()) == [1, 2]
    assert [ray.get(item) for item in actor.count.remote(3)] == ["0", "1", "2"]
    assert ray.get([actor.echo.remote("x"), actor.named.remote()]) == ["x", "Actor"]
    ray.get([actor.wait.remote(), actor.wait.remote()])  # each waits for the other
    with pytest.raises(KeyError, match="no") as failure:
        ray.get(actor.fail.remote())
    assert str(failure.value).count("ipygpulogger") == 1  # a frame of the traceback, as the page says

    records = watching.records[-1]
    tasks = sorted(record.task for record in records)
    methods = ("__init__", "add", "count", "echo", "fail", "named", "two", "wait", "wait")
    assert tasks == [*(f"Actor.{name}" for name in methods), "add", "add", "add"]
    assert sorted(record.label for record in records if record.task == "add") == ["add", "add", "an addition"]
    (failed,) = (record for record in records if record.outcome())
    assert (failed.task, failed.error, failed.outcome()) == ("Actor.fail", "KeyError", "failed: KeyError")
    waits = [record.notes for record in records if record.task == "Actor.wait"]
    assert waits == [("shared with 1 other task of its process",)] * 2


def test_async_and_threaded_actors_nested_tasks_and_retries(watching):  # noqa: C901 - a function of each kind
    """One record for each call that Ray made, none for calls that methods make of each other."""

    @ray.remote
    def inner():
        return 1

    remote = ray.remote  # as `from ray import remote` does

    @ray.remote
    class Inner:
        def step(self):
            return 1

    @ray.remote
    def outer():
        unmeasured = remote(lambda: 1)  # what a task declares, with Ray's own function
        actor = Inner.remote()
        methods = inner, inner, actor.step, unmeasured
        # One by one: each at once needs a process. The actor is returned, or its last record might be missing.
        return actor, [ray.get(method.remote()) for method in methods]

    @ray.remote(max_retries=2, retry_exceptions=True)
    def flaky(folder):
        tried = len(list(folder.iterdir()))
        (folder / str(tried)).touch()
        if tried < 2:
            raise OSError("again")

    @ray.remote
    def blocks(n):
        for _ in range(n):
            yield b"x" * (10 * MB)

    @ray.remote(max_concurrency=8)
    class Threaded:
        def __init__(self):
            self.all = threading.Barrier(8)

        def step(self):
            self.all.wait(60)

    @ray.remote
    class Async:
        def __init__(self):
            self.held, self.both = [], asyncio.Event()

        async def hold(self, size_mb):
            held = b"x" * (size_mb * MB)
            self.held.append(size_mb)
            if len(self.held) == 2:
                self.both.set()
            await self.both.wait()
            return await self.helper(held)

        async def helper(self, held):
            return len(held)

    kept_alive, answers = ray.get(outer.remote())
    assert answers == [1, 1, 1, 1]
    assert [len(ray.get(item)) for item in blocks.remote(3)] == [10 * MB] * 3
    threaded = Threaded.remote()
    ray.get([threaded.step.remote() for _ in range(8)])  # its first calls, and all at once
    folder = Path(ray.get_runtime_context().get_temp_dir()) / f"flaky-{os.getpid()}-{time.time_ns()}"
    folder.mkdir()
    ray.get(flaky.remote(folder))
    actor = Async.remote()
    assert ray.get([actor.hold.remote(10), actor.hold.remote(20)]) == [10 * MB, 20 * MB]
    records = watching.records[-1]
    del kept_alive
    tasks = sorted(record.task for record in records)
    assert tasks == [
        *("Async.__init__", "Async.hold", "Async.hold", "Inner.step", "Threaded.__init__"),
        *["Threaded.step"] * 8,
        *("blocks", *["flaky"] * 3, "inner", "inner", "outer"),
    ]
    assert [record.status for record in records if record.task == "flaky"] == ["error", "error", "ok"]
    assert {record.notes for record in records if record.task == "Async.hold"} == {
        ("shared with 1 other task of its process",)
    }
    assert {record.notes for record in records if record.task == "Threaded.step"} == {
        ("shared with 7 other tasks of its process",)
    }
    (stored,) = (record for record in records if record.task == "blocks")
    assert stored.gen.consumed_bytes > 25 * MB  # Ray stores each item while the generator runs
    both = max(
        record.gen.peak.lo_bytes - record.gen.before_bytes for record in records if "hold" in record.task
    )
    assert both == pytest.approx(30 * MB, abs=2 * MB)


def test_workers_that_end_one_that_dies_and_one_without_the_package(watching, tmp_path, capfd):
    """One that ends as it should has sent its records before; tasks without the package run, and that is said once.

    Of a task whose process died there is no record, and Ray raises.
    """
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['ipygpulogger'] = None")

    @ray.remote(max_retries=0)
    def die():
        os._exit(1)

    @ray.remote(max_calls=2)
    def pid(_):
        return os.getpid()

    @ray.remote
    class Leaver:
        def before(self):
            pass

        def leave(self):
            ray.actor.exit_actor()

    leaver = Leaver.remote()
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get([leaver.before.remote(), leaver.leave.remote()])
    assert len(set(ray.get([pid.remote(i) for i in range(3)]))) > 1
    tasks = sorted((record.task, record.status) for record in watching.records[-1])
    assert tasks == [("Leaver.before", "ok"), ("Leaver.leave", "ok"), *[("pid", "ok")] * 3]

    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(die.remote())

    bare = ray.remote(runtime_env={"env_vars": {"PYTHONPATH": str(tmp_path)}})(transient(1))

    @ray.remote
    class Actor:
        def hold(self):
            return len(b"x" * 2 * MB)

    assert ray.get([bare.remote(), bare.remote()]) == [MB, MB]
    actor = Actor.options(runtime_env={"env_vars": {"PYTHONPATH": str(tmp_path)}}).remote()
    assert ray.get(actor.hold.remote()) == 2 * MB
    assert len(watching.records) == 1
    watching.collect(None)
    said = [line for line in capfd.readouterr().err.splitlines() if "cannot use ipygpulogger" in line]
    assert len(said) == 1
    assert "cannot use ipygpulogger (ModuleNotFoundError: " in said[0]
    assert "pip install ipygpulogger" in said[0]


def test_a_table_after_each_cell_in_which_tasks_ended(shell, capsys):
    """Its records are the tasks of that cell; a cell without any shows none; what was declared before is said."""
    shell.user_ns |= {"ray": ray, "watch": watch}
    run = lambda code: shell.run_cell(code, store_history=True).raise_error()  # noqa: E731
    run("@ray.remote\ndef before(): return 1")
    run("watching = watch(ray)\n@ray.remote\ndef hold(n): return len(b'x' * n)")
    watching = shell.user_ns["watching"]
    try:
        said = capsys.readouterr()
        assert "not measured: before" in said.err
        assert "Run their cells again" in said.err
        for size_mb in (30, 60):
            run(f"ray.get([hold.remote({size_mb} << 20), hold.remote({size_mb} << 20)])")
            records = watching.records[-1]
            assert records.label == f"In [{shell.execution_count - 1}]"
            assert [record.task for record in records] == ["hold"] * 2
            for record in records:
                # Not what it peaked at: of two tasks on one worker malloc keeps the memory of the first.
                assert record.gen.needed_bytes == pytest.approx(size_mb * MB, abs=2 * MB)
            assert repr(records).splitlines()[0] in capsys.readouterr().out
        run("ray.get(before.remote())")
        assert len(watching.records) == 2
        assert len(watching.history) == 4
    finally:
        watching.stop()
    run("ray.get(hold.remote(1))")
    assert len(watching.records) == 2
