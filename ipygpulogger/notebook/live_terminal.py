"""The figures of a running cell in a terminal, at the right end of the cursor's line.

Text that has scrolled in a terminal cannot be removed. So the figures are shown only as long as the
cell has written nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any

from ..render import text
from .tap import Taps, untapped

if TYPE_CHECKING:
    from ..records import Measurement


class LiveTerminal:
    """Figures at the right end of the cursor's line.

    Once the cell writes, asks for input or starts a command with ``!``, they are wiped out for good.

    Args:
        shell: IPython's, whose `system` starts commands.
    """

    shows = True

    def __init__(self, shell: Any) -> None:
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._column = 0  # where the figures begin; 0: nowhere
        self._ended = False
        self._write, self._flush = untapped(sys.stdout, "write"), untapped(sys.stdout, "flush")
        self._tapped = (*product((sys.stdout, sys.stderr), ("write", "flush")), (shell, "system"))
        self._taps = Taps()

    def begin(self) -> None:
        """Follow what is written from now on."""
        for owner, name in self._tapped:
            if hasattr(owner, name):
                self._taps.open(owner, name, self._moves)

    def show(self, measurement: Measurement) -> None:
        """Write the figures so far over the last ones."""
        columns = shutil.get_terminal_size().columns
        words = text.so_far(measurement)[: max(0, columns - 1)]
        with self._lock:
            if not self._ended:
                column = columns - len(words)
                self._put(f"\x1b[{min(column, self._column or column)}G\x1b[K\x1b[{column}G{words}")
                self._column = column

    def end(self) -> None:
        """Wipe the figures out."""
        with self._lock:
            self._ended = True
            self._taps.close()
            if self._column:
                column, self._column = self._column, 0
                self._put(f"\x1b[{column}G\x1b[K")

    def clear(self) -> None:
        """Wipe the figures out, if `end` has not."""
        self.end()

    def _put(self, words: str) -> None:
        with suppress(OSError, ValueError):  # the terminal is gone
            self._write(f"\x1b7{words}\x1b8")  # the cursor goes back to where the cell left it
            self._flush()

    def _moves(self, *_: object, **__: object) -> None:
        """Wipe out before the cursor may move; in a child that was forked the lock may be taken."""
        if os.getpid() == self._pid:
            self.end()
