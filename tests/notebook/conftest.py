"""What the tests of the notebook share."""

from types import SimpleNamespace

import pytest
from places import Recorder, begun

from ipygpulogger import IPyGPULogger
from ipygpulogger.engine import scope as scope_module
from ipygpulogger.engine.frameworks import Settling
from ipygpulogger.engine.scope import Scope
from ipygpulogger.notebook import live
from ipygpulogger.notebook.live import Live
from ipygpulogger.runtime.clock import utc_now


@pytest.fixture
def il(shell, capsys):
    """A logger that has started, outside any cell."""
    il = IPyGPULogger().start()
    capsys.readouterr()
    yield il
    il.stop()


@pytest.fixture
def clock(monkeypatch):
    """The time as the package sees it: it moves when told. A settle and a print take ten seconds each."""

    class Clock:
        now_s = 1000.0
        utc_now = staticmethod(utc_now)

        def monotonic_s(self):
            return self.now_s

        def work(self, seconds):
            self.now_s += seconds

    clock = Clock()
    monkeypatch.setattr(scope_module, "clock", clock)

    def slow(real):
        def slower(*args, **kwargs):
            clock.work(10)
            return real(*args, **kwargs)

        return slower

    monkeypatch.setattr(Settling, "settle", slow(Settling.settle))
    monkeypatch.setattr(IPyGPULogger, "_show", slow(IPyGPULogger._show))
    return clock


@pytest.fixture
def extension(shell, capsys):
    """The shell with the extension loaded; what that prints is thrown away."""
    shell.run_cell("%load_ext ipygpulogger", store_history=True)
    capsys.readouterr()
    yield shell
    shell.run_cell("%unload_ext ipygpulogger", store_history=True)


@pytest.fixture
def at_once(monkeypatch):
    """Every cell is long."""
    monkeypatch.setattr(live, "AFTER_S", 0.0)
    monkeypatch.setattr(live, "EVERY_S", 0.001)


@pytest.fixture
def running(at_once):
    """One cell that runs and is shown."""
    shown = Live(lambda _: ("Over budget",))
    scope, place = Scope().open(), Recorder()
    cell = begun(shown.cell("In [4]", scope, place))
    yield SimpleNamespace(live=shown, cell=cell, scope=scope, place=place)
    scope.close()
    cell.drop()
    shown.close()
