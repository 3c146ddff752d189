"""A scope from opening to result, on a machine whose truth is known."""

import gc
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from counters import Model
from memory import MB, blip

from ipygpulogger.engine import children
from ipygpulogger.engine import machine as machines
from ipygpulogger.engine.device_scope import DeviceScope
from ipygpulogger.engine.machine import Machine, machine
from ipygpulogger.engine.sampler import Measuring
from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import Measurement
from ipygpulogger.render import text
from ipygpulogger.runtime import clock
from ipygpulogger.runtime.wrappers import Call
from ipygpulogger.sources import Device
from ipygpulogger.sources.contract import Notes
from ipygpulogger.sources.nvidia import driver


def mb(size_bytes):
    return round(size_bytes / MB)


@pytest.fixture
def fresh(gpu):
    """A machine of its own, so that nothing is known from earlier tests."""
    fresh = Machine()
    yield fresh
    fresh.close()


def run(on, *steps, **options):
    scope = Scope(on, **options)
    scope.open()
    for step in steps:
        step()
    scope.close()
    return scope.result(Measurement, "test")


# -- general RAM -----------------------------------------------------------------------------------


@pytest.mark.linux("no mark can be reset elsewhere")
def test_without_resets_the_users_ru_maxrss_stays():
    """reset_peaks=False leaves the kernel's mark alone; then a smaller peak is bounded by the record."""
    program = textwrap.dedent(
        f"""
        import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from memory import blip
        from ipygpulogger.records import Measurement
        from ipygpulogger.engine.machine import machine
        from ipygpulogger.engine.scope import Scope
        from ipygpulogger.sources.system.linux import resident_and_mark_bytes
        blip(300)
        record = resident_and_mark_bytes()[1]
        machine()
        for reset in (False, True):
            scope = Scope(reset_peaks=reset).open()
            blip(40)
            scope.close()
            peak = scope.result(Measurement, "").gen.peak
            print(peak.quality, resident_and_mark_bytes()[1] >= record)
        """
    )
    out = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert out.splitlines() == ["bounded True", "exact False"]


def test_asking_takes_no_note_and_sets_no_clock(monkeypatch):
    """What is missing is said in the record, whoever asked before; the time is the scope's own."""
    on = machine()
    scope = Scope().open()
    monkeypatch.setattr(on, "notes", Notes())
    on.notes.add("a driver went away")
    assert scope.so_far("x").notes == ()
    assert scope.time_s == 0.0
    scope.close()
    time_s = scope.time_s
    scope.so_far("x")  # a thread that comes late
    assert scope.time_s == time_s
    assert scope.result(Measurement, "x").notes == ("a driver went away",)


def test_asking_lists_no_processes(monkeypatch):
    """Neither the children nor the driver's processes: no question that takes milliseconds."""
    scope = Scope().open()
    on = machine()
    monkeypatch.setattr(on.child_peaks, "observe", lambda: pytest.fail("asked for children"))
    monkeypatch.setattr(on.nvml, "own_bytes", lambda _: pytest.fail("asked for processes"))
    scope.so_far("x")
    monkeypatch.undo()
    scope.close()


def test_a_scope_ends_with_the_call_that_it_must_not_outlive(fresh):
    """A training that an exception ends tells nobody: its scope is closed at the next event of any other."""

    kept = []

    def train():
        scope = Scope(fresh, during=Call(sys._getframe())).open()
        kept.append(scope)
        Scope(fresh).open().close()
        assert set(fresh.scopes) == {scope}  # the call still runs
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert fresh.scopes
    fresh.sample()  # as the sampler does, if nothing else is measured
    assert not fresh.scopes


def test_a_call_on_another_thread_is_seen():
    """Whether a call runs is told from any thread, and nothing of it is kept alive."""
    begun, end, calls = threading.Event(), threading.Event(), []

    def train(kept):
        local = {"a set"}
        kept.append(weakref.ref(local))
        calls.append(Call(sys._getframe()))
        begun.set()
        end.wait(30)

    kept = []
    thread = threading.Thread(target=train, args=(kept,))
    thread.start()
    begun.wait(30)
    assert calls[0].running()
    end.set()
    thread.join()
    assert not calls[0].running()
    assert kept[0]() is None


