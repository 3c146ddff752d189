"""What `watch(ray)` does to functions and classes, and what its parts tell each other; without Ray."""

import contextvars
import dataclasses
import dis
import inspect
import sys
import types

import made
import pytest
from fake_ray import FakeRay

from ipygpulogger.cluster import arrivals, dask_worker, ray_worker, watch
from ipygpulogger.cluster.ray_worker import mailbox_class, measured
from ipygpulogger.records.process import Process, ProcessRecord

RECORD = arrivals.packed(ProcessRecord.of(made.plain(), Process("node", 7)))


@pytest.fixture
def ray(monkeypatch):
    """A Ray in which a call runs at once, initialized."""
    fake = FakeRay()
    fake.start()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(ray_worker, "_RECHECK_S", 0)
    monkeypatch.setattr(ray_worker, "outbox", ray_worker.Outbox())
    return fake


@pytest.fixture
def watching(ray):
    """That Ray, watched."""
    own = ray.remote
    with watch(ray) as found:
        yield found
    assert own is ray.remote
    assert not ray.actors


def plain(a, b=2, *, c: int = 3) -> int:
    """Return the sum."""
    return a + b + c


plain.mark = "kept"


async def coroutine():
    return 1


def generator():
    yield 1


async def items():
    yield 1


@pytest.mark.parametrize("function", [plain, coroutine, generator])
def test_a_measured_function_looks_like_the_given_one(function):
    """Name, module, documentation, signature, attributes and kind; it is not wrapped twice, nor is what is Ray's."""
    ours = measured(function)
    assert ours is not function
    assert measured(ours) is ours
    assert measured(ours) is ours
    assert inspect.signature(ours) == inspect.signature(function)
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction)
    assert [kind(ours) for kind in kinds] == [kind(function) for kind in kinds]
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__dict__"):
        theirs = getattr(function, name)
        assert getattr(ours, name) == theirs or theirs.items() <= getattr(ours, name).items()
    rays = type("Theirs", (), {"__module__": "ray.data"})
    assert [measured(one) for one in (rays, len, items)] == [rays, len, items]


def test_a_measured_function_called_outside_ray(ray, monkeypatch):
    """Ray starts itself where it is asked for its context; it is not asked."""
    ray.end()
    monkeypatch.setattr(ray, "get_runtime_context", lambda: pytest.fail("Ray was started"))
    assert measured(plain)(1) == 6


