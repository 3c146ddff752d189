"""Errors that a signal handler of the user's raised: they are passed on to the user.

Python runs signal handlers between any two of its instructions, those of this package included. Such an
error is not a failure of the code that it interrupts.
"""

from __future__ import annotations

import signal

from .frames import walk_tb


def is_from_a_handler(error: BaseException) -> bool:
    """Return whether a signal handler raised this error."""
    if isinstance(error, KeyboardInterrupt):
        return True
    handlers = {id(getattr(signal.getsignal(number), "__code__", None)) for number in signal.valid_signals()}
    return any(id(link.tb_frame.f_code) in handlers for link in walk_tb(error.__traceback__))
