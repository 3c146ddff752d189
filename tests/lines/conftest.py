"""What every test of lines needs."""

import pytest
from line_cell import is_quiet


@pytest.fixture(autouse=True)
def nothing_left(no_leaks):
    """After every test Python reports nothing to us any more."""
    yield
    assert is_quiet()
