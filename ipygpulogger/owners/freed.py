"""What a cell freed, by name, and why memory did not come back: only what walks and figures prove."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from typing import Any

from ..records import CPU, RamUsage, Usage
from ..records.units import MB, rounded_mb, shortened, size_text
from .dimensions import names_in
from .growth import Snapshot, gained, gone, is_same, plain_name
from .memory_blocks import array_readers, holding_of

_NAMED = 3


def freed_notes(
    before: Snapshot,
    after: Snapshot,
    dropped: Collection[str],
    usages: Mapping[str, Usage],
    values: Mapping[str, Any],
) -> list[str]:
    """Return which names hold less than before, where that much is free, and who holds what was dropped."""
    if not (before.complete and after.complete):
        return []
    sizes: Counter[tuple[str, str]] = Counter()
    unsure = set()  # by itself: it may be held where the walk does not come
    for block, gone_bytes in gone(before, after, usages):
        if block.alive is None or block.is_freed():
            sizes[block.plain_name, block.device] += gone_bytes
        if not block.is_freed():
            unsure.add((block.plain_name, block.device))
    for (name, device), gain in gained(before, after, (), usages).items():
        sizes[plain_name(name), device] -= gain.size_bytes
    was, now, found = before.sizes(), after.sizes(), []
    for device, usage in usages.items():
        rest_bytes = usage.consumed_bytes - now[device] + was[device]  # what the names do not account for
        kept_bytes = min(rest_bytes, usage.newly_kept_bytes) if isinstance(usage, RamUsage) else 0
        is_free = rest_bytes - max(0, kept_bytes) < MB
        names = [
            (-size_bytes, name)
            for (name, on), size_bytes in sizes.items()
            if on == device and size_bytes >= MB and (is_free or (name, on) not in unsure)
        ]
        found += _freed(sorted(names), device, kept_bytes if is_free else 0)
    return [*found, *_still_held(before, after, dropped, values)]


def _freed(names: list[tuple[int, str]], device: str, kept_bytes: int) -> list[str]:
    if not names:
        return []
    said = [f"{shortened(name)} {rounded_mb(-size)} MB" for size, name in names[:_NAMED]]
    said += [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    where = "" if device == CPU else f" ({device})"
    kept = f", of which malloc keeps {size_text(kept_bytes)}" if kept_bytes >= MB else ""
    return [f"freed: {', '.join(said)}{where}{kept}"]


def _still_held(
    before: Snapshot, after: Snapshot, dropped: Collection[str], values: Mapping[str, Any]
) -> list[str]:
    sizes: Counter[tuple[str, str]] = Counter()
    none = id(None)
    dropped = {name for name in dropped if after.bound.get(name, none) == none}  # when that walk began
    for key, was in before.blocks.items() if dropped else ():
        now = after.blocks.get(key)
        if now is not None and was.size_bytes >= MB and is_same(was, now):
            for name in {was.plain_name, *was.shared} & dropped:
                sizes[name, _holder(now.name, key, values)] += now.size_bytes
    return [
        f"{shortened(name)} was dropped, its {size_text(size)} are still held by {shortened(holder)}"
        for (name, holder), size in sorted(sizes.items())
    ]


def _holder(name: str, key: Hashable, values: Mapping[str, Any]) -> str:
    """Return the name that holds a block, with the attribute or the key of it that does, if one does."""
    value = values.get(name)
    for inner, one in names_in(value):
        holding = holding_of(one, array_readers())
        if holding is not None and holding.key == key and type(inner) is str:
            return f"{name}[{inner!r}]" if type(value) is dict else f"{name}.{inner}"
    return name
