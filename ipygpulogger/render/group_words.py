"""What is said of many processes: how many there are, who stands out, who failed, who is missing.

However many there are, it is a bounded amount.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ..analysis.imbalance import FACTOR, TIME
from ..records.note import Note, NoteKind
from ..records.units import clipped, printable, shortened, size_text, time_text
from .table import squeezed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..analysis.group import Group
    from ..analysis.imbalance import Outlier
    from ..records.process import ProcessRecord

_NAME = 24  # characters of a name, at most
_NAMED = 8  # processes that a sentence names
_NAMED_SHARING = 3  # tasks that a sentence names of those that shared a process
_MOST_TIMES = 99
_SENTENCES = 4  # of each kind
_SENTENCE = 110  # characters of a foreign sentence


def mark_of(one: Outlier) -> str:
    """Return in which way a process stands out: "RAM 1.5x" is one and a half times the median."""
    return f"{one.name} {_times(one.ratio)}x"


def _times(ratio: float) -> str:
    if ratio > _MOST_TIMES:
        return f">{_MOST_TIMES}"
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def count_of(group: Group) -> str:
    """Return how many processes there are: "4 of 5 ranks on 2 hosts"."""
    noun = _noun_of(group)
    missing = 0 if noun == "tasks" else len(group.missing)  # of tasks it is their workers that are missing
    count, expected = len(group), len(group) + missing
    noun = noun if expected != 1 else noun.removesuffix("es") if noun == "processes" else noun[:-1]
    of = f" of {expected:,}" if missing else ""
    hosts = len({record.process.host for record in group})
    return f"{count:,}{of} {noun}{f' on {hosts:,} hosts' if hosts > 1 else ''}"


def _noun_of(group: Group) -> str:
    """Return what the processes are called together: "ranks", "tasks", "engines", "processes"."""
    if any(record.process.task is not None for record in group):
        return "tasks"
    names = [record.process.named() for record in group] or [who for who, _ in group.missing]
    words = {name.rpartition(" ")[0] for name in names if name.rpartition(" ")[2].isdigit()}
    if len(words) == 1 and (word := words.pop()).isalpha() and all(n.startswith(f"{word} ") for n in names):
        return f"{printable(word)}s" if word != "pid" else "processes"
    return "processes"


def sentences(group: Group) -> Iterator[str]:
    """Yield what is to be said below the table: who stands out, failed, or is missing; the notes."""
    outliers: dict[str, list[Outlier]] = {}
    for one in group.outliers:
        outliers.setdefault(one.name, []).append(one)
    for name, some in list(outliers.items())[:_SENTENCES]:
        yield _standing_out(name, some)
    failed = ((name_in_words(record), record.outcome()) for record in group)
    yield from _who(((who, shortened(why)) for who, why in failed if why), "{who}: {why}")
    missing = ((shortened(who), clipped(printable(why), _SENTENCE)) for who, why in group.missing)
    yield from _who(missing, "missing: {who} ({why})")
    yield from (clipped(printable(note), _SENTENCE) for note in group.notes[:_SENTENCES])
    yield from _notes(group)


def _standing_out(name: str, some: Sequence[Outlier]) -> str:
    """Return who stands out in one figure: "RAM: rank 2 needed 312 MB, 1.5 times the median"."""
    verb = "took" if name == TIME else "needed"
    first = some[0]
    figure = time_text(first.figure) if name == TIME else size_text(first.figure)
    others = len(some) - 1
    more = f"; {others:,} more {'is' if others == 1 else 'are'} over {FACTOR} times" if others else ""
    who = name_in_words(first.record)
    middle = time_text(first.median) if name == TIME else size_text(first.median)
    times = (
        f"{_times(first.ratio)} times the median" if first.ratio <= _MOST_TIMES else f"the median is {middle}"
    )
    return f"{name}: {who} {verb} {figure}, {times}{more}"


def name_in_words(record: ProcessRecord) -> str:
    """Return what a process is called in a sentence: "rank 2", "train on worker 1"."""
    name, task = record.process.named(), record.process.task
    return squeezed(name, _NAME) if task is None else f"{squeezed(task, _NAME)} on {squeezed(name, _NAME)}"


_WHOM = {
    NoteKind.SHARED_WITH_NOTEBOOK: "the notebook",
    NoteKind.SHARED_WITH_BLOCKS: "other blocks",
    NoteKind.SHARED_WITH_TASKS: "others",
}


def _notes(group: Group) -> Iterator[str]:
    """Yield the notes of the records, each once, with who has it."""
    notes: list[tuple[str, str]] = []
    shared: dict[str, list[str]] = {}
    for record in group:
        name = name_in_words(record)
        for note in record.notes:
            if isinstance(note, Note) and note.kind in _WHOM:
                shared.setdefault(_WHOM[note.kind], []).append(name)
            else:
                notes.append((name, clipped(printable(note), _SENTENCE)))
    for whom, names in shared.items():
        few = len(set(names)) == len(names) <= _NAMED_SHARING
        who = ", ".join(names) if few else f"{len(names):,} {_noun_of(group)}"
        yield f"{who} shared {'its' if len(names) == 1 else 'their'} process with {whom}"
    yield from _who(notes, "{who}: {why}")


def _who(reasons: Iterable[tuple[str, str]], sentence: str) -> Iterator[str]:
    """Yield a sentence for each of the first reasons, with the first names that have it, each name once.

    Args:
        reasons: Pairs of a name and why it is named.
        sentence: With places for both.
    """
    found: dict[str, list[str]] = {}
    for name, why in reasons:
        found.setdefault(why, []).append(name)
    for why, names in list(found.items())[:_SENTENCES]:
        times = Counter(names)
        first = list(times.items())[:_NAMED]
        who = ", ".join(name if count == 1 else f"{name} ({count:,} times)" for name, count in first)
        others = len(names) - sum(count for _, count in first)
        yield sentence.format(who=who + (f" and {others:,} more" if others else ""), why=why)
    if len(found) > _SENTENCES:
        yield f"and {len(found) - _SENTENCES:,} more of this kind"
