"""What there is to say besides figures: of a measurement, and of a source."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import Literal, NamedTuple


class NoteKind(Enum):
    """The kinds of notes on which decisions depend; each value is the pattern of a saved note."""

    OVER_BUDGET = "Over budget on "
    LITTLE_LEFT = "(?:RAM|Address space) left"
    GREW = "grew in each of its last "
    STILL_OVER = "still over budget by "  # a cell before it went over
    SHARED_WITH_NOTEBOOK = "shared with the notebook"
    SHARED_WITH_TASKS = "shared with "


URGENT = (NoteKind.OVER_BUDGET, NoteKind.LITTLE_LEFT, NoteKind.GREW)
WARNINGS = (NoteKind.OVER_BUDGET, NoteKind.LITTLE_LEFT)
SHARED = (NoteKind.SHARED_WITH_NOTEBOOK, NoteKind.SHARED_WITH_TASKS)


class Note(str):
    """A sentence with a kind, on which decisions depend; a note that is only read is a plain `str`."""

    __slots__ = ("kind",)
    kind: NoteKind

    def __new__(cls, kind: NoteKind, text: str) -> Note:  # noqa: PYI034 - Self is Python 3.11's
        """Return a note of this kind."""
        note = super().__new__(cls, text)
        note.kind = kind
        return note

    def __reduce__(self) -> tuple[type[Note], tuple[NoteKind, str]]:
        return Note, (self.kind, str(self))

    @classmethod
    def read(cls, text: str) -> str:
        """Return a saved note with its kind, if it has one."""
        kind = next((kind for kind in NoteKind if re.match(kind.value, text)), None)
        return text if kind is None else cls(kind, text)


def of_kind(notes: Iterable[str], *kinds: NoteKind) -> list[Note]:
    """Return those of the notes that are of one of these kinds."""
    return [note for note in notes if isinstance(note, Note) and note.kind in kinds]


class Diagnosis(NamedTuple):
    """What one source of figures reports about itself on this machine.

    Attributes:
        source: "RAM", "NVML", "torch", ...
        state: How good its figures are here: "exact", "bounded", "sampled", "absent" or "not imported yet".
        says: What it reads, or why it cannot, in one sentence.
        remedy: What to do about it; None when nothing can be done.
    """

    source: str
    state: Literal["exact", "bounded", "sampled", "absent", "not imported yet"]
    says: str
    remedy: str | None = None
