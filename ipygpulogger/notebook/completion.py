"""Completion of ``%gpulog`` and ``%%gpulog``: what may stand at the cursor, and nothing else."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from .cell_options import OPTIONS
from .help import ASKS_FOR_HELP, COMMANDS, FAILED, RANKED_BY
from .options import Options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_LINE = re.compile(r"\s*(?:\w+ *= *(?=%))?(?P<magic>%{0,2}gpulog)(?P<rest>\s.*)", re.ASCII | re.DOTALL)
_WORD = re.compile(r"""(?:[^\s'"]|'[^']*(?:'|$)|"[^"]*(?:"|$))+""")
_LOGGED = (".jsonl",)  # how the names of files end
_FILES = {"save": (".jsonl", ".csv", ".parquet"), "snapshot": (".pickle", ".pkl")}  # by command


def offered(before: str) -> tuple[str, list[str]] | None:
    """Return what may follow in a line of one of the magics; None in any other line.

    Args:
        before: The line up to the cursor.

    Returns:
        The text before the cursor that a completion replaces, and the completions.
    """
    line = _LINE.fullmatch(before)
    if line is None:
        return None
    words = _WORD.findall(line["rest"])
    current = words.pop() if words and line["rest"].endswith(words[-1]) else ""
    of = _of_a_cell if line["magic"].startswith("%%") else _of_a_line
    begun, found = of(words, current)
    return begun, [word for word in found if word.startswith(begun)]


def _of_a_cell(words: Sequence[str], current: str) -> tuple[str, Iterable[str]]:
    return current, () if words[-1:] == ["--label"] else [word for word in OPTIONS if word not in words]


def _of_a_line(words: Sequence[str], current: str) -> tuple[str, Iterable[str]]:
    """Return what is being typed, and what may stand there, after these words."""
    if not words:
        return current, ASKS_FOR_HELP if current.startswith("-") else COMMANDS
    command, *given = words
    if command == "start":
        return _option(given, current)
    if command in _FILES:
        return _file(command, given, current)
    if command == "summary":
        _, equals, begun = current.partition("--by=")
        if equals or given == ["--by"]:
            return begun if equals else current, RANKED_BY
        return current, () if given else ("--by",)
    return current, ()


def _file(command: str, given: Sequence[str], current: str) -> tuple[str, Iterable[str]]:
    """Return what is being typed of the one path that a command takes, or of the word before it."""
    if command == "snapshot" and current.startswith("-") and not given:
        return current, (FAILED,)
    if given and (command, *given) != ("snapshot", FAILED):
        return current, ()
    quote = current[:1] if current[:1] in ("'", '"') else ""
    return current[len(quote) :], _paths(current[len(quote) :], _FILES[command], quoted=bool(quote))


def _option(given: Sequence[str], current: str) -> tuple[str, Iterable[str]]:
    """Return what is being typed of an option of ``%gpulog start``, its name or its value."""
    traits = Options.in_order()
    name, equals, value = current.partition("=")
    if not equals:
        before = {word.partition("=")[0] for word in given}
        return current, [f"{name}=" for name in traits if name not in before]
    if name not in traits:
        return value, ()
    begun = value.rpartition(",")[2]
    words = [*traits[name].words, *(["None"] if traits[name].allow_none else [])]
    return begun, [*words, *_paths(value, _LOGGED)] if name == "log" else words


def _paths(begun: str, ends: tuple[str, ...], *, quoted: bool = False) -> Iterator[str]:
    """Yield the folders, and the files with these endings, whose path begins so.

    Args:
        begun: What is typed of the path.
        ends: How the names of files end.
        quoted: Whether a quote was opened before it; if not, a path with a space in it is quoted.
    """
    at = max(begun.rfind("/"), begun.rfind(os.sep)) + 1
    folder, name = begun[:at], begun[at:]
    try:
        with os.scandir(Path(folder).expanduser()) as entries:
            found = sorted((entry.name, entry.is_dir()) for entry in entries)
    except (OSError, RuntimeError):  # the folder does not exist, or the home directory is unknown
        return
    for entry, is_folder in found:
        hidden = entry.startswith(".") and not name.startswith(".")
        if entry.startswith(name) and not hidden and (is_folder or entry.lower().endswith(ends)):
            path = f"{folder}{entry}/" if is_folder else f"{folder}{entry}"
            if quoted or " " not in path:
                yield path
            elif not begun:
                yield f"'{path}'"