def globals_of(code):
    """The global names that a function reads, and those within it."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    read = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return read.union(*map(globals_of, inner))


def test_what_is_sent_to_workers_needs_no_package(ray, monkeypatch):
    """No function of ours within it uses a global name of the package: a worker without the package can run it."""
    bases = types.SimpleNamespace(WorkerPlugin=object)
    monkeypatch.setitem(sys.modules, "distributed", bases)

    class Actor:
        def step(self):
            pass

    waiting, seen = [measured(one) for one in (plain, coroutine, generator, Actor)], []
    waiting += [mailbox_class(1), type(dask_worker.worker_plugin("t"))]
    while waiting:
        one = waiting.pop()
        if isinstance(one, type):
            waiting += [f for f in map(inspect.unwrap, vars(one).values()) if inspect.isfunction(f)]
            waiting += [f for f in vars(one).values() if inspect.isfunction(f)]
        if not isinstance(one, types.FunctionType) or one in seen:
            continue
        seen.append(one)
        waiting += [cell.cell_contents for cell in one.__closure__ or ()]
        if one.__globals__["__name__"].startswith("ipygpulogger"):
            assert globals_of(one.__code__) & one.__globals__.keys() <= {"__name__"}, one
    assert len(seen) > 20


def test_a_generator_that_is_left_and_a_task_that_is_cancelled(ray, watching):
    """Both have their record; the next task has its own, and shares nothing with them."""

    @ray.remote
    def counting():
        yield from "abc"

    @ray.remote
    def cancelled():
        raise KeyboardInterrupt

    @ray.remote
    def next_one():
        pass

    left = ray.as_task("counting", lambda: (items := counting._function(), next(items)))[0]
    contextvars.Context().run(left.close)  # as the garbage collector of another thread does
    with pytest.raises(KeyboardInterrupt):
        cancelled.remote()
    next_one.remote()
    (group,) = watching.collect("In [1]")
    found = {record.label: record for record in group}
    ends = {name.rpartition(".")[2]: record.status for name, record in found.items()}
    assert ends == {"counting": "ok", "cancelled": "interrupted", "next_one": "ok"}
    assert not any(record.notes for record in group)


def test_stopped_begun_anew_and_restarted(ray, capsys):
    """The same watch goes on if asked for again; functions stay measured under the next; it ends with Ray."""
    first = watch(ray)
    f = ray.remote(plain)
    f.remote(1)
    assert watch(ray, report=False) is first
    assert not first.shows
    first.stop()
    first.stop()
    assert len(first.records[-1]) == 1
    assert repr(first) == "<RayWatch: stopped, 1 record>"
    assert f.remote(1).result() == 6
    with watch(ray) as second:
        assert second is not first
        assert second.shows
        f.remote(1)
        f.remote(1)
        assert len(second.records[-1]) == 2
        ray.shutdown()
        assert len(second.records) == 1
        assert not second.is_running
        assert "no more: it was shut down; after ray.init(), call watch(ray) again" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"call ray\.init\(\), and then watch\(ray\)"):
        watch(ray)
    assert len(first.records) == 1
    assert not ray.actors


def test_what_does_not_arrive_is_said(ray, watching, capsys):
    """Lost and invalid records, workers without the package; where the mailbox dies, the watch ends."""
    (mailbox,) = (actor.instance for actor in ray.actors.values())
    for record, lost in (b"{}", 0), ("text", 0), (RECORD, 3), (None, 1):
        mailbox.take(record, lost)
    (group,) = watching.collect("In [1]")
    assert len(group) == 1
    assert group.notes == (
        "2 of what arrived are not valid and left out",
        "4 more tasks ended, whose records did not arrive",
    )
    for node in "abc":
        mailbox.cannot(f"node-{node}", "ImportError: x")
        watching.collect(None)
    said = capsys.readouterr().err
    assert said.count("cannot use ipygpulogger (ImportError: x)") == 1
    assert "pip install ipygpulogger==" in said
    ray.kill(*ray.actors.values())
    assert not watching.collect(None)
    assert "measures the tasks of Ray no more: the actor died" in capsys.readouterr().err
    assert not watching.is_running
    with watch(ray) as another:
        ray.remote(plain).remote(1)
        assert len(another.records[-1]) == 1


def test_an_actor_class_that_cannot_be_hashed(ray, monkeypatch, capsys):
    """One of a dataclass: it is said if it was declared before, and measured after."""
    actor = dataclasses.make_dataclass("Actor", [("x", int)])
    monkeypatch.setattr(sys.modules["__main__"], "early", ray.remote(actor), raising=False)
    with watch(ray) as watching:
        monkeypatch.setattr(sys.modules["__main__"], "late", ray.remote(actor), raising=False)
        sys.modules["__main__"].late.remote(1)
        assert len(watching.records[-1]) == 1
    with watch(ray):
        pass
    assert capsys.readouterr().err.count("and so not measured: early. ") == 2


def test_of_very_many_tasks_a_bounded_number_is_held(ray, monkeypatch):
    """By the mailbox, and by Ray of the calls that it has not answered; those beyond are counted as lost."""
    mailbox = mailbox_class(3)()
    for number in range(5):
        mailbox.take(b"%d" % number, 0)
    assert mailbox.empty() == ([b"0", b"1", b"2"], 2, "")
    assert mailbox.empty() == ([], 0, "")
    taken, answers, outbox = [], [True, False, False, True, True, True], ray_worker.Outbox()

    def take(*call):
        if not answers.pop(0):
            raise RuntimeError("as many calls are pending as there may be")
        taken.append(call)
        return types.SimpleNamespace(future=lambda: types.SimpleNamespace(add_done_callback=lambda _: None))

    fake = types.SimpleNamespace(take=types.SimpleNamespace(remote=take))
    monkeypatch.setattr(ray, "get_actor", lambda _: fake)
    assert outbox.has_mailbox()
    for record in *[b"x"] * 5, None:
        outbox.send(record)
    assert taken == [(b"x", 0), (b"x", 2), (b"x", 0), (None, 1)]
