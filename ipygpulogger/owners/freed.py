"""Who still holds the memory of a name that a cell dropped: only what walks prove."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ..records.units import MB, shortened, size_text
from .growth import is_same

if TYPE_CHECKING:
    from collections.abc import Collection

    from .growth import Snapshot


def still_held(before: Snapshot, after: Snapshot, dropped: Collection[str]) -> list[str]:
    """Return who holds what these names held, which the cell dropped."""
    if not (before.complete and after.complete):
        return []
    sizes: Counter[tuple[str, str]] = Counter()
    none = id(None)
    dropped = {name for name in dropped if after.bound.get(name, none) == none}  # when that walk began
    for key, was in before.blocks.items() if dropped else ():
        now = after.blocks.get(key)
        if now is not None and was.size_bytes >= MB and is_same(was, now):
            for name in {was.plain_name, *was.shared} & dropped:
                sizes[name, now.name] += now.size_bytes
    return [
        f"{shortened(name)} was dropped, its {size_text(size)} are still held by {shortened(holder)}"
        for (name, holder), size in sorted(sizes.items())
    ]
