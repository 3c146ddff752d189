"""What a table of many processes says: its rows, who stands out, who is missing; as text or as HTML.

However many processes there are, it says a bounded amount.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ..records.budget import OVER
from ..records.imbalance import FACTOR, TIME, busiest
from ..records.leaks import GREW
from ..records.measurement import SHARED
from ..records.units import clipped, printable, rounded_mb, shortened, size_text, time_text
from ..records.usage import notable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..records import Usage
    from ..records.group import Group
    from ..records.imbalance import Figure, Outlier
    from ..records.process import ProcessRecord

ROWS = 16  # processes with a row each
_FEW = 8  # rows of more processes: those that stand out most
NAME = 24  # characters of a name, at most
LABEL = 40  # characters of the label
_NAMED = 8  # processes that a sentence names
_NAMED_SHARING = 3  # tasks that a sentence names of those that shared a process
_MOST_TIMES = 99
_FIGURES = 16  # whose spread is shown
_SENTENCES = 4  # of each kind
_SENTENCE = 110  # characters of a foreign sentence


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        record: The process's record.
        names: What it is called, its host and its task: as many as the table has columns for.
        marks: In which way it stands out, in a few words each.
    """

    record: ProcessRecord
    names: tuple[str, ...]
    marks: tuple[str, ...]


def heads_of(group: Group) -> tuple[str, ...]:
    """Return the heads of the columns of names: hosts and tasks only where they tell processes apart."""
    hosts = {record.process.host for record in group}
    tasks = any(record.process.task is not None for record in group)
    return "", *(["Host"] if len(hosts) > 1 else []), *(["Task"] if tasks else [])


def rows_of(group: Group) -> list[Row]:
    """Return the rows: all processes, or of many those that failed or stand out most."""
    heads = heads_of(group)
    ratios: dict[int, float] = {}
    marks: dict[int, list[str]] = {}
    for one in group.outliers:
        ratios[id(one.record)] = max(one.ratio, ratios.get(id(one.record), 0.0))
        marks.setdefault(id(one.record), []).append(mark_of(one))
    found = []
    for record in group:
        said = (*_urgent(record), *marks.get(id(record), ()))
        if said or len(group) <= ROWS:
            process = record.process
            columns = {"": process.named(), "Host": process.host, "Task": process.task or ""}
            found.append(Row(record, tuple(printable(columns[head]) for head in heads), said))
    if len(group) > ROWS:
        order = {id(record): place for place, record in enumerate(group)}
        found.sort(key=lambda row: (row.record.outcome() == "", -ratios.get(id(row.record), 0.0)))
        found = sorted(found[:_FEW], key=lambda row: order[id(row.record)])
    return found


def _urgent(record: ProcessRecord) -> Iterator[str]:
    """Yield in a few words that a process failed, went over a budget, or grows with every run."""
    if outcome := record.outcome():
        yield shortened(outcome)
    if any(note.startswith(OVER) for note in record.notes):
        yield "over budget"
    if any(note.startswith(GREW) for note in record.notes):
        yield "grows"


def mark_of(one: Outlier) -> str:
    """Return in which way a process stands out: "RAM 1.5x" is one and a half times the median."""
    return f"{one.name} {_times(one)}x"


def _times(one: Outlier) -> str:
    return (
        f">{_MOST_TIMES}"
        if one.ratio > _MOST_TIMES
        else f"{one.ratio:.1f}"
        if one.ratio < 9.95
        else f"{one.ratio:.0f}"
    )


def count_of(group: Group) -> str:
    """Return how many processes there are: "4 of 5 ranks on 2 hosts"."""
    noun = noun_of(group)
    missing = 0 if noun == "tasks" else len(group.missing)  # of tasks it is their workers that are missing
    count, expected = len(group), len(group) + missing
    noun = noun if expected != 1 else noun.removesuffix("es") if noun == "processes" else noun[:-1]
    of = f" of {expected:,}" if missing else ""
    hosts = len({record.process.host for record in group})
    return f"{count:,}{of} {noun}{f' on {hosts:,} hosts' if hosts > 1 else ''}"


def noun_of(group: Group) -> str:
    """Return what the processes are called together: "ranks", "tasks", "engines", "processes"."""
    if any(record.process.task is not None for record in group):
        return "tasks"
    names = [record.process.named() for record in group] or [who for who, _ in group.missing]
    words = {name.rpartition(" ")[0] for name in names if name.rpartition(" ")[2].isdigit()}
    if len(words) == 1 and (word := words.pop()).isalpha() and all(n.startswith(f"{word} ") for n in names):
        return f"{printable(word)}s" if word != "pid" else "processes"
    return "processes"


def sentences(group: Group) -> Iterator[str]:
    """Yield what is to be said below the table: who stands out, who is missing, the notes."""
    told: dict[str, list[Outlier]] = {}
    for one in group.outliers:
        told.setdefault(one.name, []).append(one)
    for name, some in list(told.items())[:_SENTENCES]:
        yield _standing_out(name, some)
    yield from _failed(group)
    yield from _missing(group)
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
    times = f"{_times(first)} times the median" if first.ratio <= _MOST_TIMES else f"the median is {middle}"
    return f"{name}: {who} {verb} {figure}, {times}{more}"


