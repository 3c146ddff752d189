"""Printing to the user's streams, which may be closed, broken, on a full disk, or missing."""

from __future__ import annotations

import sys

from .errors import why
from .signals import is_from_a_handler


def say(words: str, *, aside: bool = False) -> str | None:
    """Print something that the user did not ask for; if it cannot be written, nothing is raised.

    Args:
        words: What to print.
        aside: Print to stderr instead of stdout.

    Returns:
        Why it could not be written, in a few words; None if it was, or if there is no such stream.
    """
    stream = sys.stderr if aside else sys.stdout
    if stream is None:  # `print` would use stdout in its place
        return None
    try:
        print(words, file=stream)
    except Exception as error:  # the stream may be of any class
        if is_from_a_handler(error):
            raise
        return why(error)
    return None
