"""One Ctrl-C, wherever it comes: the next cell is right, and after `stop` nothing of us is left.

A sample of the points at which an interrupt can strike, and of real signals at random moments. All points, and a
thousand signals: ``STRIKES=0 SIGNALS=1000 python -m pytest tests/notebook/test_interrupts.py``.
"""

import signal

import pytest
from interrupt_injection import SIGNALS, STRIKES, strike

TORCH = [pytest.param(name, marks=pytest.mark.torch) for name in ("torch", "torch lines")]
PLAIN = ["plain", "lines", "fails", "live", "gpu", "stops", "expected", "blocks"]


@pytest.mark.parametrize("scenario", [*PLAIN, *TORCH])
def test_an_interrupt_at_a_point_of_the_package_leaves_nothing(kernel_env, scenario):
    """In `start`, in the hooks of a cell, while its lines are measured, in `stop`, in blocks without a shell.

    With torch, every function of its is its own again, too.
    """
    assert strike(kernel_env, "walk", scenario, STRIKES) >= STRIKES / 2


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals to a thread are POSIX")
@pytest.mark.parametrize("scenario", ["plain", "lines", "live", "gpu", "blocks", *TORCH])
def test_a_signal_at_a_random_moment_leaves_nothing(kernel_env, scenario):
    """Real ones, which may come while IPython, torch or the cell itself runs as well."""
    strike(kernel_env, "signals", scenario, SIGNALS)
