"""One Ctrl-C, wherever it comes, in cells that use a GPU: figures, wrappers and torch's own peaks are right after."""

import pytest
from strikes import SIGNALS, STRIKES, strike

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("scenario", ["torch", "torch lines"])
def test_an_interrupt_at_a_point_of_the_package_leaves_nothing(kernel_env, scenario):
    """The next cell's figures are exact, and every function of torch's is its own again."""
    assert strike(kernel_env, "walk", scenario, STRIKES) >= STRIKES / 2


@pytest.mark.parametrize("scenario", ["torch", "torch lines"])
def test_a_signal_at_a_random_moment_leaves_nothing(kernel_env, scenario):
    """Real ones, which may come while torch runs as well."""
    strike(kernel_env, "signals", scenario, SIGNALS)