def name_in_words(record: ProcessRecord) -> str:
    """Return what a process is called in a sentence: "rank 2", "train on worker 1"."""
    name, task = record.process.named(), record.process.task
    return squeezed(name, NAME) if task is None else f"{squeezed(task, NAME)} on {squeezed(name, NAME)}"


def squeezed(name: str, characters: int) -> str:
    """Return a name made printable, its middle left out if it is longer: ends tell names apart."""
    told = printable(name)
    if len(told) <= characters:
        return told
    head = (characters - 1) // 3
    return f"{told[:head]}…{told[len(told) - (characters - 1 - head) :]}"


def _failed(group: Group) -> Iterator[str]:
    """Yield who failed, and how: "rank 5: failed: OutOfMemoryError"."""
    found: dict[str, list[str]] = {}
    for record in group:
        if outcome := record.outcome():
            found.setdefault(shortened(outcome), []).append(name_in_words(record))
    yield from _who(found, "{who}: {why}")


def _missing(group: Group) -> Iterator[str]:
    """Yield who is missing and why: "missing: rank 3 (no answer within 30 s)"."""
    found: dict[str, list[str]] = {}
    for who, why in group.missing:
        found.setdefault(clipped(printable(why), _SENTENCE), []).append(shortened(who))
    yield from _who(found, "missing: {who} ({why})")


def _notes(group: Group) -> Iterator[str]:
    """Yield the notes of the records, each once, with who has it."""
    found: dict[str, list[str]] = {}
    shared: dict[str, list[str]] = {}
    for record in group:
        name = name_in_words(record)
        for note in record.notes:
            if note.startswith(SHARED):
                whom = next((one for one in ("the notebook", "other block") if one in note), "others")
                shared.setdefault("other blocks" if whom == "other block" else whom, []).append(name)
            else:
                found.setdefault(clipped(printable(note), _SENTENCE), []).append(name)
    for whom, names in shared.items():
        few = len(set(names)) == len(names) <= _NAMED_SHARING
        who = ", ".join(names) if few else f"{len(names):,} {noun_of(group)}"
        yield f"{who} shared {'its' if len(names) == 1 else 'their'} process with {whom}"
    yield from _who(found, "{who}: {why}")


def _who(found: dict[str, list[str]], sentence: str) -> Iterator[str]:
    """Yield a sentence for each of the first reasons, with the first names that have it, each name once."""
    for why, names in list(found.items())[:_SENTENCES]:
        times = Counter(names)
        first = list(times.items())[:_NAMED]
        who = ", ".join(name if count == 1 else f"{name} ({count:,} times)" for name, count in first)
        others = len(names) - sum(count for _, count in first)
        yield sentence.format(who=who + (f" and {others:,} more" if others else ""), why=why)
    if len(found) > _SENTENCES:
        yield f"and {len(found) - _SENTENCES:,} more of this kind"


def spread_of(group: Group) -> list[Figure]:
    """Return the figures that differ notably among the processes; of very many processes all figures.

    Of very many devices these are the figures that differ most.
    """
    found = [
        one
        for one in group.figures
        if len(group) > ROWS
        or (
            one.spread > max(0.01, one.median / 100)
            if one.name == TIME
            else notable(int(one.spread), int(one.median))
        )
    ]
    widest = sorted(found, key=lambda one: (one.name != TIME, -one.spread))[:_FIGURES]
    return [one for one in found if one in widest]


def _three(usage: Usage, used_bytes: int | None, *, attributed: bool) -> tuple[str, str, str]:
    """Return what was consumed, peaked and is used, in MB."""
    used = "n/a" if used_bytes is None else f"{rounded_mb(used_bytes)}"
    if not attributed:
        return "n/a", "n/a", used
    hi_bytes, lo_bytes = usage.peak.hi_bytes, usage.peak.lo_bytes
    least = "" if hi_bytes is not None and rounded_mb(hi_bytes) == rounded_mb(lo_bytes) else "≥"
    return f"{rounded_mb(usage.consumed_bytes)}", f"{least}{rounded_mb(usage.peaked_bytes)}", used


def ram_figures(record: ProcessRecord) -> tuple[str, str, str]:
    """Return what a process consumed, peaked and uses of general RAM, in MB."""
    return _three(record.gen, record.gen.after_bytes, attributed=True)


def gpu_figures(record: ProcessRecord) -> tuple[str, str, str]:
    """Return the same of the device on which the process needed most."""
    gpu = busiest(record)
    return ("", "", "") if gpu is None else _three(gpu, gpu.used_bytes, attributed=gpu.attributed)


def has_gpus(group: Group) -> bool:
    """Return whether any process used a device."""
    return any(record.gpus for record in group)


def figure_name(one: Figure) -> str:
    """Return what a figure is called: "RAM needed", "time"."""
    return one.name if one.name == TIME else f"{one.name} {one.what}"
