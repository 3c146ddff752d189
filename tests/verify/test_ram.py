"""The checks of RAM hold here, would notice a megabyte, leave nothing behind when interrupted, and say what they cannot check."""

import dataclasses
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from ram import needs_high_water

from ipygpulogger.engine import sampler
from ipygpulogger.engine.machine import machine
from ipygpulogger.sources.system import linux
from ipygpulogger.sources.system.ram_limit import MemoryLimit
from ipygpulogger.verify import check, ram
from ipygpulogger.verify.check import Figure, Unchecked

MB = 2**20
STRIKES = int(os.environ.get("STRIKES", "6"))  # 0: each line
pytestmark = pytest.mark.linux("the truth is read from /proc")
CHECKS = {check.name: i for i, check in enumerate(ram.checks())}


@pytest.fixture(scope="module")
def found():
    """What all checks find here, by the name of the check."""
    return {check.name: list(check.found()) for check in ram.checks()}


@pytest.fixture
def small(monkeypatch):
    """Little memory comes and goes, so that a check is fast."""
    monkeypatch.setattr(ram, "_UNIT_BYTES", ram._LEAST_UNIT_BYTES)


# -- the verdict ------------------------------------------------------------------------------------------


def test_a_figure_is_wrong_if_no_truth_is_within_what_it_claims():
    """`is_wrong`, against all combinations of small integers: the claim is a set, and so is the truth."""
    numbers = range(-2, 4)
    for lo, least, most, precision in itertools.product(numbers, numbers, numbers, (0, 1)):
        truth = set(range(least, most + 1))
        for hi in (*numbers, None) if truth else ():
            label = "at least" if hi is None else "exact" if lo == hi else "bounded"
            highest = 100 if hi is None else hi + precision
            claimed = set(range(lo - precision, highest + 1)) if hi is None or lo <= hi else set()
            figure = Figure("RAM", "", "", (least, most), lo, hi, label, precision=precision)
            assert figure.is_wrong == (not claimed & truth), figure


@pytest.mark.parametrize("label", ["exact", "bounded", "at least"])
def test_what_is_no_number_is_wrong(label):
    """NaN claims nothing, and neither does an exact figure without an upper bound: never a silent pass."""
    assert Figure("RAM", "", "", (0, 1), float("nan"), float("nan"), label).is_wrong
    assert Figure("RAM", "", "", (0, 1), 0, None, label).is_wrong == (label != "at least")


# -- on this machine -----------------------------------------------------------------------------------------


def test_every_figure_holds_here(found):
    """Each check finds something, and no figure is wrong."""
    assert all(found.values())
    figures = [one for each in found.values() for one in each if isinstance(one, Figure)]
    assert not [one for one in figures if one.is_wrong]
    assert {"RAM", "time", "settings"} <= {one.where for one in figures}


@needs_high_water
def test_what_is_checked_where_the_mark_can_be_reset(found):
    """Each kind of figure and of child is checked, and all of this process's own are exact but the one without a reset."""
    figures = [one for each in found.values() for one in each if isinstance(one, Figure)]
    own = [one for one in figures if one.where == "RAM"]
    assert {one.what for one in own} == {"consumed", "needed", "used", "ru_maxrss"}
    assert {one.case for one in own if one.label != "exact"} == {"reset_peaks=False, a scope"}
    children = {one.where for one in figures} - {"RAM", "time", "settings"}
    assert children == {"child (fork)", "child (spawn)"}


@needs_high_water
@pytest.mark.parametrize("off", [-MB, MB])
def test_a_fault_of_a_megabyte_shows(found, off):
    """Each exact figure of this process, a megabyte beyond what its counter's precision allows, is wrong."""
    figures = [one for each in found.values() for one in each if isinstance(one, Figure)]
    exact = [one for one in figures if one.label == "exact" and one.where == "RAM"]
    assert len(exact) > 25
    for one in exact:
        far = off * (1 + one.precision / MB)
        assert dataclasses.replace(one, lo=one.lo + far, hi=one.hi + far).is_wrong, one
        truth = one.truth[1] - one.truth[0]
        assert truth < MB


