"""What came with imported libraries: their code, and what they set up for themselves.

It is told from the modules that are new in `sys.modules` and from the shared objects that are newly mapped.
What of these files is resident is read from the page table. What the code takes as objects is estimated from
the size of its files, for nobody counts it; so the sum is the most that an import is said to account for.
"""

from __future__ import annotations

import mmap
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from ..runtime import clock
from .frames import namespace_of_module

if TYPE_CHECKING:
    from collections.abc import Iterable

# Measured with Python 3.11: beside what is resident of their shared objects numpy, pandas, matplotlib,
# torch._dynamo and torch._inductor take 2.4 to 3.4 times the size of their compiled files. torch takes 70 MB
# more, where 90 MB of its shared objects are resident: what these allocate as they are loaded.
_PER_CODE_BYTE = 4
_PER_MAPPED_BYTE = 2
_NAMED = 3
_NAMED_SHARE = 0.1  # of all: a library that brought less is not named
_BUDGET_S = 0.05  # beside an import of a thousand modules, which takes seconds
_PAGES = 1 << 17  # of a read: a megabyte
_OURS = __name__.partition(".")[0]
_PRESENT = bytes(range(128, 256))  # the highest bit of an entry's highest byte, proc_pid_pagemap(5)


class Look(NamedTuple):
    """The libraries of the process at one moment.

    Attributes:
        modules: Their names in `sys.modules`.
        files: The shared objects that are mapped, and where; none where the system does not tell.
    """

    modules: frozenset[str]
    files: dict[str, list[tuple[int, int]]]


class Loaded(NamedTuple):
    """What was imported between two looks.

    Attributes:
        names: The packages that brought the most, the largest first.
        most_bytes: The most general RAM that this accounts for.
    """

    names: tuple[str, ...]
    most_bytes: int


class Libraries:
    """The libraries of this process, looked at again only when modules came or went."""

    def __init__(self) -> None:
        self._last: Look | None = None
        self._count = 0  # of modules then

    def look(self) -> Look:
        """As they are now."""
        if self._last is None or self._count != len(sys.modules):
            self._count = len(sys.modules)
            names = (name for name in list(sys.modules) if type(name) is str)
            self._last = Look(frozenset(names), _shared_objects())
        return self._last

    def loaded(self, before: Look) -> Loaded | None:
        """What was imported since; None if nothing.

        Args:
            before: An earlier look.
        """
        now = self.look()
        new = [name for name in now.modules - before.modules if _package(name) != _OURS]
        if not new:
            return None
        brought: dict[str, int] = {}
        for name, size_bytes in _code_bytes(new):
            package = _package(name)
            brought[package] = brought.get(package, 0) + _PER_CODE_BYTE * size_bytes
        others_bytes = 0
        for file in now.files.keys() - before.files.keys():
            size_bytes = _PER_MAPPED_BYTE * _resident_bytes(now.files[file])
            owner = next(
                (part for folder in file.split("/") if (part := folder.partition(".")[0]) in brought), None
            )
            if owner is None:
                others_bytes += size_bytes
            else:
                brought[owner] += size_bytes
        most_bytes = sum(brought.values()) + others_bytes
        ranked = sorted(brought, key=lambda name: (name in sys.stdlib_module_names, -brought[name]))
        named = [name for name in ranked[:_NAMED] if brought[name] >= _NAMED_SHARE * most_bytes]
        return Loaded(tuple(named or ranked[:1]), most_bytes) if ranked else None


def _package(module: str) -> str:
    return module.partition(".")[0]


def _code_bytes(names: Iterable[str]) -> list[tuple[str, int]]:
    """The sizes of modules' files: compiled, or the source where that is not kept."""
    found = []
    ends_s = clock.monotonic_s() + _BUDGET_S
    for name in names:
        module = sys.modules.get(name)
        if issubclass(type(module), ModuleType):
            namespace = namespace_of_module(module)
            for file in (namespace.get("__cached__"), namespace.get("__file__")):
                if type(file) is str and file.endswith((".pyc", ".py")):
                    with suppress(OSError, ValueError):
                        found.append((name, Path(file).stat().st_size))
                        break
        if clock.monotonic_s() > ends_s:
            break
    return found


def _shared_objects() -> dict[str, list[tuple[int, int]]]:
    """Each mapped shared object, and the ranges of addresses where it is."""
    found: dict[str, list[tuple[int, int]]] = {}
    try:
        lines = Path("/proc/self/maps").read_bytes().splitlines()
    except OSError:
        return found
    for line in lines:
        if b".so" in line:
            place, *_, path = line.split(None, 5)
            start, end = place.split(b"-")
            found.setdefault(os.fsdecode(path), []).append((int(start, 16), int(end, 16)))
    return found


def _resident_bytes(ranges: Iterable[tuple[int, int]]) -> int:
    """How much of these ranges of addresses is resident; 0 where the system does not tell."""
    page_bytes, count = mmap.PAGESIZE, 0
    with suppress(OSError), Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for start, end in ranges:
            first, last = start // page_bytes, end // page_bytes
            for page in range(first, last, _PAGES):
                entries = os.pread(pagemap.fileno(), 8 * min(_PAGES, last - page), 8 * page)
                highest = entries[7::8] if sys.byteorder == "little" else entries[::8]
                count += len(highest) - len(highest.translate(None, _PRESENT))
    return count * page_bytes
