"""A terminal for the tests: a command on a pseudo-terminal, and what a person sees there in the end."""

import contextlib
import os
import re
import struct
import subprocess
import sys
import time

import pytest

termios = pytest.importorskip("termios", reason="Windows has no pseudo-terminals")

_SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")


class Screen:
    """What stands on a terminal of so many columns, and of as many lines as are needed."""

    def __init__(self, columns):
        self.columns, self.lines, self.column = columns, [[]], 0
        self.wraps, self.styles = True, []

    def feed(self, text):
        while text:
            if found := _SEQUENCE.match(text):
                self._obey(found[1] + found[2])
                text = text[found.end() :]
                continue
            self._put(text[0])
            text = text[1:]

    def _put(self, character):
        if character == "\n":
            self.lines.append([])
        elif character == "\r":
            self.column = 0
        else:
            assert character.isprintable(), repr(character)
            if self.column == self.columns:
                self.column = 0 if self.wraps else self.columns - 1
                self.lines += [[]] if self.wraps else []
            line = self.lines[-1]
            line += " " * (self.column + 1 - len(line))
            line[self.column] = character
            self.column += 1

    def _obey(self, sequence):
        if sequence == "2K":
            self.lines[-1].clear()
        elif sequence in ("?7h", "?7l"):
            self.wraps = sequence == "?7h"
        else:
            assert sequence.endswith("m"), f"an unknown sequence: {sequence}"
            self.styles.append(sequence[:-1])

    def text(self):
        """The lines, without blanks and empty lines at the end."""
        return "\n".join("".join(line).rstrip() for line in self.lines).rstrip("\n")


class Typed:
    """What a person at the terminal does: at the first sight of a pattern on the screen, press keys."""

    def __init__(self, pattern, keys="\x03", times=1, pause_s=0.0):
        self.pattern, self.keys, self.times, self.pause_s = re.compile(pattern), keys, times, pause_s


class Seen:
    """What came of a command: its exit status, the screen, all that was written, and each state of the screen.

    `text` is the screen in the end, less the ``^C`` that a terminal shows where it is pressed.
    """

    def __init__(self, status, screen, written, states, stdout):
        self.status, self.screen, self.written, self.states = status, screen, written, states
        self.text, self.stdout = screen.text().replace("^C", "").rstrip("\n"), stdout


def on_a_terminal(*arguments, typed=(), columns=100, pipes_stdout=False, limit_s=120, **environment):
    """Run the command line on a terminal until it ends."""
    import pty  # not on Windows
    from fcntl import ioctl

    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color", **environment}
    for name in "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR":
        if name not in environment:
            env.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-c", _IN_ITS_TERMINAL, *map(str, arguments)],
        stdin=theirs,
        stdout=subprocess.PIPE if pipes_stdout else theirs,
        stderr=theirs,
        env=env,
        start_new_session=True,
    )
    os.close(theirs)
    screen, written, states, waiting = Screen(columns), b"", [], list(typed)
    rest, deadline_s = b"", time.monotonic() + limit_s
    with contextlib.suppress(OSError):  # the other end is closed
        while chunk := os.read(ours, 4096):
            assert time.monotonic() < deadline_s, screen.text()
            written += chunk
            text, rest = _whole(rest + chunk)
            screen.feed(text)
            if not states or states[-1] != screen.text():
                states.append(screen.text())
            if waiting and waiting[0].pattern.search(states[-1]):
                keys = waiting.pop(0)
                for _ in range(keys.times):
                    os.write(ours, keys.keys.encode())
                    time.sleep(keys.pause_s)
    os.close(ours)
    stdout = process.communicate(timeout=limit_s)[0]
    return Seen(process.returncode, screen, written.decode(), states, (stdout or b"").decode())


# Ctrl-C reaches the processes of the terminal's own session.
_IN_ITS_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from ipygpulogger.cli import main
sys.exit(main())
"""


def _whole(data):
    """The text of the bytes so far, and the beginning of a character or of a sequence that is not complete."""
    for cut in range(len(data), max(-1, len(data) - 12), -1):
        with contextlib.suppress(UnicodeDecodeError):
            text = data[:cut].decode()
            if not re.search(r"\x1b(\[[?0-9;]*)?$", text):
                return text, data[cut:]
    raise AssertionError(data)
