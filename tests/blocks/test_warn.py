"""What could not be measured is warned of once, and never as an error."""

import warnings

from ipygpulogger.blocks.warn import warn


def test_a_warning_is_shown_once():
    """A warning in the user's own filters; where warnings are errors nothing is said, and nothing raised."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for _ in range(2):
            warn("a sentence of this test")
    assert [str(one.message) for one in shown] == ["a sentence of this test"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn("another sentence of this test")
