"""Words of ours on the user's streams, which may be closed, broken, on a full disk, or not there at all."""

from __future__ import annotations

import sys

from .errors import why
from .signals import is_from_a_handler


def say(words: str, *, aside: bool = False) -> str | None:
    """Print where we were not asked to: what cannot be written is lost, and nobody's code fails for it.

    Args:
        words: What to print.
        aside: To the stream for errors.

    Returns:
        Why it could not be written, in a few words; None where it was, and where there is no such stream.
    """
    stream = sys.stderr if aside else sys.stdout
    if stream is None:  # `print` would take the other one
        return None
    try:
        print(words, file=stream)
    except Exception as error:  # the stream may be anybody's
        if is_from_a_handler(error):
            raise
        return why(error)
    return None
