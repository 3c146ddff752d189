"""The report of a scope in one line: time, what moved, what is used, who grew.

``12.4 s · GPU +2.4 GB, needed 3.6 → 6.4 of 16 GB · RAM +7 MB → 468 MB · model 1.6 GB, opt 0.8 GB``
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..analysis.notable import QUIET_RAM_BYTES, is_inexact, is_notable, moved_bytes, moves
from ..records import CellRecord
from ..records.note import URGENT, NoteKind, of_kind
from ..records.units import (
    clipped,
    printable,
    rounded_mb,
    share_text,
    shortened,
    signed_size_text,
    size_text,
    time_text,
)
from .growth import between, bounds, device_name, highest, notable
from .text import card_of, children_now, sentences

if TYPE_CHECKING:
    from ..records import ChildrenUsage, DeviceUsage, Measurement, Usage

    Weight = Literal["strong", "plain", "faint"]

_GPUS = 2  # that are listed one by one
_OWNERS = 3
_LABEL = 60  # characters
_NOTE = 90  # characters of a note that is not urgent; a longer one is only below the line


class Phrase(NamedTuple):
    """Some words of the line, and how they weigh."""

    words: str
    weight: Weight = "plain"


class Clause(NamedTuple):
    """A part of the line that stands between two dots."""

    phrases: tuple[Phrase, ...]

    def __str__(self) -> str:
        return "".join(phrase.words for phrase in self.phrases)


def _clause(words: str, weight: Weight = "plain") -> Clause:
    return Clause((Phrase(words, weight),))


def headline(measurement: Measurement, *, named: bool = False, whole: bool = False) -> list[Clause]:
    """Return the line of a finished scope, the most important first; the `whole` one has any first note."""
    clauses = [_clause(time_text(measurement.time_s))]
    own = isinstance(measurement, CellRecord) and measurement.title() == f"In [{measurement.execution_count}]"
    if (named or not own) and measurement.title().strip():
        clauses.append(_clause(clipped(printable(measurement.title()), _LABEL)))
    if ended := measurement.outcome():
        clauses.append(_clause(shortened(ended), "strong"))
    clauses += memories(measurement)
    children = measurement.children
    if children and moved_bytes(children) >= QUIET_RAM_BYTES:
        clauses.append(_children(children))
    clauses += map(_clause, filter(None, (_owners(measurement), between(measurement))))
    urgent = of_kind(measurement.notes, *URGENT)
    clauses += [
        _clause(printable(note), "strong" if urgent else "faint")
        for note in (urgent or measurement.notes)[:1]
        if whole or urgent or len(note) <= _NOTE
    ]
    return clauses


def tells_who_grew(measurement: Measurement) -> bool:
    """Return whether the line has every name that grew."""
    owners = notable(measurement)
    return len(owners) <= _OWNERS and not any(owner.shared for owner in owners)


def so_far(measurement: Measurement) -> list[Clause]:
    """Return the line of a scope that still runs: time, what is used now, the highest so far."""
    clauses = [_clause(time_text(measurement.time_s, whole=True))]
    for gpu in measurement.gpus[:_GPUS]:
        name = device_name(gpu, measurement.gpus)
        clauses.append(_clause(f"{name} {_device_use(gpu)}{_highest_so_far(gpu, gpu.used_bytes)}"))
    gen = measurement.gen
    clauses.append(_clause(f"RAM {size_text(gen.after_bytes)}{_highest_so_far(gen, gen.after_bytes)}"))
    urgent = of_kind(measurement.notes, *URGENT)
    notes = measurement.notes
    return clauses + [_clause(printable(note), "strong" if note in urgent else "faint") for note in notes]


def is_quiet(measurement: Measurement) -> bool:
    """Return whether a scope did nothing that is worth more than one grey line."""
    if card_of(measurement) or measurement.outcome() or any(map(is_notable, measurement.gpus)):
        return False
    usages = filter(None, (measurement.gen, measurement.children, measurement.pinned))
    if any(moved_bytes(usage) >= QUIET_RAM_BYTES for usage in usages):
        return False
    return len(sentences(measurement)) == len(of_kind(measurement.notes, NoteKind.STILL_OVER))


def memories(measurement: Measurement) -> Iterator[Clause]:
    """Yield a clause for each memory: what moved, GPUs first, then what did not."""
    gpus, gen = measurement.gpus, measurement.gen
    moved = [gpu for gpu in gpus if gpu.attributed and moves(gpu)]
    moved.sort(key=moved_bytes, reverse=True)
    still = [gpu for gpu in gpus if gpu not in moved]
    for gpu in moved[:_GPUS]:
        yield _moved(device_name(gpu, gpus), gpu, _device_use(gpu))
    if len(moved) > _GPUS:
        yield _clause(f"{len(moved) - _GPUS} more GPUs moved")
    ram = size_text(gen.after_bytes)
    yield _moved("RAM", gen, ram) if moves(gen) else _clause(f"RAM {ram}", "faint")
    if len(still) <= _GPUS:
        yield from (_clause(f"{device_name(gpu, gpus)} {_device_use(gpu)}", "faint") for gpu in still)
    else:
        yield _clause(f"{len(still)} {'other ' if moved else ''}GPUs unchanged", "faint")


def _moved(name: str, usage: Usage, used: str) -> Clause:
    """Return what moved in one memory: "GPU +2.4 GB, needed 3.6 → 6.4 of 16 GB"."""
    consumed, need = signed_size_text(usage.consumed_bytes), _needed(usage)
    weight: Weight = "strong" if moved_bytes(usage) >= QUIET_RAM_BYTES else "plain"
    if not rounded_mb(usage.consumed_bytes):
        return Clause((Phrase(f"{name} {need}", weight), Phrase(f" → {used}")))
    unit = f" {consumed.partition(' ')[2]}"
    short = need.removesuffix(unit) if need.count("B") == 1 else need
    more = [Phrase(f", {short}", "faint")] if need else []
    return Clause((Phrase(f"{name} {consumed}", weight), *more, Phrase(f" → {used}")))


def _children(children: ChildrenUsage) -> Clause:
    """Return what child processes have: "2 children 950 MB, highest 1.3 GB"."""
    now = Phrase(children_now(children, size_text(children.after_bytes)).removeprefix("+ "))
    if not rounded_mb(children.peaked_bytes):
        return Clause((now,))
    most = highest(children.peak, size_text, at_least=children.at_least)
    return Clause((now, Phrase(f", {most}", "faint")))


def _needed(usage: Usage) -> str:
    """Return what was needed: "needed 3.6 GB"; empty if that is certainly what was consumed, or nothing."""
    inexact = is_inexact(usage)
    if not rounded_mb(usage.peaked_bytes) and not inexact:
        return ""
    most_bytes = usage.needed_at_most_bytes if inexact else usage.needed_bytes
    return f"needed {bounds(usage.needed_bytes, most_bytes, size_text)}"


def _highest_so_far(usage: Usage, used_bytes: int | None) -> str:
    if used_bytes is None or not rounded_mb(usage.peaked_bytes):
        return ""
    least = "at least " if usage.peak.hi_bytes is None else ""
    return f", highest {least}{size_text(used_bytes + usage.peak.lo_bytes - usage.after_bytes)}"


def _device_use(gpu: DeviceUsage) -> str:
    if gpu.used_bytes is None:
        return "n/a"
    return share_text(gpu.used_bytes, gpu.total_bytes) if gpu.total_bytes else size_text(gpu.used_bytes)


def _owners(measurement: Measurement) -> str:
    """Return the names that grew the most: "model 1.6 GB, opt 0.8 GB"."""
    found = notable(measurement)
    said = [f"{shortened(owner.name)} {size_text(owner.size_bytes)}" for owner in found[:_OWNERS]]
    if len(found) > _OWNERS:
        said.append(f"{len(found) - _OWNERS} more")
    return ", ".join(said)
