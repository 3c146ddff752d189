"""A short fingerprint of a cell's code, which is the same for runs with other numbers."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOKEN = re.compile(
    r"""(?P<gap>(?:[^\S\n]*(?:\#[^\n]*)?\n)+)(?P<indent>[^\S\n]*)|[^\S\n]+|\#[^\n]*
    |(?P<text>'''[\s\S]*?'''|\"\"\"[\s\S]*?\"\"\"|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")
    |(?P<number>\.?\d(?:[\w.]|(?<=[eE])[+-])*)|(?P<other>[^\W\d]\w*|.)""",
    re.VERBOSE,
)
_DIGITS = re.compile(r"\d+")


def fingerprint(code: str, sizes: Mapping[str, int]) -> str:
    """Return eight hexadecimal digits that stand for a cell's code.

    Other comments, blank lines and spaces within lines leave it as it is, and another size where the code
    says it, as in ``batch_size = 32``. Any other whole number then changes it. In a cell that says no size
    so, as ``x = randn(1000, 64)``, it stays whatever the numbers are: any of them may be the size.

    Args:
        code: The cell's text, with its magics.
        sizes: How large its data was, by name.
    """
    known = {(name.rpartition(".")[2], size) for name, size in sizes.items()}
    parts: list[str] = []
    numbers: list[int] = []  # where in `parts` whole numbers are that are not said to be a size
    says_size = False
    for token in _TOKEN.finditer(f"\n{code}"):
        number = token["number"]
        if token["gap"] is not None:
            parts.append(f"\n{token['indent']}")
        elif token["text"] is not None:
            parts.append(_DIGITS.sub("0", token["text"]))
        elif token["other"] is not None:
            parts.append(token["other"])
        elif number is not None:
            digits = number.replace("_", "")
            is_whole = digits.isdecimal() and len(digits) < 19
            name = f"{parts[-2]}(...)" if parts[-1] == "(" else parts[-2] if parts[-1] == "=" else ""
            if is_whole and (name, int(digits)) in known:
                says_size = True
            elif is_whole:
                numbers.append(len(parts))
            parts.append(digits if len(parts) in numbers[-1:] else "0")
    if not says_size:
        for at in numbers:
            parts[at] = "0"
    text = "\0".join(parts).rstrip("\n\0 \t")
    return blake2b(text.encode(errors="surrogatepass"), digest_size=4).hexdigest()
