"""What an error says, in the few words that a report or a note has room for."""

from __future__ import annotations


def named(error: BaseException) -> str:
    """Return the class of an error and its message, "ValueError: no number"; the class alone without one."""
    name, message = type(error).__name__, str(error)
    return f"{name}: {message}" if message else name


def first_line(error: BaseException) -> str:
    """Return the first line of the message; the name of the class where there is no message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def why(error: BaseException) -> str:
    """Return what the system says of a failed call ("No space left on device"), or the error as `named`."""
    return getattr(error, "strerror", None) or named(error)
