"""The files that a command reads and writes: asked for in one sentence, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class BadRequest(Exception):  # noqa: N818 - the user's mistake, told in one sentence
    """What is wrong with the request."""


def check(targets: Mapping[str, Path | None], source: Path, name: str) -> None:
    """Refuse, before anything is done, what could not be written or would overwrite something else.

    Args:
        targets: What will be written, by the name that people have for it; None is not asked for.
        source: What is read.
        name: What that is called.
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
    """Refuse a log that nobody could read again by its name; a device or a pipe may have any."""
    if path is not None and path.suffix.lower() != ".jsonl" and (path.is_file() or not path.exists()):
        raise BadRequest(f"the log {path} must be named .jsonl, for it is one JSON record a line")


def write(path: Path, content: str | bytes) -> None:
    r"""Write a file whole or not at all; what is no ordinary file (/dev/stdout, a pipe) is written into.

    Half a surrogate pair, which no file can hold, is written as ``\ud800``, as JSON does.
    """
    path = path.resolve()
    written = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(written)
        return
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=".ipygpulogger.")
    temporary = Path(name)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(written)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except BaseException:  # an interrupt too leaves nothing behind
        temporary.unlink(missing_ok=True)
        raise
