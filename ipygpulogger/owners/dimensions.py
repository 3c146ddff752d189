"""How large the data was that a cell's own code names, at its end, and whether its source is the same."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import chain, islice
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from ..runtime.shell import is_shell_code, is_users_file
from ..sources import Framework
from .referents import exception_chain, frames_of, locals_of, own_attribute

_TOKEN = re.compile(
    r"""(?:[^\S\n]*(?:\#[^\n]*)?\n)+(?P<indent>[^\S\n]*)|[^\S\n]+|\#[^\n]*
    |(?P<text>(?i:\b[rbfu]{1,2})?(?:'''[\s\S]*?'''|\"\"\"[\s\S]*?\"\"\"|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"))
    |(?P<number>\.?\d(?:[\w.]|(?<=[eE])[+-])*)|(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)|(?P<sign>.)""",
    re.VERBOSE,
)
_DIGITS = re.compile(r"\d+")


def _tokens(code: str) -> list[tuple[str, str]]:
    """Return kind (the group of `_TOKEN`) and text of the tokens of a cell's code, magics included."""
    found = ((token.lastgroup, token) for token in _TOKEN.finditer(f"\n{code}"))
    return [(kind, token[kind]) for kind, token in found if kind is not None]


def _whole(number: str) -> int | None:
    digits = number.replace("_", "")
    return int(digits) if digits.isdecimal() and len(digits) < 19 else None


def fingerprint(code: str, sizes: Mapping[str, int]) -> str:
    """Return eight hexadecimal digits that stand for a cell's code, whatever its comments, blanks and sizes.

    Where it says one of its `sizes`, as in ``batch_size = 32``, other whole numbers count. Else none does, as
    in ``x = randn(1000, 64)``: any of them may be the size.
    """
    settings = {(name.rpartition(".")[2], size) for name, size in sizes.items()}
    tokens = _tokens(code)
    numbers = {at: _whole(text) for at, (kind, text) in enumerate(tokens) if kind == "number"}
    said = {
        at
        for at, size in numbers.items()
        if tokens[at - 1][1] == "=" and (tokens[at - 2][1].rpartition(".")[2], size) in settings
    }
    parts = []
    for at, (kind, text) in enumerate(tokens):
        if kind == "number":
            size = numbers[at] if said and at not in said else None
            parts.append(str(size or 0))
        else:
            parts.append(
                f"\n{text}" if kind == "indent" else _DIGITS.sub("0", text) if kind == "text" else text
            )
    text = "\0".join(parts).rstrip("\n\0 \t")
    return blake2b(text.encode(errors="surrogatepass"), digest_size=4).hexdigest()


if TYPE_CHECKING:
    Found = tuple[str, int]

_BATCH_SIZE = re.compile(r"(?:\w+_)?batch_?size|bsz?", re.IGNORECASE)  # `batch` counts batches in many a loop
_SETTINGS = 1000  # names: a larger dict holds no settings
_KEPT = 12  # of a cell
_NAMES = 200  # that are looked up
_CHARACTERS = 60  # of a name
_NO_DATA = (type(None), int, str, float, complex, type, ModuleType, FunctionType)


def dimensions_of(code: str, names: Mapping[str, Any], frameworks: Sequence[Framework]) -> tuple[Found, ...]:
    """Return at most 12 names and sizes: batch sizes, leading dimensions of arrays, numbers in calls.

    None of the user's code is run.
    """
    batches, arrays, calls = dict[str, int](), dict[str, int](), dict[str, int]()
    for name, number in _numbers(code, names):
        (batches if _is_batch_size(name, number) else calls).setdefault(name, number)
    used = dict.fromkeys(text.partition(".")[0] for kind, text in _tokens(code) if kind == "name")
    for name in [one for one in used if one in names and one.strip("_")][:_NAMES]:
        value = names[name]
        if _is_batch_size(name, value):
            batches.setdefault(name, value)
        elif not issubclass(type(value), _NO_DATA):
            batches |= _settings(name, value)
            if (rows := _leading(value, frameworks)) is not None:
                arrays[name] = rows
    found = {name[:_CHARACTERS]: size for name, size in (batches | arrays | calls).items()}
    return tuple(islice(found.items(), _KEPT))


def _numbers(code: str, names: Mapping[str, Any]) -> Iterator[Found]:
    """Yield the numbers in the code: of ``batch_size=32``, and of ``step(32)`` for the notebook's `step`."""
    tokens = [("indent", ""), *_tokens(code), ("indent", "")]
    for at in (at for at, (kind, _) in enumerate(tokens) if kind == "number"):
        (before, name), (_, sign), (_, number), (after, ends) = tokens[at - 2 : at + 2]
        size = _whole(number)
        if not size or before != "name" or not (after == "indent" or ends in ",);"):
            continue
        if sign == "=" and _is_batch_size(name, size):
            yield name, size
        elif sign == "(" and type(call := names.get(name)) is FunctionType and call.__globals__ is names:
            yield f"{name}(...)", size


def _is_batch_size(name: Any, value: Any) -> bool:
    return type(value) is int and value > 0 and type(name) is str and _BATCH_SIZE.fullmatch(name) is not None


def names_in(value: Any) -> list[tuple[Any, Any]]:
    """Return the settings in a dict or in an object's own attributes, such as `args.batch_size`."""
    if type(value) is not dict:
        value = None if issubclass(type(value), (type, ModuleType)) else own_attribute(value, "__dict__")
    return list(value.items()) if type(value) is dict and len(value) <= _SETTINGS else []


def _settings(name: str, value: Any) -> Iterator[Found]:
    """Yield the batch sizes among the settings in a dict or in an object: "loader.batch_size"."""
    for key, one in names_in(value):
        if _is_batch_size(key, one):
            yield f"{name}[{key!r}]" if type(value) is dict else f"{name}.{key}", one


def _leading(value: Any, frameworks: Sequence[Framework]) -> int | None:
    """Return the number of rows of an array; None for any other value, and for an empty one."""
    kind, numpy = type(value), sys.modules.get("numpy")
    with suppress(Exception):  # a broken array, of which nothing can be said
        if numpy is not None and issubclass(kind, numpy.ndarray):
            return next(iter(own_attribute(value, "shape")), None) or None
        for framework in frameworks:
            if (rows := framework.leading_dimension(value)) is not None:
                return rows or None
    return None


# -- the batch size of code that failed


def find_batch(error: BaseException | None, shell: Any) -> Found | None:
    """Return the variable nearest to the error that is named like a batch size, and its value."""
    users = [
        frame
        for one in exception_chain(error)
        for frame in reversed(frames_of(one))
        if not is_shell_code(frame)
        and (frame.f_globals is shell.user_ns or is_users_file(frame.f_code.co_filename))
    ]
    scopes = [locals_of(frame) for frame in users]
    scopes += {id(frame.f_globals): list(frame.f_globals.items()) for frame in users}.values()
    for names in scopes:
        own = (pair for pair in names if _is_batch_size(*pair))
        below = (one for name, value in names if type(name) is str for one in _settings(name, value))
        if found := next(chain(own, below), None):
            return found
    return None
