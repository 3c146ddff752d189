"""The general RAM that came with imported libraries: their code, and what they set up for themselves.

It is derived from the modules that are new in `sys.modules` and the shared objects that are newly mapped. How
much of these files is resident is read from the page table. What the code takes as objects is not counted
anywhere and is estimated from the size of its files. The sum is therefore an upper bound.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from ..runtime import clock
from ..runtime.shell import OUR_PACKAGE, module_namespace
from .address_space import page_table_bytes, shared_objects

if TYPE_CHECKING:
    from collections.abc import Iterable

# Measured with Python 3.11: beside the resident part of their shared objects numpy, pandas, matplotlib,
# torch._dynamo and torch._inductor take 2.4 to 3.4 times the size of their compiled files. torch takes
# another 70 MB, which its shared objects allocate as they are loaded; 90 MB of these are resident.
_PER_CODE_BYTE = 4
_PER_MAPPED_BYTE = 2
_NAMED = 3
_NAMED_SHARE = 0.1  # of the whole: a library that brought less is not named
_BUDGET_S = 0.05  # beside an import of a thousand modules, which takes seconds


class LibrariesNow(NamedTuple):
    """The libraries of the process at one moment."""

    modules: frozenset[str]  # their names in `sys.modules`
    # the shared objects that are mapped, and where; none where that is unknown
    files: dict[str, list[tuple[int, int]]]


class Loaded(NamedTuple):
    """The libraries that were imported between two moments."""

    names: tuple[str, ...]  # the packages that brought the most, the largest first
    most_bytes: int  # the most general RAM that they account for


class Libraries:
    """The libraries of this process, read again only when modules came or went."""

    def __init__(self) -> None:
        self._last: LibrariesNow | None = None
        self._count = 0  # of modules then

    def now(self) -> LibrariesNow:
        """Return them as they are now."""
        if self._last is None or self._count != len(sys.modules):
            self._count = len(sys.modules)
            names = (name for name in list(sys.modules) if type(name) is str)
            self._last = LibrariesNow(frozenset(names), shared_objects())
        return self._last

    def loaded(self, before: LibrariesNow) -> Loaded | None:
        """Return the libraries that were imported since `before`; None if there are none."""
        now = self.now()
        new = [name for name in now.modules - before.modules if _package(name) != OUR_PACKAGE]
        if not new:
            return None
        brought: dict[str, int] = {}
        for name, size_bytes in _code_bytes(new):
            package = _package(name)
            brought[package] = brought.get(package, 0) + _PER_CODE_BYTE * size_bytes
        others_bytes = 0
        for file in now.files.keys() - before.files.keys():
            size_bytes = _PER_MAPPED_BYTE * page_table_bytes(now.files[file])
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
    """Return the sizes of modules' files: compiled, or the source where the compiled file is not kept."""
    found = []
    ends_s = clock.monotonic_s() + _BUDGET_S
    for name in names:
        module = sys.modules.get(name)
        if issubclass(type(module), ModuleType):
            namespace = module_namespace(module)
            for file in (namespace.get("__cached__"), namespace.get("__file__")):
                if type(file) is str and file.endswith((".pyc", ".py")):
                    with suppress(OSError, ValueError):
                        found.append((name, Path(file).stat().st_size))
                        break
        if clock.monotonic_s() > ends_s:
            break
    return found
