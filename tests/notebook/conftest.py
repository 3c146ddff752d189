"""What the tests of the notebook share."""

import pytest

from ipygpulogger import IPyGPULogger
from ipygpulogger.engine import scope
from ipygpulogger.engine.settling import Settling
from ipygpulogger.notebook import cell as cell_module
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
    for module in (scope, cell_module):
        monkeypatch.setattr(module, "clock", clock)

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
