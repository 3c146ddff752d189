"""The time that tracing has cost each thread so far, which is not the user's."""

from __future__ import annotations

import threading


class Spent:
    """The time that tracing has cost one thread so far.

    Attributes:
        s: Seconds.
    """

    __slots__ = ("s",)

    def __init__(self) -> None:
        self.s = 0.0


class _ThisThread(threading.local):
    """The calling thread's own."""

    def __init__(self) -> None:
        self.spent = Spent()


this_thread = _ThisThread()


def spent() -> Spent:
    """Return what tracing cost the calling thread so far; the object keeps counting."""
    return this_thread.spent
