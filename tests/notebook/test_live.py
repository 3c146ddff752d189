"""When a running cell is shown, and where: the thread, the threshold, forks, the place that fits."""

import os
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
from places import TIMEOUT_S, Publisher, Recorder, begun, standing

from ipygpulogger.engine.machine import machine
from ipygpulogger.engine.scope import Scope
from ipygpulogger.notebook import live
from ipygpulogger.notebook.live import Live, display_for
from ipygpulogger.records import Measurement


def test_a_cell_that_lasts_is_shown_again_and_again_until_it_ends(running):
    """Label, figures so far and remarks; after its end nothing more, and it is cleared once."""
    for _ in range(3):
        assert running.place.shown.acquire(timeout=TIMEOUT_S)
    running.cell.end()
    told = len(running.place.told)
    assert {(m.label, m.notes) for m in running.place.told[:3]} == {("In [4]", ("Over budget",))}
    running.cell.drop()
    running.cell.drop()
    assert running.place.told[told - 1 :] == ["end", "clear"]


def test_a_cell_that_goes_on_unseen_has_not_ended(running):
    """A stop within the cell: what was shown is cleared, and the place is not told of an end."""
    assert running.place.shown.acquire(timeout=TIMEOUT_S)
    running.cell.drop()
    told = len(running.place.told)
    running.cell.end()
    running.cell.drop()
    assert running.place.told[-1] == "clear"
    assert "end" not in running.place.told
    assert len(running.place.told) == told


def test_a_short_cell_is_never_shown(monkeypatch):
    """Whoever ends before the threshold was not looked at, and pays for one thread in a session."""
    monkeypatch.setattr(live, "AFTER_S", 3600.0)
    shown = Live(lambda _: ())
    seen = set()
    for _ in range(20):
        place = Recorder()
        cell = begun(shown.cell("In [4]", None, place))
        seen |= {thread.ident for thread in threading.enumerate() if thread.name == "ipygpulogger live"}
        cell.end()
        cell.drop()
        assert place.told == ["end", "clear"]
    shown.close()
    assert len(seen) == 1


def test_memory_over_time_begins_with_the_cell(monkeypatch):
    """Long before the cell is shown: what it held in its first half is in the first half of the series."""
    monkeypatch.setattr(live, "AFTER_S", 3600.0)
    monkeypatch.setattr(machine().sampler, "start", lambda _: False)  # as where there is no device
    shown, scope = Live(lambda _: ()), Scope().open()
    cell = begun(shown.cell("In [4]", scope, Recorder()))
    held = bytearray(b"x") * (64 << 20)
    time.sleep(0.5)
    del held
    time.sleep(0.5)
    cell.end()
    scope.close()
    cell.drop()
    shown.close()
    gen = scope.result(Measurement, "cell").gen
    high_at_s = [at_s for at_s, size in gen.timeline if size > gen.before_bytes + (60 << 20)]
    assert len(high_at_s) >= 2 and max(high_at_s) < scope.time_s * 0.75
    assert any(
        at_s > scope.time_s * 0.6 for at_s, size in gen.timeline[:-1] if size < gen.before_bytes + (4 << 20)
    )


@pytest.mark.parametrize("stays", [True, False])
def test_what_did_not_change_is_not_redrawn(stays):
    """Figures that stand at the place come again with the time of five seconds later, or with a new figure."""
    moments = [(2, 100), (3, 100), (4, 100), (5, 101), (6, 101), (9, 101), (10, 101), (11, 101)]
    place, ahead = Recorder(), iter(standing(float(time_s), used_mb=used_mb) for time_s, used_mb in moments)
    place.show = lambda measurement: (place.told.append(measurement.time_s), stays)[1]
    cell = Live(lambda _: ()).cell("In [4]", SimpleNamespace(so_far=lambda _: next(ahead)), place)
    for _ in moments:
        cell.show()
    assert place.told == ([2, 5, 10] if stays else [time_s for time_s, _ in moments])


@pytest.mark.parametrize("error", [OSError("gone"), ValueError("closed file")])
def test_a_place_that_fails_hurts_nobody(at_once, error):
    """The thread goes on asking, and the cell's end is as ever."""

    class Broken(Recorder):
        def show(self, measurement):
            super().show(measurement)
            raise error

    shown, place, scope = Live(lambda _: ()), Broken(), Scope().open()
    cell = begun(shown.cell("In [4]", scope, place))
    for _ in range(2):
        assert place.shown.acquire(timeout=TIMEOUT_S)
    cell.end()
    scope.close()
    cell.drop()
    assert place.told[-2:] == ["end", "clear"]
    shown.close()


def test_without_a_thread_the_cell_runs_unseen(monkeypatch):
    """A system that gives no thread: nothing is shown, and nothing raised."""

    def none(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    place = Recorder()
    cell = begun(Live(lambda _: ()).cell("In [4]", None, place))
    assert place.told == ["clear"]
    cell.end()
    cell.drop()
    assert place.told == ["clear"]


def in_a_fork(call):
    """What the call returns in a child process; 1 where it fails there."""
    pid = os.fork()
    if not pid:
        code = 1
        with suppress(BaseException):
            code = call()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forks_child_waits_for_nobody(running):
    """The child has no thread of ours, and locks that nobody lets go: its cell ends all the same."""

    def ends():
        running.live.ticker._lock = taken = threading.Lock()
        taken.acquire()  # as by our thread at the moment of the fork
        running.cell.end()
        running.cell.drop()
        running.live.close()
        return 2 if "clear" in running.place.told else 0

    assert in_a_fork(ends) == 0


@pytest.mark.parametrize("report", ["text", "rich", "none"])
@pytest.mark.parametrize("kernel", [object(), None], ids=["kernel", "terminal"])
def test_the_display_fits_shell_and_report(report, kernel):
    """A rich report in a notebook is live; a printed one is followed, so that no clear takes it away."""
    place = display_for(SimpleNamespace(display_pub=Publisher(), kernel=kernel), report)
    assert (place is None) == (kernel is None or report == "none")
    assert place is None or place.shows == (report == "rich")
