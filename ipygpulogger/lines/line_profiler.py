"""What each line of some code used: hits, time, RAM, each GPU; the same as a scope, per line.

A line lasts from its beginning until the next line of the same frame begins, or the frame ends or yields;
the lines of functions that it calls are open meanwhile, so its figures contain theirs.
"""

from __future__ import annotations

import linecache
from collections import Counter
from typing import TYPE_CHECKING

from ..engine.machine import machine
from ..records import LineUsage
from . import tracing
from .frame_state import Code, Rows
from .line_memory import Gauges, Row

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ..engine.machine import Machine


class Lines:
    """Measures lines from `start` to `stop`."""

    def __init__(
        self,
        wants: Callable[[FrameType], bool],
        *,
        on: Machine | None = None,
        reset_peaks: bool = True,
    ) -> None:
        """Prepare; nothing is measured before `start`.

        Args:
            wants: Asked once for each code object, when it first runs: is it to be measured?
            on: The machine; by default the process's own.
            reset_peaks: Reset the kernel's peak counter.
        """
        self._wants = wants
        self._gauges = Gauges(on or machine(), self.lost, reset_peaks=reset_peaks)
        self._rows: dict[tuple[str, int], Row] = {}
        self._shared = Rows(self._row, self._gauges, self._repair)
        self._codes: list[Code] = []
        self._lost: list[str] = []
        self._spent, self._spent_before_s, self._overhead_s = tracing.Spent(), 0.0, 0.0
        self._running = self._measured = False

    def start(self) -> None:
        """Measure from here on. Lines that run already are open from here, and have no hit for that.

        Start it before the clock of what is measured. Never raises: what is not possible becomes a note.
        """
        if self._running:
            return
        self._running = True
        self._spent = tracing.spent()
        self._spent_before_s = self._spent.s
        try:
            self._gauges.start()
            self._measured = True
            why_not = tracing.listen(self)
        except Exception as error:
            why_not = f"lines are not measured: {error}"
        if why_not is not None:
            self.lost(why_not)
            self.stop()

    def stop(self) -> None:
        """Measure no more; nothing of it remains in the process. Again it ends what was interrupted."""
        if not self._running:
            return
        overhead_s = self._spent.s - self._spent_before_s
        tracing.ignore(self)
        now_s = tracing.now_s()
        for code in self._codes:
            code.end_all(now_s)
        self._gauges.stop()
        self._overhead_s, self._running = overhead_s, False

    @property
    def overhead_s(self) -> float:
        """What tracing cost the thread that started it so far, `start` and `stop` themselves left out."""
        return self._spent.s - self._spent_before_s if self._running else self._overhead_s

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not measured as it should be, and why; lines are numbered as in their files."""
        return self.notes_of(lambda _: ("", 0))

    def notes_of(self, place_of: Callable[[str], tuple[str, int]]) -> tuple[str, ...]:
        """The notes, with places and line numbers as `result` has them."""
        return (*self._lost, *(note for code in self._codes for note in code.notes(*place_of(code.filename))))

    def result(self, place_of: Callable[[str], tuple[str, int]]) -> tuple[LineUsage, ...]:
        """What each line used that ran, by place and number, the cell's own lines first; after `stop`.

        Args:
            place_of: For a file's name, the place as `LineUsage` has it, and what to add to its line numbers.
        """
        if not self._measured:
            return ()
        found = []
        for (filename, lineno), row in self._rows.items():
            if row.hits or row.sums:
                place, offset = place_of(filename)
                found.append(
                    LineUsage(
                        lineno + offset,
                        linecache.getline(filename, lineno).strip(),
                        row.hits,
                        row.time_s,
                        self._gauges.gen(row),
                        self._gauges.gpus(row),
                        place,
                        row.complete,
                        self._gauges.risen(row),
                    )
                )
        return tuple(sorted(found, key=lambda line: (line.place, line.lineno)))

    # -- what tracing asks ---------------------------------------------------------------------

    def follow(self, frame: FrameType) -> Code | None:
        """Whether this code is to be measured."""
        if not self._wants(frame):
            return None
        code = Code(self._shared, frame.f_code)
        self._codes.append(code)
        return code

    def lost(self, sentence: str) -> None:
        """Something is not measured."""
        if sentence not in self._lost:
            self._lost.append(sentence)

    def cut_off(self, sentence: str) -> None:
        """Nothing more is told: what the lines open now used since they began is not known."""
        self.lost(sentence)
        for code in self._codes:
            code.visits.clear()
        for row in tuple(self._rows.values()):
            row.running = 0
        self._gauges.forget()

    # ------------------------------------------------------------------------------------------

    def _row(self, filename: str, lineno: int) -> Row:
        key = filename, lineno
        return self._rows.get(key) or self._rows.setdefault(key, Row())

    def _repair(self) -> None:
        """A signal's exception may have cut short what we did: count again who runs and who holds."""
        now_s = tracing.now_s()
        running_frames = {id(frame) for frame in tracing.frames()}
        for code in self._codes:
            code.bury(running_frames)
        visits = [visit for code in self._codes for visit in tuple(code.visits.values())]
        running = Counter(visit.row for visit in visits if visit.row is not None)
        for row in tuple(self._rows.values()):
            left = running[row]
            if bool(row.running) != bool(left):
                row.running = not left
                (row.start if left else row.rest)(now_s)
            row.running = left
        self._gauges.repair(visits)
