"""Checks of what a command was asked for, before anything is done; the error is one sentence."""

from __future__ import annotations

import os
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class BadRequest(Exception):  # noqa: N818 - the user's mistake, reported in one sentence
    """The request is invalid; the message says why."""


def check(targets: Mapping[str, Path | None], source: Path, name: str) -> None:
    """Refuse files that could not be written, or would overwrite each other or what is read.

    Args:
        targets: The files to write, by what messages call them; None for one that was not asked for.
        source: The file that is read.
        name: What messages call that one.

    Raises:
        BadRequest: One of them is refused.
    """
    asked = [(what, target) for what, target in targets.items() if target is not None]
    for _, target in asked:
        if target.resolve() == source.resolve():
            raise BadRequest(f"{target} is {name} itself; name another file")
        if target.is_dir():
            raise BadRequest(f"{target} is a folder; name a file")
        if not target.parent.is_dir():
            raise BadRequest(f"there is no folder {target.parent} to write {target.name} into")
        places = [target, target.resolve().parent] if target.exists() else [target.parent]
        if not all(os.access(place, os.W_OK) for place in places):
            raise BadRequest(f"{target} may not be written")
    for (what, one), (other_what, other) in combinations(asked, 2):
        if one.resolve() == other.resolve():
            raise BadRequest(f"{one} cannot be both {what} and {other_what}")


def check_log(path: Path | None) -> None:
    """Refuse a log that is not named .jsonl; a device or a pipe may have any name.

    Raises:
        BadRequest: It is refused.
    """
    if path is not None and path.suffix.lower() != ".jsonl" and (path.is_file() or not path.exists()):
        raise BadRequest(f"the log {path} must be named .jsonl, for it is one JSON record a line")
