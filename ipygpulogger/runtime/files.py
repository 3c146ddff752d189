"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write(path: Path, content: str | bytes) -> None:
    r"""Write a file whole or not at all; into anything else, such as /dev/stdout or a pipe, just write.

    A lone surrogate, which UTF-8 cannot encode, is written as ``\ud800``, as in JSON.

    Raises:
        OSError: It cannot be written; a file that was there is as it was.
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
    except BaseException:  # also an interrupt: no temporary file is left behind
        temporary.unlink(missing_ok=True)
        raise
