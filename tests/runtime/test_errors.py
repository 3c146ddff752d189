"""What an error says in the words that a report has room for: nothing doubled, nothing hanging at the end."""

import errno

import pytest

from ipygpulogger.runtime.errors import first_line, named, why


class Silent(Exception):
    """An error without a message."""


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "MemoryError"),  # as Python raises it: without a word
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (LookupError("of ours"), "LookupError: of ours"),
    ],
)
def test_why(error, says):
    """The system's own words where it has some; an error without a message has no colon."""
    assert why(error) == says


@pytest.mark.parametrize(
    ("error", "says"), [(ValueError("no number"), "ValueError: no number"), (Silent(), "Silent")]
)
def test_named(error, says):
    """The class stands before the message, and alone without one."""
    assert named(error) == says


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError("CUDA error: no device\nCompile with TORCH_USE_CUDA_DSA"), "CUDA error: no device"),
        (RuntimeError("one line"), "one line"),
        (RuntimeError("\n  the first with words\nmore"), "the first with words"),
        (RuntimeError("\n"), "RuntimeError"),
        (Silent(), "Silent"),
    ],
)
def test_first_line(error, says):
    """Frameworks put advice on further lines of their messages; the first says what went wrong."""
    assert first_line(error) == says
