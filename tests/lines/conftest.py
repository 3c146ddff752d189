"""What every test of lines needs."""

import gc

import pytest
from line_cell import is_quiet


@pytest.fixture(autouse=True)
def nothing_left(no_leaks):
    """After every test Python reports nothing to us any more."""
    gc.collect()  # what other tests left is freed in none of their lines
    yield
    assert is_quiet()
