"""Nothing of ours is garbage: the user's collector finds the same objects with us as without us."""

import gc
import re

import pytest
from experiment_rig import run
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ipygpulogger import IPyGPULogger
from ipygpulogger.experiments import IPyExperimentsCPU
from ipygpulogger.notebook.magics import GpulogMagics

LOAD = "%load_ext ipygpulogger\nMagics.of(get_ipython()).logger.gc_collect = False"
OURS = [
    "exp = X(cl_gc_collect=False)",
    "exp = X(cl_enable=False)",
    "if exp: exp.finish()",
    "if exp: exp.print_state()",
    "if exp and exp.cl: exp.cl.stop()",
    "if exp and exp.cl: exp.cl.start()",
    "exp = None",
    "with X(cl_gc_collect=False) as exp: pass",
    "il = L(gc_collect=False)",
    "if il: il.start()",
    "if il: il.stop()",
    "il = None",
    LOAD,
    "%unload_ext ipygpulogger",
]
STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from(["pass", "c = None", *OURS])), max_size=7)
CLEARED = re.compile(r"^cleared (\d+) objects", re.MULTILINE)


def found(shell, capsys, steps, *, ours):
    """By step: the objects that the collector finds after it, and those that an experiment's end says it found."""
    shell.user_ns.update(X=IPyExperimentsCPU, L=IPyGPULogger, Magics=GpulogMagics, exp=None, il=None, c=None)
    counts = []
    gc.collect()
    for captured, code in steps:
        code = code if ours or code not in OURS else "pass"  # noqa: PLW2901 - this step, without us
        shell.user_ns.setdefault("exp", None)  # an experiment that ends deletes it, if it began without it
        assert run(shell, f"%%capture c\n{code}" if captured else code).success
        said = capsys.readouterr().out + str(shell.user_ns["c"] or "")
        counts.append(gc.collect() + sum(map(int, CLEARED.findall(said))))
    for code in ("exp = None", "il = None", "%unload_ext ipygpulogger", "c = None"):
        run(shell, code)
    for logger in [one for one in shell.configurables if isinstance(one, IPyGPULogger)]:
        logger.stop()  # a name was lost while it ran
    gc.collect()
    capsys.readouterr()
    return counts


@pytest.fixture
def warm(shell, capsys):
    """The shell, with everything imported that the steps need: what an import leaves is not meant here."""
    found(shell, capsys, [(True, "print(1)"), *((False, code) for code in OURS)], ours=True)
    return shell


@example([(False, "exp = X(cl_gc_collect=False)"), (False, "exp = None")])
@example([*[(False, OURS[0])] * 2, (False, "exp = None"), (True, "if exp: exp.finish()")])
@example([(False, "il = L(gc_collect=False)"), (False, "if il: il.start()"), (False, "il = None")])
@example([(False, LOAD), (False, "pass"), (False, "%unload_ext ipygpulogger")])
@given(STEPS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_collector_finds_what_it_finds_without_us(warm, capsys, steps):
    """After each of any sequence of starts, stops and ends, also under %%capture."""
    assert found(warm, capsys, steps, ours=True) == found(warm, capsys, steps, ours=False)


def test_no_thread_keeps_a_captured_stream(warm, capsys, monkeypatch):
    """A thread that begins in a captured cell keeps nothing of the cell's streams, running or stopped."""
    import threading

    begun, start = [], threading.Thread.start

    def noted(thread):
        begun.append(thread)
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", noted)
        run(warm, "%%capture c\nimport sys\nstreams = sys.stdout, sys.stderr\nexp = X(cl_gc_collect=False)")
    streams = warm.user_ns.pop("streams")
    assert begun
    kept = {id(value) for thread in begun for value in gc.get_referents(thread, vars(thread))}
    assert kept.isdisjoint(map(id, streams))
    run(warm, "exp.finish();")