def test_a_clock_that_jumps_shows(small, monkeypatch):
    """A second that the clock skips, or stands still, within a block."""

    def shows(jump_s):
        steps = itertools.count()
        clock = ram.measure.__globals__["clock"]
        real = clock.monotonic_s
        monkeypatch.setattr(clock, "monotonic_s", lambda: real() + jump_s * (next(steps) // 4))
        (figure,) = next(check for check in ram.checks() if check.name == "the time of a block").found()
        monkeypatch.undo()
        return figure.is_wrong

    for jump_s in -0.05, 1.0:
        assert any(shows(jump_s) for _ in range(5))  # on a busy machine the truth may be as uncertain as that


@needs_high_water
def test_a_mark_that_was_reset_just_before(small):
    """Then any block would be a new record of `ru_maxrss`, which is no fault of ours: the check raises it first."""
    (one,) = (one for one in ram.checks() if one.name == "RAM without a reset of the peak")
    linux.reset_mark()
    assert not [figure for figure in one.found() if figure.is_wrong]


# -- where it cannot be checked -------------------------------------------------------------------------------


def test_off_linux_all_is_unchecked(monkeypatch):
    """Without /proc one sentence says why nothing was found."""
    monkeypatch.setattr(ram, "Path", lambda path: Path("/nowhere", path[1:]))
    (only,) = (one for check in ram.checks() for one in check.found())
    assert isinstance(only, Unchecked)
    assert "/proc" in only.reason


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
def test_without_page_tables(monkeypatch, error):
    """As on gVisor, or without the right: RAM is checked by statm, children are not, and why is said."""

    class Hidden:
        def read_text(self, **_):
            raise error(1, "not here")

    monkeypatch.setattr(ram, "Path", lambda path: Hidden() if "smaps" in path else Path(path))
    by_name = {check.name: list(check.found()) for check in ram.checks()}
    for name in "forked children", "spawned children":
        (only,) = by_name.pop(name)
        assert isinstance(only, Unchecked)
        assert only.reason.endswith("not here")
    assert not [one for found in by_name.values() for one in found if one.is_wrong]


@pytest.mark.parametrize(
    ("left_mb", "unit_mb"), [(100_000, 32), (1200, 20), (480, 8), (479, None), (0, None)]
)
def test_how_much_is_taken_depends_on_what_is_left(monkeypatch, left_mb, unit_mb):
    """At most a tenth of what a container has left; where that is too little, it says so."""
    limit = MemoryLimit("container limit", "memory.max", 200_000 * MB, (200_000 - left_mb) * MB)
    monkeypatch.setattr(machine().limits, "all", lambda: [limit])
    first, *_ = ram.checks()
    if unit_mb is None:
        (only,) = first.found()
        assert "container limit" in only.reason
    else:
        (bench,) = first.run.args
        assert bench.unit_bytes == unit_mb * MB
        assert 6 * bench.unit_bytes <= left_mb * MB / 10


def test_a_short_lived_program_that_nobody_saw(small, monkeypatch):
    """A child that was dead before anyone looked is unknown, "at least 0", and no fault."""
    with subprocess.Popen([sys.executable, "-c", "bytearray(10**8)"]):
        pass  # so that the mark of dead children does not rise
    monkeypatch.setattr(sampler.Sampler, "start", lambda *_: True)
    (check,) = (check for check in ram.checks() if check.name == "spawned children")
    (dead,) = (one for one in check.found() if one.case == "dead at the end")
    assert (dead.what, dead.label, dead.is_wrong) == ("needed", "at least", False)


def test_children_of_a_program_without_a_guard(tmp_path):
    """A script without a `__main__` guard, also one that `runpy` runs: it is not run again in a child."""
    script = tmp_path / "script.py"
    script.write_text(
        "from ipygpulogger.cli import main\nprint('once', main(['doctor', '--verify', '--quick']))"
    )
    run = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    for words in [script], ["-c", run]:
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
        assert (done.stdout.count("once 0"), done.stderr) == (1, "")
        assert "child (spawn)" in done.stdout


def test_settings_are_restored(small):
    """While it runs no collection and no huge page comes; after a Ctrl-C at a figure all is as it was."""
    with closing(ram.checks()[0].found()) as running:
        next(running)
        assert not gc.isenabled() and check._huge_pages_off()
        with pytest.raises(KeyboardInterrupt):
            running.throw(KeyboardInterrupt)
    assert gc.isenabled() and not check._huge_pages_off()


# -- an interrupt ----------------------------------------------------------------------------------------------


class Strike:
    """Traces the lines of the checks, and presses Ctrl-C at one of them."""

    def __init__(self, at=-1):
        self.at, self.count = at, 0

    def __call__(self, frame, event, _):
        if frame.f_code.co_filename not in (ram.__file__, check.__file__):
            return None
        if event == "line":
            self.count += 1
            if self.count - 1 == self.at:
                signal.raise_signal(signal.SIGINT)
        return self

    def run(self, number):
        """Run a check; whether it was interrupted."""
        before = sys.gettrace()
        one = ram.checks()[number]
        sys.settrace(self)
        try:
            with closing(one.found()) as found:
                list(found)
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


@pytest.mark.parametrize("name", CHECKS)
def test_an_interrupt_at_each_line_leaves_nothing(small, name):
    """No child, thread, open scope, blocked signal or memory is left, wherever Ctrl-C strikes within a check."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    whole = Strike()
    whole.run(CHECKS[name])
    threads = threading.active_count()
    gc.collect()
    before_bytes, struck = ram.Ram(0).used_bytes(), 0
    for at in range(0, whole.count, max(1, whole.count // STRIKES) if STRIKES else 1):
        struck += Strike(at).run(CHECKS[name])
        gc.enable()  # which ends with the process, if Ctrl-C strikes within the restoring
        gc.collect()
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()), at
        assert threading.active_count() == threads, at
        assert not machine().scopes.is_measuring(), at
        for child in psutil.Process().children():
            child.wait(10)  # it ends by itself
        assert ram.Ram(0).used_bytes() - before_bytes < ram._LEAST_UNIT_BYTES - MB, at
    assert struck
