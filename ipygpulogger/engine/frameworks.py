"""The frameworks with a device allocator: those of this package, and those that other distributions add.

A framework is used only while the name of its module is in `sys.modules`. Of one that the user has not
imported not even the adapter is loaded. What importing a part of this package late takes, which may be within
a cell or between two, is measured here, and so is what recording and reading a history takes for a while.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, partial
from importlib import import_module
from operator import itemgetter, methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..runtime import collector
from ..runtime.errors import is_from_a_handler, named
from ..sources import DeviceCounter, Framework, Unavailable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from ..sources.contract import Notes


T = TypeVar("T")

_SCARCE = errno.EMFILE, errno.ENFILE, errno.ENOMEM

# The adapters of this package, each imported when it is needed; the first that knows a device is believed.
_ADAPTERS = {
    "torch": "torch.allocators:Torch",
    "jax": "frameworks.jax:Jax",
    "cupy": "frameworks.cupy:CuPy",
    "tensorflow": "frameworks.tensorflow:TensorFlow",
    "rmm": "frameworks.rmm:Rmm",
}


_GROUP = "ipygpulogger.sources"


@cache
def _offered() -> tuple[EntryPoint, ...]:
    """Return the entry points by which other distributions offer sources; read once in a process's life."""
    if not _may_be_offered():
        return ()
    from importlib.metadata import entry_points

    return tuple(entry_points(group=_GROUP))


def _may_be_offered() -> bool:
    """Return whether a distribution in a folder of `sys.path` names the group: parsing all takes 20 ms."""
    for folder in sys.path:
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            for name in os.listdir(folder or os.curdir):  # noqa: PTH208 - ten times as fast as `Path.iterdir`
                if name.endswith((".dist-info", ".egg-info")):
                    entries = Path(folder, name, "entry_points.txt")
                    if entries.is_file() and _GROUP.encode() in entries.read_bytes():
                        return True
    return False


def _adapter(name: str) -> type[Framework]:
    module, _, kind = _ADAPTERS[name].partition(":")
    adapter: type[Framework] = getattr(import_module(f"..sources.{module}", __package__), kind)
    return adapter


