"""Messages that are not the result of a command: printed to stderr, in characters safe to print."""

from __future__ import annotations

import sys

from ..records.units import printable


def aside(sentence: str) -> None:
    """Print a sentence to stderr."""
    print(printable(sentence), file=sys.stderr)
