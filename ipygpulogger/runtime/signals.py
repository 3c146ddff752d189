"""What a signal handler of the user's raised, whoever ran when it struck: it goes on to the user."""

from __future__ import annotations

import signal

from .frames import walk_tb


def is_from_a_handler(error: BaseException) -> bool:
    """Whether a signal handler raised this: Python runs them between any two steps, of ours as well."""
    if isinstance(error, KeyboardInterrupt):
        return True
    handlers = {id(getattr(signal.getsignal(number), "__code__", None)) for number in signal.valid_signals()}
    return any(id(link.tb_frame.f_code) in handlers for link in walk_tb(error.__traceback__))