def test_our_own_cost_is_not_the_scopes_time(fresh, monkeypatch):
    """Snapshots, however slow, happen before the clock starts and after it stops."""
    now = SimpleNamespace(s=1000.0)

    def slow(real, *asked):
        now.s += 10
        return real(*asked)

    for where, name in ((fresh.nvml, "devices"), (fresh.process, "has_children"), (fresh.process, "heap")):
        monkeypatch.setattr(where, name, partial(slow, getattr(where, name)))
    monkeypatch.setattr(clock, "monotonic_s", lambda: now.s)
    assert run(fresh, lambda: setattr(now, "s", now.s + 2)).time_s == 2


@pytest.fixture
def raw(monkeypatch):
    """The process has loaded CUDA's library, by which way ever."""
    monkeypatch.setattr(driver, "absent", lambda: False)


# -- whatever happens ------------------------------------------------------------------------------


def test_one_machine_however_many_ask_first(monkeypatch):
    """Two of them would reset each other's peaks."""
    made, together = [], threading.Barrier(4)

    class Slow(Machine):
        def __init__(self):
            made.append(self)
            time.sleep(0.05)
            super().__init__()

    def ask():
        together.wait()
        machine()

    monkeypatch.setattr(machines, "_machine", None)
    monkeypatch.setattr(machines, "Machine", Slow)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(made) == 1


@pytest.mark.usefixtures("fresh_mark")
def test_a_system_that_gives_no_thread(gpu, fresh, monkeypatch):
    """The sampler cannot begin: the numbers are there all the same, and nothing is left counted."""

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert mb(run(fresh, lambda: blip(64)).gen.peaked_bytes) == 64
    assert not fresh.sampler._wanted


def test_a_card_in_a_container_where_we_have_a_context(gpu, fresh, raw, monkeypatch):
    """No framework, and the driver lists the host's pids: the row is there, its figures unknown."""
    gpu.dev[0].add_process(os.getpid(), 900 * MB)
    gpu.pid_offset = 5_000_000
    monkeypatch.setattr(driver, "contexts", lambda: (0,))
    monkeypatch.setattr(
        driver, "device", lambda ordinal: driver.Device("cuda", ordinal, "", gpu.dev[ordinal].uuid.decode())
    )
    result = run(fresh)
    (usage,) = result.gpus
    assert not usage.attributed
    assert usage.used_bytes == 900 * MB
    assert re.search(
        r"^GPU:      n/a    n/a      900 MB  \(per-process usage unavailable",
        text.report(result),
        re.MULTILINE,
    )


@pytest.mark.parametrize("whose", ["ours", "another's", "nobody's"])
def test_a_rise_outside_the_allocators_is_said(gpu, fresh, raw, whose):
    """5 GB for a moment, whoever held them: no peak, and the row says how much, of an unknown owner."""
    rows = gpu.dev[0].add_process(os.getpid(), 200 * MB), gpu.dev[0].add_process(1, 10 * MB)
    thing, name = {"ours": (rows[0], "used"), "another's": (rows[1], "used")}.get(
        whose, (gpu.dev[0], "base_used")
    )
    before_bytes = getattr(thing, name)

    def rise():
        setattr(thing, name, before_bytes + 5120 * MB)
        fresh.sample()
        setattr(thing, name, before_bytes)

    result = run(fresh, rise)
    assert (result.gpus[0].peaked_bytes, result.gpus[0].unknown_rise_bytes) == (0, 5120 * MB)
    assert "(5120 MB more for a moment, owner unknown)" in text.report(result)


@pytest.mark.parametrize(
    ("peak_class", "sampled"), [("resettable", False), ("monotone", True), ("sampled", True)]
)
def test_general_ram_is_sampled_where_its_peak_cannot_be_reset(peak_class, sampled):
    """And only once somebody measures it; elsewhere samples would show nothing that its counter does not."""
    on = Machine(SimpleNamespace(counter=Model(peak_class=peak_class)))
    assert on.samples_ram is False
    assert on.resident_bytes() == 1000
    assert on.samples_ram is sampled


