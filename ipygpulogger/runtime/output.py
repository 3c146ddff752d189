"""What is printed to streams that may be broken, and files that are written whole or not at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .errors import is_from_a_handler, why


def say(words: str, *, aside: bool = False) -> str | None:
    """Print what the user did not ask for, `aside` to stderr; return why it could not be written, or None."""
    stream = sys.stderr if aside else sys.stdout
    if stream is None:  # `print` would use stdout in its place
        return None
    try:
        print(words, file=stream)
    except Exception as error:  # the stream may be of any class
        if is_from_a_handler(error):
            raise
        return why(error)
    return None


def write_file(path: Path, content: str | bytes) -> None:
    r"""Write a file whole or not at all (`OSError`); into anything else, such as a pipe, just write.

    A lone surrogate, which UTF-8 cannot encode, is written as ``\ud800``, as in JSON.
    """
    import tempfile  # and more, which few cells need

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
    except BaseException:  # also an interrupt: no temporary file is left behind
        temporary.unlink(missing_ok=True)
        raise
