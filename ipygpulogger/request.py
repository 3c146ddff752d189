"""What a cell asks for itself, in its first line: ``%%gpulog [--lines] [--label TEXT]``."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

OPTIONS = ("--lines", "--label")
_ASKS = re.compile(r"\s*(?:>>> ?|In \[\d+\]: ?)?%%gpulog(?P<options>[ \t].*)?$")  # IPython takes prompts off


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be told of one cell.

    Attributes:
        lines: What each line used.
        label: What the cell is called; None for "In [4]".
    """

    lines: bool = False
    label: str | None = None


def request_in(options: str) -> Request:
    """What the options ask for.

    Raises:
        ValueError: There are no such options.
    """
    lines, label = False, None
    try:
        given = iter(words(options))
    except ValueError as error:
        raise ValueError(f"{error}: {options.strip()}") from error
    for word in given:
        name, equals, value = word.partition("=")
        if word == "--lines":
            lines = True
        elif name == "--label":
            label = value if equals else next(given, "")
            if not label.strip() or (not equals and label in OPTIONS):
                raise ValueError("--label takes a text")
        else:
            raise ValueError(f"there is no option {word!r}; it takes --lines and --label TEXT")
    return Request(lines, label)


def options_of(first_line: str) -> str | None:
    """What stands behind ``%%gpulog``; None of a line that asks for nothing."""
    found = _ASKS.match(first_line.rstrip())
    return found and (found["options"] or "")


def request_of(source: str) -> Request | None:
    """What a whole cell asks for, as the user wrote it; None if nothing, or nothing that makes sense."""
    first, _, body = source.lstrip().partition("\n")
    options = options_of(first)
    if options is None or not body.strip():
        return None
    try:
        return request_in(options)
    except ValueError:  # the cell will fail, and say why
        return None


def words(line: str) -> list[str]:
    """The words of a line: quotes hold words together, and a backslash is one, as in a path of Windows."""
    found = shlex.shlex(line, posix=True)
    found.whitespace_split, found.escape, found.commenters = True, "", ""
    return list(found)
