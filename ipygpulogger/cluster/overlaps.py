"""Tasks that run at the same time in one process, whose memory nothing can tell apart."""

from __future__ import annotations

import threading


class Overlaps:
    """Counts, for each task that runs in this process, the others that ran meanwhile; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._others: dict[object, int] = {}  # by each task that runs

    def begin(self, task: object) -> None:
        """Note that a task begins; anything hashable identifies it while it runs."""
        with self._lock:
            for other in self._others:
                self._others[other] += 1
            self._others[task] = len(self._others)

    def end(self, task: object) -> tuple[str, ...]:
        """Note that it ended, and return what its record says of the others: a note, or nothing."""
        with self._lock:
            others = self._others.pop(task, 0)
        if not others:
            return ()
        return (f"shared with {others} other task{'s' * (others > 1)} of its process",)
