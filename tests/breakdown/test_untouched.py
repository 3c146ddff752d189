"""A program under ``--peak`` is as it is without: random numbers, profilers, tracers, hooks and settings."""

import json
import os
import subprocess
import sys

import pytest

from ipygpulogger.sources.system import memray as source

pytestmark = pytest.mark.skipif(not source.installed(), reason="memray is not installed")

BEGIN = """
import contextlib, cProfile, gc, json, os, random, signal, sys, threading, warnings
random.seed(7)
numpy = None
with contextlib.suppress(ImportError):
    import numpy
    numpy.random.seed(7)
with_us = sys.argv[1] == "with"
if with_us:
    from ipygpulogger import measure
peak = (lambda: measure(peak="all")) if with_us else contextlib.nullcontext
def called(): return len(bytearray(2000))
def settings():
    for thread in threading.enumerate():  # our watch on memray's file ends by itself, a moment after the block
        thread.name == "ipygpulogger-memray" and thread.join(30)
    found = [random.random(), numpy and float(numpy.random.random()), repr(sys.getprofile()), repr(sys.gettrace())]
    found += [repr(threading._profile_hook), repr(threading._trace_hook), warnings.filters[:], gc.get_threshold()]
    found += [gc.isenabled(), gc.get_debug(), [repr(signal.getsignal(n)) for n in sorted(signal.valid_signals())]]
    monitoring = getattr(sys, "monitoring", None)
    found += [monitoring and [monitoring.get_tool(n) for n in range(6)], vars(threading.Thread).get("_name")]
    found += [sys.getswitchinterval(), os.getcwd(), os.umask(0o22), threading.active_count()]
    return [repr(one).split(" at 0x")[0] if i in (2, 3, 4, 5) else repr(one) for i, one in enumerate(found)]
told = []
def counts(profile):
    profile.create_stats()
    return sorted((key[2], one[0]) for key, one in profile.stats.items() if key[2] == "called")
"""
PLAIN = "with peak():\n    called()\ntold.append(settings())\nwith peak():\n    random.random()\ntold.append(settings())"
# Begun before the block, within, or only while it lasts; what it counts goes on after the block.
PROFILERS = """
profile = cProfile.Profile(); profile.enable()
with peak():
    called(); called()
called()
profile.disable()
told.append(counts(profile)); told.append(settings())
profile = cProfile.Profile()
with peak():
    profile.enable()
    called(); called()
called()
profile.disable()
told.append(counts(profile)); told.append(settings())
profile = cProfile.Profile()
with peak():
    profile.enable(); called(); called(); profile.disable()
called()
told.append(counts(profile)); told.append(settings())
"""
TRACES = """
seen = []
def profile(frame, event, arg):
    if frame.f_code is called.__code__: seen.append(event)
with peak():
    sys.setprofile(profile); threading.setprofile(profile); called()
called(); thread = threading.Thread(target=called); thread.start(); thread.join()
told.append(settings()); sys.setprofile(None); threading.setprofile(None)
told.append(seen)
seen = []
def trace(frame, event, arg):
    if frame.f_code is called.__code__: seen.append(event)
    return trace
with peak():
    sys.settrace(trace); threading.settrace(trace); called()
called()
told.append(settings()); sys.settrace(None); threading.settrace(None); told.append(seen)
if hasattr(sys, "monitoring"):
    m, seen = sys.monitoring, []
    with peak():
        m.use_tool_id(3, "mine"); m.register_callback(3, m.events.PY_START, lambda code, _: seen.append(code.co_name))
        m.set_local_events(3, called.__code__, m.events.PY_START); called()
    called()
    told.append([m.get_tool(3), m.get_local_events(3, called.__code__), seen])
told.append(settings())
"""
CHANGED = """
with peak():
    warnings.simplefilter("error"); gc.set_threshold(123, 7, 5); gc.freeze(); random.seed(3)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
told.append(settings())
"""
PROGRAMS = {"plain": PLAIN, "profilers": PROFILERS, "traces": TRACES, "changed": CHANGED}


def told_by_both(folder, program, env):
    """What a program tells, which is the same with us as without; in a process of its own each time."""
    script, told = folder / "program.py", []
    script.write_text(f"{program}\nprint(json.dumps(told))")
    for how in ("without", "with"):
        ran = subprocess.run(
            [sys.executable, str(script), how],
            capture_output=True, text=True, check=False, timeout=300, env={**env, "PYTHONWARNINGS": "ignore"},
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        assert not ran.stderr
        told.append(json.loads(ran.stdout))
    assert told[1] == told[0]
    return told[0]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_is_as_it_is_without_us(program, tmp_path):
    """What it draws, counts and finds set; in a process of its own, whose first import of memray is ours."""
    assert any(told_by_both(tmp_path, f"{BEGIN}\n{PROGRAMS[program]}", os.environ))


GENERATORS = """
import contextlib, hashlib, json, sys, torch
with_us = sys.argv[1] == "with"
if with_us:
    from ipygpulogger import measure
peak = (lambda: measure(peak="all")) if with_us else contextlib.nullcontext
told = []
def tell():
    told.extend([torch.rand(3).tolist(), torch.randperm(5).tolist(), torch.initial_seed(), torch.cuda.initial_seed()])
    torch.rand(3, device="cuda")  # moves the generator, also where the device computes nothing
    states = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    told.append([hashlib.sha256(state.numpy().tobytes()).hexdigest() for state in states])
torch.manual_seed(7); torch.cuda.manual_seed_all(8)
tell()
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for seeds in (False, True):
    with peak():
        if seeds:
            torch.manual_seed(9)
        dropped = torch.utils.checkpoint.checkpoint(model, torch.rand(4, 8, device="cuda"), use_reentrant=False)
        dropped.sum().backward(); optimizer.step(); optimizer.zero_grad()
        tell()
    tell()
"""


@pytest.mark.torch
def test_torchs_generators_are_drawn_from_as_without_us(kernel_env, tmp_path):
    """Those of the CPU and of each device: what is drawn within and after, and where they stand."""
    moved = told_by_both(tmp_path, GENERATORS, {**kernel_env, "OMP_NUM_THREADS": "1"})[4::5]
    assert len({states[1] for states in moved}) == len(moved)  # each draw moves the first device's
