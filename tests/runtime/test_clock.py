"""Under a clock that a test has frozen every figure in seconds is true."""

import contextlib
import os
import time
from datetime import datetime, timezone

import pytest

from ipygpulogger import measure

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


@pytest.mark.parametrize("freezer", [freezegun, functions])
def test_a_block(freezer, tmp_path):
    """`measure` has its true time, and the time of day when it began."""
    with freezer(), measure() as m:
        real_sleep(0.02)
    (tmp_path / "now").write_text("")
    file_system_s = real_stat(tmp_path / "now").st_mtime
    now = datetime.fromtimestamp(file_system_s, timezone.utc)
    assert 0.019 <= m.time_s < 60
    assert abs((now - m.last.started_at).total_seconds() - m.time_s) < 60
