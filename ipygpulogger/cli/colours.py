"""ANSI styles: our own, and those of what a cell printed; on a terminal only."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from ..records.units import printable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TextIO

    Styled = tuple[str, str]  # words and their weight

_STYLES = {"strong": "\x1b[1m", "failed": "\x1b[1;31m", "faint": "\x1b[2m"}
_PLAIN = "\x1b[0m"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal that obeys escape sequences."""
    if stream is None or stream.closed or not stream.isatty():
        return False
    if os.name != "posix":  # an older console of Windows shows escape sequences as they are
        return bool(os.environ.get("WT_SESSION"))
    return os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


def shows_colours(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal, and the user has not asked for none (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def styled(parts: Iterable[Styled], *, coloured: bool) -> str:
    """Return phrases as one text, each in the style of its weight if colours may be used."""
    return "".join(
        f"{_STYLES[weight]}{words}{_PLAIN}" if coloured and weight in _STYLES and words.strip() else words
        for words, weight in parts
    )


def foreign(line: str, *, coloured: bool) -> str:
    """Return a line that a cell printed, `printable`; of its escape sequences only colours may be kept."""
    if "\x1b" not in line:
        return printable(line)
    words = map(printable, _COLOURS.split(line))
    if not coloured:
        return "".join(words)
    colours = [*_COLOURS.findall(line), _PLAIN]
    return "".join(word + colour for word, colour in zip(words, colours, strict=True))