@pytest.mark.parametrize(("version", "threads", "running", "sampled", "said"), [
    ((3, 11), 1, False, False, "start"),  # it warns of no fork
    ((3, 11), 2, True, False, "start"),
    ((3, 12), 1, False, False, "close"),
    ((3, 12), 2, True, False, "close"),  # ours is the only other one
    ((3, 12), 2, True, True, None),  # a device is sampled, which goes on
    ((3, 12), 2, False, False, "start"),  # it warns anyway
    ((3, 12), 3, True, False, "start"),
])  # fmt: skip
def test_before_a_fork(fresh, monkeypatch, version, threads, running, sampled, said):
    """Children are sampled, unless ours is the only other thread and Python would warn of it; then it ends."""
    calls, scope, lines = (
        [],
        Scope(fresh, reset_peaks=False),
        Measuring(),
    )  # children do not concern the lines
    sampler = SimpleNamespace(
        is_running=running,
        start=lambda whom: calls.append("start" if whom is scope else whom),
        stop=lambda _: None,
        close=lambda although_wanted=False: calls.append("close" if although_wanted else "rest"),
    )
    monkeypatch.setattr(fresh, "sampler", sampler)
    scope.open()
    fresh.scopes.add(lines)
    monkeypatch.setattr(
        scope, "device_scopes", lambda: [DeviceScope(Device("cuda", 0, "", "GPU-1"))] * sampled
    )
    calls.clear()
    with monkeypatch.context() as patch:
        patch.setattr(machines.sys, "version_info", version)
        patch.setattr(machines.linux, "thread_count", lambda: threads)
        fresh.before_fork()
    fresh.scopes.discard(lines)
    scope.close()
    assert calls == [*filter(None, [said]), "rest"]


def test_a_fork_asks_the_machine_if_there_is_one(monkeypatch):
    """A process that measures nothing so far has none."""
    asked = []
    for one in (None, SimpleNamespace(before_fork=lambda: asked.append(1))):
        monkeypatch.setattr(machines, "_machine", one)
        machines._before_fork()
    assert asked == [1]


@pytest.mark.linux("Windows starts programs otherwise", "macos")
def test_starts_of_programs_are_watched_while_something_is_open(fresh):
    """After the last scope Python's own function is back."""
    plain = os.posix_spawn
    first, second = Scope(fresh).open(), Scope(fresh).open()
    first.close()
    assert os.posix_spawn is not plain
    second.close()
    assert os.posix_spawn is plain


# -- settling --------------------------------------------------------------------------------------


def test_settling_costs_once(fresh, monkeypatch):
    """One full collection after a scope; the next settle, nothing having run, only looks at the young."""
    calls = []
    monkeypatch.setattr(gc, "collect", calls.append)
    run(fresh)
    fresh.settling.settle(gc_collect=True, clear_cache=True)
    fresh.settling.settle(gc_collect=True, clear_cache=True)
    run(fresh)
    fresh.settling.settle(gc_collect=True, clear_cache=True)
    fresh.settling.settle(gc_collect=False, clear_cache=True)
    assert calls == [2, 1, 2]


def test_a_finalizer_that_ends_a_scope_while_another_makes_its_children_gets_the_same(fresh, monkeypatch):
    """The garbage collector may run it at any allocation of ours: it neither waits nor makes them twice."""
    made = []

    class Interrupted(children.Children):
        def __init__(self, *args):
            super().__init__(*args)
            if not made:
                made.append(self)
                made.append(scope.with_children())

    scope = Scope(fresh).open()
    monkeypatch.setattr(children, "Children", Interrupted)
    asking = threading.Thread(target=lambda: made.append(scope.with_children()), daemon=True)
    asking.start()
    asking.join(10)
    scope.close()
    assert len(made) == 3
    assert made[1] is made[2] is scope.with_children()
