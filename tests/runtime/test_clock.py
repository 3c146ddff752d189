"""Under a clock that a test has frozen, searches end in time and every figure in seconds is true."""

import contextlib
import os
import threading
import time

import pytest
from memory import MB, Block

from ipygpulogger import History, IPyGPULogger, measure
from ipygpulogger.engine.scope import Scope
from ipygpulogger.storage import decode

real_sleep, real_stat = time.sleep, os.stat


@contextlib.contextmanager
def freezegun():
    with pytest.importorskip("freezegun").freeze_time("2020-01-01"):
        assert time.time() == time.time()
        yield


@contextlib.contextmanager
def functions():
    """By hand: as `monkeypatch.setattr(time, "monotonic", ...)` in a user's own tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("time", "monotonic", "perf_counter"):
            patch.setattr(time, name, lambda: 1.6e9)
        yield


@pytest.fixture(params=[freezegun, functions], ids=lambda freezer: freezer.__name__)
def frozen_clock(request):
    return request.param


def now_s(folder):
    """The time of day as the file system has it."""
    (folder / "now").write_text("")
    return real_stat(folder / "now").st_mtime


@pytest.fixture
def il(shell):
    il = IPyGPULogger(report="none", lines=True).start()
    yield il
    il.stop()
    shell.user_ns.clear()


def test_a_cell(frozen_clock, shell, il, tmp_path, monkeypatch):
    """Its time, its lines' and its time series run on, and it began when it did; the record is kept so."""
    looked, sampled = threading.Event(), Scope.sampled

    def note(scope, resident_bytes):
        sampled(scope, resident_bytes)
        looked.set()

    monkeypatch.setattr(Scope, "sampled", note)
    shell.user_ns.update(sleep=real_sleep, Block=Block, looked=looked)
    code = "sleep(0.05)\nblock = Block(20)\nassert looked.wait(60)\nsleep(0.05)"
    with frozen_clock():
        assert shell.run_cell(code, store_history=True).success
        record = il.record
        il.history.save(tmp_path / "history.jsonl")
        decode._decoder.cache_clear()  # as if no record had been read before time stood still
        (loaded,) = History.load(tmp_path / "history.jsonl")
        assert loaded.started_at == record.started_at
    assert 0.099 <= record.time_s < 120
    assert abs(record.started_at.timestamp() + record.time_s - now_s(tmp_path)) < 60
    assert all(line.time_s >= least_s for line, least_s in zip(record.lines, (0.05, 0, 0, 0.05), strict=True))
    times = [time_s for time_s, _ in record.gen.timeline]
    assert times == sorted(times)
    assert len(times) > 2  # the two ends, and at least one look between them
    assert 0 == times[0] < times[1]  # a frozen clock would have left every look at 0
    assert times[-1] == pytest.approx(record.time_s, abs=0.002)
    assert record.gen.consumed_bytes >= 20 * MB


@pytest.mark.parametrize("freezer", [freezegun, functions])
def test_a_block(freezer):
    """`measure` has its true time."""
    with freezer(), measure() as m:
        real_sleep(0.02)
    assert 0.019 <= m.time_s < 60
