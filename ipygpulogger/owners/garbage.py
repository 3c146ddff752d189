"""Garbage: when a full collection runs, which visits every object of the process, and what is said of it.

It runs where it is cheap beside the cell, or in proportion to what the cell dropped that did not come back.
Said, and proven, is what it freed of earlier cells, and which dropped name's memory waits for it.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.machine import importing
from ..records import CPU
from ..records.units import MB, rounded_mb, size_text
from ..runtime import collector
from ..runtime.shell import module_namespace

if TYPE_CHECKING:
    import weakref

    from ..records import CellRecord
    from .growth import Growth, OwnedBlock, Snapshot

_CHEAP_S, _SHARE = 0.002, 0.01  # a full collection that costs less, or this share of the cell's time, runs
_SHORT_S = 0.0005  # but the former not after a cell that took less than this
_S_PER_MB, _MOST_S = 0.05, 0.25  # what one may cost that gives back what the cell dropped
_YOUNG_S, _YOUNG_SHARE = 0.001, 0.002  # what a young collection may cost, at least and of the cell's time
_LOOK_S = 0.003  # for finding out whether names still hold what they held, or garbage is garbage still
_PROOF_S = 0.05
_WORD = re.compile(r"\w+")


class Freed(NamedTuple):
    """What a full collection freed, in bytes by device."""

    in_all: Mapping[str, int]  # everything
    left: Mapping[str, int]  # the blocks that were known as garbage of earlier cells


class Garbage:
    """Collects the garbage of a shell's cells; `growth` knows which names held memory when a cell began."""

    def __init__(self, shell: Any, growth: Growth) -> None:
        self._shell, self._growth = shell, growth
        self._left: dict[Hashable, OwnedBlock] = {}  # proven garbage that was not collected
        self._roots: list[weakref.ref[Any]] = []  # below which it is

    def begin(self) -> None:
        """Collect young garbage before a cell."""
        collector.run_young(_YOUNG_S)
        if self._left:  # a weak reference may have brought it back
            self._left = _proven(self._roots, self._left, _LOOK_S)

    def settle(self, time_s: float, *, starved: bool = False) -> Freed | None:
        """Collect young garbage after a cell, and all where that is cheap; return what that freed.

        Or where a device had no memory left (`starved`): an earlier failed call may hold what is needed next.
        """
        collector.run_young(max(_YOUNG_S, _YOUNG_SHARE * time_s))
        cheap_s = max(_CHEAP_S if time_s >= _SHORT_S else 0.0, _SHARE * time_s)
        return self._collect() if starved or collector.costs_at_most(cheap_s) else None

    def settle_dropped(self, raw: str, record: CellRecord, before: Snapshot) -> Freed | None:
        """Collect all garbage, if that is in proportion to what the cell dropped; return what that freed."""
        size_bytes = sum(self._dropped(raw, record, before).values())
        most_s = min(_MOST_S, size_bytes / MB * _S_PER_MB)
        return self._collect() if size_bytes >= MB and collector.costs_at_most(most_s) else None

    def freed_notes(self, raw: str, record: CellRecord, before: Snapshot, freed: Freed) -> list[str]:
        """Return what a collection freed of earlier cells' garbage; `record` was read after it.

        The cell's own garbage is distinguished where it was proven before that there is garbage, or where the
        cell cannot have dropped what was there before it: then memory in use cannot fall below what it was.
        """
        notes = []
        unsure = max(freed.in_all.values()) < MB or self._can_have_dropped(raw, record, before)
        for device, in_all_bytes in freed.in_all.items():
            usage = record.memories().get(device)
            fell_bytes = 0 if usage is None or unsure else -usage.consumed_bytes
            size_bytes = min(in_all_bytes, max(fell_bytes, freed.left.get(device, 0)))
            if size_bytes >= MB:
                where = "" if device == CPU else f" on {device}"
                notes.append(f"garbage of earlier cells: \u2212{rounded_mb(size_bytes)} MB{where}")
        return notes

    def dropped_notes(self, before: Snapshot) -> list[str]:
        """Return which names the cell dropped whose memory is proven to be garbage, and was not collected."""
        names = self._growth.rebound(before) & before.values.keys()
        listed = {**self._left, **self._growth.held()} if names else {}
        blocks = {key: block for key, block in before.large_of(names).items() if key not in listed}
        if not blocks:
            return []
        roots = [before.values[name] for name in names]
        found = _proven(roots, blocks, _PROOF_S)
        if found:
            self._roots = [root for root in (*self._roots, *roots) if root() is not None]
        sizes: Counter[str] = Counter()
        for key, block in found.items():  # what holds a block is freed with it
            self._left[key] = block._replace(alive=block.alive or before.values[block.plain_name])
            sizes[block.plain_name] += block.size_bytes
        return [
            f"{name} was dropped, its {size_text(size_bytes)} are not yet free: %gpulog free"
            for name, size_bytes in sorted(sizes.items())
        ]

    def close(self) -> None:
        """Forget everything."""
        self._left, self._roots = {}, []

    def _dropped(self, raw: str, record: CellRecord, before: Snapshot) -> dict[str, int]:
        """Return what the cell dropped that seems not to be freed, in bytes by device."""
        names = self._growth.rebound(before)
        # Of an array there is no weak reference, but there may be one to what the name was bound to.
        living = {name for name in names if name in before.values and before.values[name]() is not None}
        suspects = {key: one for key, one in before.large_of(names).items() if not one.is_freed()}
        if not suspects:
            suspects = self._growth.missing(self._mentioned(raw, before), _LOOK_S)
        # Garbage of the cell's own, of which nothing else is known.
        unknown = [
            device
            for device, usage in record.memories().items()
            if usage.consumed_bytes >= MB and (device != CPU or record.status != "ok")
        ]
        if not suspects and not unknown:
            return {}
        unexplained, held = self._growth.unexplained(record, before), self._growth.held()
        found = {device: unexplained.get(device, 0) for device in unknown}
        for device in {one.device for one in suspects.values()}:
            lost = [one for key, one in suspects.items() if one.device == device and key not in held]
            lost_bytes = sum(one.size_bytes for one in lost)
            alive_bytes = sum(one.size_bytes for one in lost if one.alive or one.plain_name in living)
            left_bytes = max(alive_bytes, min(unexplained.get(device, 0), lost_bytes))
            found[device] = max(found.get(device, 0), left_bytes)
        return found

    def _mentioned(self, raw: str, before: Snapshot) -> dict[Hashable, OwnedBlock]:
        """Return the large blocks that variables in a cell's text held by way of other objects."""
        words = set(_WORD.findall(raw)) & before.large
        if not words:
            return {}
        from .memory_blocks import array_readers, holding_of  # there since the first walk

        readers, names = array_readers(), self._shell.user_ns
        own = {getattr(holding_of(names.get(word), readers), "key", None) for word in words}
        blocks = before.large_of(words).items()
        return {key: one for key, one in blocks if key not in own and not one.is_freed()}

    def _can_have_dropped(self, raw: str, record: CellRecord, before: Snapshot) -> bool:
        """Return whether a cell failed, or mentions more than standard modules and plain values."""
        words = _WORD.findall(raw)
        if record.status != "ok" or "%" in raw or "!" in raw or "del" in words:
            return True
        names = self._shell.user_ns
        return any(
            word not in names
            or not _is_plain(names[word])
            or before.bound.get(word, id(names[word])) != id(names[word])
            for word in words
            if word in names or word in before.bound or word.startswith("_")
        )

    def _collect(self) -> Freed:
        waiting = [block for block in self._left.values() if not block.is_freed()]
        before = self._growth.in_use()
        collector.run()
        after = self._growth.in_use()
        left: Counter[str] = Counter()
        for block in waiting:
            left[block.device] += block.size_bytes if block.is_freed() else 0
        self.close()
        in_all = {device: size - after.get(device, 0) for device, size in before.items()}
        return Freed(in_all, left)


def _proven(
    roots: Iterable[weakref.ref[Any]], blocks: Mapping[Hashable, OwnedBlock], budget_s: float
) -> dict[Hashable, OwnedBlock]:
    """Return those of these blocks that are garbage with some objects; none where time is too short."""
    with importing():
        from .memory_blocks import array_readers
        from .unreachable import garbage_below
    return garbage_below(roots, blocks, array_readers(), budget_s)


def _is_plain(value: Any) -> bool:
    """Return whether nothing of the user's can be dropped by way of a value."""
    if issubclass(type(value), ModuleType):
        name = module_namespace(value).get("__name__")
        return type(name) is str and name.partition(".")[0] in sys.stdlib_module_names
    return value is None or type(value) in (bool, int, float, str)
