"""The size of a failed allocation as text."""

import pytest
from memory import MB

from ipygpulogger.records.out_of_memory import requested

GIB = 1024 * MB


@pytest.mark.parametrize(
    ("asked_bytes", "said"),
    [
        (8000 * MB, "8000 MB"),
        (round(7.81 * GIB), "7.81 GiB"),  # what torch's message says of 8000 MB
        (8 * GIB, "8.00 GiB"),
        (8002 * MB, "8002 MB"),
        (GIB, "1024 MB"),
        (22 * MB, "22 MB"),
        (512, "0 MB"),
    ],
)
def test_no_more_exactly_than_known(asked_bytes, said):
    """A size with all its digits is told in MB; hundredths of a GiB stay what they are."""
    assert requested(asked_bytes) == said
