"""The names, and the imported libraries, to which the memory that a cell consumed is attributed.

The last walk before the cell is compared with one after it, as `snapshot` tells.

A walk takes time. A cell that consumed next to nothing has none after it, and one walk serves several cells
as long as no notable amount of memory has changed. Its time budget is in proportion to how long cells ran
since the last walk, and to how much memory has changed. Names that were bound since are visited first.

Only names, sizes and weak references are kept: nothing here keeps a value of the user's alive.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.ledger import ALLOCATED
from ..engine.machine import machine
from ..records import CPU, CellRecord, RamUsage
from ..records.units import MB
from ..runtime import clock
from ..runtime.collector import undisturbed
from ..runtime.shell import OUR_PACKAGE, module_namespace
from ..sources import Unavailable
from .snapshot import OwnedBlock, Snapshot, growth, snapshot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Hashable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from .attribution import WalkResult

BUDGET_S = 0.02  # of a walk, at most, and of the first one
# Of that time: a walk at least, and more for each second that cells ran, and for each byte that changed.
_LEAST = 0.15
_PER_S = 0.5  # 1 % of it
_PER_BYTE = 1 / 2**30


class Before(NamedTuple):
    """What was known when a cell began."""

    snapshot: Snapshot  # of the last walk
    bound: Mapping[str, int]  # by name, the `id` of what it was bound to, where that walk was not complete
    loaded: LibrariesNow  # the libraries that were loaded


class Growth:
    """The growth of names over cells, which may nest and overlap.

    Args:
        find: Walks from every name, with a time budget in seconds, these names first; or from some only.
        used: Returns the memory in use now, in bytes by device.
        bound: Returns, by name, the `id` of what it is bound to now.
        values: Returns what the user's variables are bound to now.
    """

    def __init__(
        self,
        find: Callable[..., WalkResult],
        used: Callable[[], dict[str, int]],
        bound: Callable[[], dict[str, int]],
        values: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._find, self._used, self._bound, self._values = find, used, bound, values
        self._last: Snapshot | None = None
        self._ran_s = 0.0  # cells, since the last walk
        self._filled = False  # whether one took memory that malloc had kept, so that none was consumed
        self._libraries = Libraries()

    @classmethod
    def of(cls, shell: Any) -> Growth:
        """Make one for a shell's names."""

        def find(budget_s: float, urgent: Container[str], only: Container[str] | None = None) -> WalkResult:
            from .memory_blocks import array_readers  # 10 ms of loading, which not every process needs
            from .roots import held_by, owners_in

            if only is not None:
                return held_by(shell, only, array_readers(), budget_s)
            return owners_in(shell, array_readers(), budget_s=budget_s, urgent=urgent)

        return cls(find, _in_use, partial(bindings, shell), lambda: shell.user_ns)

    @property
    def has_walked(self) -> bool:
        """Whether it is known which names held memory at some moment."""
        return self._last is not None

    def refresh(self, around: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Walk again, in this context, before a cell begins, if notable memory has changed since the last."""
        used = self._used()
        if self._last is None or self._is_stale(self._last, used):
            with around(), undisturbed():
                self._last = self._take(used)

    def begin(self) -> Before | None:
        """Return what is known as a cell begins, for `end`; None where nothing is."""
        if self._last is None:
            self.refresh()
        if self._last is None:
            return None
        # Which names the cell binds matters only where the walk before it was not complete.
        return Before(self._last, {} if self._last.complete else self._bound(), self._libraries.now())

    def end(self, before: Before | None, record: CellRecord) -> CellRecord:
        """Return the cell's record with its owners; the same record where it consumed next to nothing."""
        self._ran_s += record.time_s
        if before is None or not record.grown():
            self._filled |= record.gen.newly_in_use_bytes >= MB
            return record
        with undisturbed():
            after = self._last = self._take(self._used())
            anew = set() if before.snapshot.complete else _bound_anew(before.bound, after.bound)
            found = growth(before.snapshot, after, anew, record.grown())
            record = record.explained(found.owners, found.gone_bytes, complete=found.complete)
            imported = (
                self._libraries.loaded(before.loaded) if dict(record.unexplained).get(CPU, 0) > 0 else None
            )
            if imported is not None:
                record = record.with_libraries(imported.names, imported.most_bytes)
            return record

    # -- what a cell dropped ------------------------------------------------------------------------

    def rebound(self, before: Snapshot) -> set[str]:
        """Return the names of large blocks that are bound to something else than before, or to nothing."""
        if not before.large:
            return set()
        now = self._bound()
        return {name for name in before.large if name in before.bound and now.get(name) != before.bound[name]}

    def missing(self, held: Mapping[Hashable, OwnedBlock], budget_s: float) -> dict[Hashable, OwnedBlock]:
        """Return which of these blocks their names do not hold any more; none where time is too short."""
        names = {block.plain_name for block in held.values()}
        if not names:
            return {}
        with undisturbed():
            found = self._find(budget_s, names, names)
        now = {key for blocks in found.blocks.values() for key in blocks}
        return {key: one for key, one in held.items() if key not in now} if found.complete else {}

    def unexplained(self, record: CellRecord, before: Snapshot) -> dict[str, int]:
        """Return what a cell consumed beyond what names hold more than before it, by device.

        `end` was called before. Nothing is returned where there was no time to search everything.
        """
        if not record.grown():  # else `end` has walked
            with undisturbed():
                self._last = self._take(self._used(), BUDGET_S)
        now = self._last
        if now is None or not (before.complete and now.complete):
            return {}
        was, held = before.sizes(), now.sizes()
        libraries = sum(owner.size_bytes for owner in record.owners if owner.is_libraries)
        found = {}
        for device, usage in record.memories().items():
            consumed_bytes = usage.consumed_bytes
            if isinstance(usage, RamUsage):
                consumed_bytes -= usage.kept_of_consumed_bytes + libraries
                if usage.heap_before is not None and usage.heap_after is not None:
                    # What malloc reuses or keeps of its own is neither consumed nor waits for a collection.
                    used_bytes = usage.heap_after.in_use_bytes - usage.heap_before.in_use_bytes
                    consumed_bytes = min(consumed_bytes, used_bytes)
            found[device] = consumed_bytes - held.get(device, 0) + was.get(device, 0)
        return found

    def held(self) -> Mapping[Hashable, OwnedBlock]:
        """Return the blocks that names held at the last walk."""
        return {} if self._last is None else self._last.blocks

    def in_use(self) -> dict[str, int]:
        """Return the memory in use now, in bytes by device; general RAM without what malloc keeps."""
        used, heap = self._used(), machine().process.heap()
        return {**used, CPU: used[CPU] - (0 if heap is None else heap.kept_bytes)}

    def close(self) -> None:
        """Forget the last walk."""
        self._last = None

    def _is_stale(self, snapshot: Snapshot, used: Mapping[str, int]) -> bool:
        """Return whether a notable amount of memory has changed since, or a name of a large block."""
        if self._filled or any(
            abs(size - snapshot.used.get(device, 0)) >= MB for device, size in used.items()
        ):
            return True
        if any(weak() is None for weak in snapshot.alive):
            return True
        return bool(self.rebound(snapshot))

    def _budget_s(self, used: Mapping[str, int]) -> float:
        """Return the time budget of a walk now, with this memory in use."""
        if self._last is None:
            return BUDGET_S
        were = self._last.used
        changed_bytes = sum(abs(size - were.get(device, 0)) for device, size in used.items())
        return BUDGET_S * min(1.0, _LEAST + _PER_S * self._ran_s + _PER_BYTE * changed_bytes)

    def _take(self, used: dict[str, int], budget_s: float = 0.0) -> Snapshot:
        bound = self._bound()
        urgent = set() if self._last is None else _bound_anew(self._last.bound, bound)
        found = self._find(budget_s or self._budget_s(used), urgent)
        self._ran_s, self._filled = 0.0, False
        return snapshot_of(found, used, bound, self._values())


def _bound_anew(before: Mapping[str, int], after: Mapping[str, int]) -> set[str]:
    """Return the names that are bound to something else than before."""
    return {name for name, value in after.items() if before.get(name) != value}


# -- what is in use, and what names are bound to ------------------------


def bindings(shell: Any) -> dict[str, int]:
    """Return, by name as the walk calls it, the `id` of what it is bound to."""
    names = dict(shell.user_ns)  # another thread may change it meanwhile
    found = dict(zip(names, map(id, names.values()), strict=True))
    if not set(map(type, names)) <= {str}:
        found = {name: value for name, value in found.items() if type(name) is str}
    found["last traceback"] = id(getattr(sys, "last_value", None))
    outputs = shell.user_ns.get("_oh")
    if type(outputs) is dict:
        found |= {f"Out[{number}]": id(value) for number, value in list(outputs.items())}
    return found


def _in_use() -> dict[str, int]:
    """Return, by device, the resident memory and what live arrays hold."""
    found = {CPU: machine().resident_bytes()}
    for device, trackers in machine().allocators.by_device():
        try:
            held = [tracker.current_bytes(ALLOCATED) for tracker in trackers]
        except Unavailable:
            continue
        found[device.id] = sum(held)
    return found


# -- the general RAM that came with imported libraries: their code, and what they set up for themselves
#
# It is derived from the modules that are new in `sys.modules` and the shared objects that are newly mapped.
# How much of these files is resident is read from the page table. What the code takes as objects is not
# counted anywhere and is estimated from the size of its files. The sum is therefore an upper bound.

# Measured with Python 3.11: beside the resident part of their shared objects numpy, pandas, matplotlib,
# torch._dynamo and torch._inductor take 2.4 to 3.4 times the size of their compiled files. torch takes
# another 70 MB, which its shared objects allocate as they are loaded; 90 MB of these are resident.
_PER_CODE_BYTE = 4
_PER_MAPPED_BYTE = 2
_NAMED = 3
_NAMED_SHARE = 0.1  # of the whole: a library that brought less is not named
_FILES_BUDGET_S = 0.05  # beside an import of a thousand modules, which takes seconds


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
            from .address_space import shared_objects  # as the walk: not while the extension loads

            names = (name for name in list(sys.modules) if type(name) is str)
            self._last = LibrariesNow(frozenset(names), shared_objects())
        return self._last

    def loaded(self, before: LibrariesNow) -> Loaded | None:
        """Return the libraries that were imported since `before`; None if there are none."""
        from .address_space import page_table_bytes

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
    ends_s = clock.monotonic_s() + _FILES_BUDGET_S
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
