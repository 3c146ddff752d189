"""What names may hold besides the large blocks that a walk finds.

That is what they hold in small blocks, and memory that no walk sees: of C code, of Python's small objects, or
below more objects than there was time to visit. Nothing says which name holds the latter. Those that may are
the names that were bound while it came, those that the cells of that time mention, and those below which
there was too much to visit.

Several names may be bound to one object, so all of this is known by object: by the `id` of the names' values.
"""

from __future__ import annotations

import re
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from ..records import CPU
from ..records.units import MB
from .referents import worth_visiting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .attribution import WalkResult

_CAME_BYTES = 5 * MB  # that no name accounts for: less is the ordinary drift of resident memory
_LEAST_BYTES = MB // 16  # below one name: many names may be dropped together
_WORD = re.compile(r"\w+")


class HiddenMemory:
    """What the values of a shell's names may hold besides large blocks, after each walk.

    Args:
        shell: IPython's.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        # General RAM that no name accounts for: at the last walk, and at that with the least of it.
        self._last_bytes: int | None = None
        self._least_bytes = 0
        self._bound: Mapping[str, int] = {}  # what each name was bound to at the last walk
        self._cells = 0  # how many cells the shell had run then
        self._small: dict[tuple[str, int], int] = {}  # by device and value: bytes in small blocks
        self._unseen: dict[int, int] = {}  # by value: bytes that it may hold of what no walk saw

    def update(
        self, found: WalkResult, used_bytes: int, bound: Mapping[str, int]
    ) -> dict[tuple[str, int], int]:
        """Return what values of names may hold besides large blocks, in bytes by device and `id`.

        A walk may be cut short: a value that was there at the last walk holds as much as it did.

        Args:
            found: What a walk found.
            used_bytes: The general RAM in use then, without what malloc keeps.
            bound: By name, the `id` of what it was bound to.
        """
        values = set(bound.values())
        small = {key: size_bytes for key, size_bytes in self._small.items() if key[1] in values}
        for key, size_bytes in _small_blocks(found, bound).items():
            small[key] = max(size_bytes, small.get(key, 0))
        unnamed_bytes = used_bytes - sum(one.size_bytes for one in found.owners if one.device == CPU)
        if self._last_bytes is None:
            self._last_bytes = self._least_bytes = unnamed_bytes
        self._least_bytes = min(self._least_bytes, unnamed_bytes)
        most_bytes = unnamed_bytes - self._least_bytes
        unseen = {value: min(size, most_bytes) for value, size in self._unseen.items() if value in values}
        came_bytes = unnamed_bytes - self._last_bytes
        if came_bytes >= _CAME_BYTES:
            for value in {*self._bound_since(bound), *self._mentioned(bound)}:
                unseen[value] = min(unseen.get(value, 0) + came_bytes, most_bytes)
        unseen |= {bound[name]: most_bytes for name in found.vast if name in bound}
        self._last_bytes, self._bound, self._cells = unnamed_bytes, bound, len(self._inputs())
        self._small, self._unseen = small, unseen
        sizes = dict(small)
        for value, size_bytes in unseen.items():
            sizes[CPU, value] = sizes.get((CPU, value), 0) + size_bytes
        return {key: size_bytes for key, size_bytes in sizes.items() if size_bytes >= _LEAST_BYTES}

    def _bound_since(self, bound: Mapping[str, int]) -> Iterator[int]:
        """Yield what names were bound to since the last walk."""
        for name, value in bound.items():
            if value != self._bound.get(name) and not name.startswith("_") and self._may_hold(name):
                yield value

    def _mentioned(self, bound: Mapping[str, int]) -> Iterator[int]:
        """Yield what the names are bound to that a cell since the last walk mentions: it may have grown."""
        inputs = self._inputs()
        texts = inputs[min(self._cells, len(inputs) - 1) :]  # the last one may have run on since
        for name in {word for text in texts for word in _WORD.findall(text)} & bound.keys():
            is_code = issubclass(type(self._shell.user_ns.get(name)), (ModuleType, FunctionType, type))
            if not is_code and not name.startswith("_") and self._may_hold(name):
                yield bound[name]

    def _may_hold(self, name: str) -> bool:
        """Return whether what a name is bound to can hold memory."""
        names = self._shell.user_ns
        return name not in names or bool(worth_visiting((names[name],)))

    def _inputs(self) -> Sequence[str]:
        """Return the text of each cell, as far as the shell keeps it."""
        history = getattr(self._shell, "history_manager", None)
        inputs: Sequence[str] = getattr(history, "input_hist_raw", ())
        return inputs


def _small_blocks(found: WalkResult, bound: Mapping[str, int]) -> dict[tuple[str, int], int]:
    """Return what variables hold in small blocks, in bytes by device and `id` of the variable's value."""
    small: dict[tuple[str, int], int] = {}
    for (name, device, kind), blocks in found.blocks.items():
        if kind == "variable" and name in bound:
            key = device, bound[name]
            small[key] = small.get(key, 0) + sum(size for size in blocks.values() if size < MB)
    return small
