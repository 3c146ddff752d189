"""The line on the terminal that shows which cell runs."""

import contextlib
import os
import subprocess
import sys

import pytest


def test_a_terminal_sees_which_cell_runs(notebook):
    """On a terminal: which cell, of how many, its first line; nothing of it in the standard output."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "ipygpulogger.cli",
            "run",
            str(notebook("1", "[bold]=1")),
        ],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"},
    )
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while chunk := os.read(ours, 4096):
            seen += chunk
    os.close(ours)
    stdout = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 1  # bold is no variable, and no colour
    assert b"cell 2 of 2" in seen
    assert b"[bold]=1" in seen
    assert "\x1b" not in stdout
    assert "cell 2 of 2" not in stdout