class Frameworks:
    """Every framework that is known here; iterating gives those that the user has imported."""

    def __init__(
        self,
        notes: Notes,
        known: Iterable[Framework] | None = None,
        *,
        user_resets: Callable[[Framework, int | None, Callable[[], None]], None] | None = None,
        importing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Find the frameworks, importing none; `known` instead of ours and those of the entry points."""
        self._notes, self._user_resets, self._importing = notes, user_resets, importing
        self._adding = threading.RLock()
        self.failed: dict[str, str] = {}  # the error of each one that is left out, by name
        self.loaded: tuple[Framework, ...] = ()  # without those that are left out, and unimported adapters
        self._unloaded = dict(_ADAPTERS) if known is None else {}  # by name: ours, not imported so far
        self._names = set(self._unloaded)  # of those, and of those that are loaded
        self._held: dict[int, Framework] = {}  # by identity: asked to `hold`, and not to `release` since
        for framework in self._of_others() if known is None else known:
            self._add(framework)

    def __iter__(self) -> Iterator[Framework]:
        return iter(self.imported())

    def imported(self) -> list[Framework]:
        """Return the frameworks whose module is in `sys.modules`, those of this package first."""
        modules = sys.modules
        if modules.keys().isdisjoint(self._names):  # walks the shorter one; a set would walk all
            return []
        if not self._unloaded.keys().isdisjoint(modules.keys()):
            self._load([name for name in self._unloaded if name in modules])
        return [framework for framework in self.loaded if framework.name in modules]

    def known(self) -> tuple[Framework, ...]:
        """Return every framework that is not left out, imported or not; this loads every adapter."""
        self._load(list(self._unloaded))
        return self.loaded

    def ask(
        self, question: Callable[[Framework], T], of: Iterable[Framework] | None = None
    ) -> list[tuple[Framework, T]]:
        """Return what each framework answers; one that fails is left out for good."""
        answers = []
        for framework in self.imported() if of is None else of:
            try:
                answers.append((framework, question(framework)))
            except BaseException as error:
                if is_from_a_handler(error):
                    raise
                # Of memory and descriptors there may be enough later.
                lasts = not isinstance(error, MemoryError) and getattr(error, "errno", None) not in _SCARCE
                if lasts:
                    self.loaded = tuple(other for other in self.loaded if other is not framework)
                    self.failed[framework.name] = named(error)
                out = " and is left out" * lasts
                self._notes.add(f"the source {framework.name} fails{out}: {named(error)}")
        return answers

    def counters(self, of: Iterable[Framework] | None = None) -> list[tuple[Framework, list[DeviceCounter]]]:
        """Return the counters of the devices that each framework uses; by default those that are imported."""
        return self.ask(_counters_of, of)

    def can_preload(self) -> bool:
        """Return whether `preload` of an imported framework would create a context now."""
        return any(map(itemgetter(1), self.ask(methodcaller("can_preload"))))

    def current_index(self) -> int | None:
        """Return the current device of the first framework that has one; None if none has."""
        answers: list[tuple[Framework, int | None]] = self.ask(methodcaller("current_index"))
        return next((index for _, index in answers if index is not None), None)

    def hold(self, of: Iterable[Framework] | None = None) -> set[str]:
        """Keep the user's counters true until `release`; return the names of those in use before."""
        held = self.imported() if of is None else of
        for framework in held:  # first: after an interrupt below, `release` reaches all of them
            self._held[id(framework)] = framework
        return {framework.name for framework, late in self.ask(methodcaller("hold"), held) if late}

    def release(self) -> None:
        """Take off the wrappers that keep the user's counters true."""
        self.ask(methodcaller("release"), tuple(self._held.values()))
        self._held.clear()

    def _load(self, names: Iterable[str]) -> None:
        """Import the adapters of these frameworks; one that cannot be imported now is tried again later."""
        for name in names:
            try:
                with self._importing():
                    kind = _adapter(name)
            except Exception as error:  # no descriptors left
                if is_from_a_handler(error):
                    raise
                self._notes.add(f"the source {name} cannot be loaded: {named(error)}")
                continue
            with self._adding:  # another thread may have done the same; so may a finalizer, in this one
                if not any(type(one) is kind for one in self.loaded):
                    self._add(kind(), ours=True)
                self._unloaded.pop(name, None)  # last: after an interrupt above it is done again

    def _add(self, framework: Framework, *, ours: bool = False) -> None:
        """Add a framework; those of this package come first, in the order of `_ADAPTERS`."""
        if self._user_resets is not None:
            framework.on_user_reset = partial(self._user_resets, framework)
        self._names.add(framework.name)
        ranks = {name: rank for rank, name in enumerate(_ADAPTERS)}
        loaded = (framework, *self.loaded) if ours else (*self.loaded, framework)
        self.loaded = tuple(sorted(loaded, key=lambda one: ranks.get(one.name, len(ranks))))

    def _of_others(self) -> Iterator[Framework]:
        try:
            entries = _offered()
        except Exception as error:  # no descriptors left, a broken distribution
            if is_from_a_handler(error):
                raise
            self._notes.add(f"sources of other distributions cannot be looked for: {named(error)}")
            return
        for entry in entries:
            try:
                framework = entry.load()()
                if not isinstance(framework, Framework):
                    raise TypeError(f"{framework!r} is not a Framework")  # noqa: TRY301 - said as any other failure
            except Exception as error:
                self.failed[entry.name] = named(error)
                self._notes.add(f"the source {entry.name} of {entry.value} fails: {named(error)}")
            else:
                yield framework


def _counters_of(framework: Framework) -> list[DeviceCounter]:
    counters = list(framework.counters())
    for counter in counters:
        if not isinstance(counter, DeviceCounter):
            raise TypeError(f"{counter!r} is not a DeviceCounter")
    return counters


_MOST_BYTES = 4 * 2**20  # more than any import of ours takes: the rest is what other threads allocated


class OwnImports:
    """Adds up what our late imports take: the resident bytes so far that were not given back."""

    def __init__(self, resident_bytes: Callable[[], int]) -> None:
        self._resident_bytes = resident_bytes
        self.limits: dict[int, tuple[int, int]] = {}  # of each thread that imports just now
        self._since_bytes: int | None = None  # up to here it is counted
        self.bytes: int = 0

    @contextmanager
    def importing(self, most_bytes: int = _MOST_BYTES, least_bytes: int = 0) -> Iterator[None]:
        """Count the resident memory that work of this package takes within, at least and at most so much.

        What two threads take at the same time, of which one may wait for the other's import, counts once.
        """
        thread = threading.get_ident()
        if thread in self.limits:
            yield
            return
        self.count()
        self.limits[thread] = least_bytes, most_bytes
        try:
            yield
        finally:
            self.count(self.limits.pop(thread))

    def count(self, *ended: tuple[int, int]) -> None:
        """Count what was taken since the last call: by what goes on, in any thread, and by what ended now."""
        limits, now_bytes = (*ended, *tuple(self.limits.values())), self._resident()
        if limits and now_bytes is not None and self._since_bytes is not None:
            least_bytes, most_bytes = min(least for least, _ in limits), max(most for _, most in limits)
            self.bytes += max(least_bytes, min(most_bytes, now_bytes - self._since_bytes))
        self._since_bytes = now_bytes

    def _resident(self) -> int | None:
        with suppress(OSError, Unavailable):  # no descriptors left: then nothing is measured either
            return self._resident_bytes()
        return None


class Settling:
    """Garbage collection, the frameworks' caches, the context of the current device."""

    def __init__(self, frameworks: Frameworks) -> None:
        self._frameworks = frameworks
        self.ran: bool = True  # whether a scope ended since all was collected

    def preload(self) -> None:
        """Create the context of the current device if the user has imported its framework."""
        self._frameworks.ask(methodcaller("preload"))

    def settle(self, *, gc_collect: bool, clear_cache: bool) -> None:
        """Collect garbage, all of it if a scope ended since (0.1 s once torch is there); empty the caches."""
        if gc_collect:
            if self.ran:
                self.ran = False
                collector.run()
            else:
                collector.collect(collector.YOUNG)
        if clear_cache:
            self._frameworks.ask(methodcaller("settle"))
