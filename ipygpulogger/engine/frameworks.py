"""The frameworks with a device allocator: those of this package, and those that other distributions add.

A framework is called by the name of its module and used only while that name is in `sys.modules`. For a
framework that the user has not imported, the hooks of a cell run no code at all.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeVar

from ..runtime.errors import named
from ..runtime.signals import is_from_a_handler
from ..sources import DeviceCounter, Framework
from ..sources.cupy import CuPy
from ..sources.jax import Jax
from ..sources.rmm import Rmm
from ..sources.tensorflow import TensorFlow
from ..sources.torch import Torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .notes import Notes

ENTRY_POINTS = "ipygpulogger.sources"

T = TypeVar("T")


class Frameworks:
    """Every framework that is known here; iterating gives those that the user has imported."""

    def __init__(self, notes: Notes, known: Iterable[Framework] | None = None) -> None:
        """Find the frameworks, importing none.

        Args:
            notes: Where to say that one is left out.
            known: The frameworks; by default those of this package and of the entry points.
        """
        self._notes = notes
        self._failed: dict[str, str] = {}  # the error of each one that is left out, by name
        self._known: list[Framework] = []
        self._names: dict[str, None] = {}  # of those
        self._held: dict[int, Framework] = {}  # by identity: asked to `hold`, and not to `release` since
        for framework in self._find() if known is None else known:
            self._known.append(framework)
            self._names[framework.name] = None

    def __iter__(self) -> Iterator[Framework]:
        return iter(self.imported())

    def imported(self) -> list[Framework]:
        """Return the frameworks whose module is in `sys.modules`, those of this package first."""
        modules = sys.modules
        if self._names.keys().isdisjoint(modules.keys()):  # walks the shorter of the two
            return []
        return [framework for framework in self._known if framework.name in modules]

    def known(self) -> tuple[Framework, ...]:
        """Return every framework that is not left out, imported or not."""
        return tuple(self._known)

    def ask(
        self, question: Callable[[Framework], T], of: Iterable[Framework] | None = None
    ) -> list[tuple[Framework, T]]:
        """Call a function with each framework, and permanently leave out those for which it fails.

        Args:
            question: The function.
            of: Which of them; by default those that are imported.

        Returns:
            Each framework that answered, with its answer.
        """
        answers = []
        for framework in self.imported() if of is None else of:
            try:
                answers.append((framework, question(framework)))
            except BaseException as error:
                if is_from_a_handler(error):
                    raise
                self._leave_out(framework, error)
        return answers

    def counters(self) -> list[tuple[Framework, list[DeviceCounter]]]:
        """Return the counters of the devices that each imported framework uses."""
        return self.ask(_counters_of)

    def current_index(self) -> int | None:
        """Return the current device of the first framework that has one; None if none has."""
        indices = self.ask(lambda framework: framework.current_index())
        return next((index for _, index in indices if index is not None), None)

    def hold(self) -> set[str]:
        """Keep the user's own counters true from now on, until `release`.

        Returns:
            The names of the frameworks that were in use before, so that resets by the user may have gone
            unnoticed.
        """
        imported = self.imported()
        for framework in imported:  # first: after an interrupt below, `release` reaches all of them
            self._held[id(framework)] = framework
        return {framework.name for framework, late in self.ask(lambda f: f.hold(), imported) if late}

    def release(self) -> None:
        """Take off the wrappers that keep the user's counters true."""
        self.ask(lambda framework: framework.release(), tuple(self._held.values()))
        self._held.clear()

    def failures(self) -> dict[str, str]:
        """Return the error of each framework that is left out, by name."""
        return dict(self._failed)

    def _leave_out(self, framework: Framework, error: BaseException) -> None:
        self._known = [other for other in self._known if other is not framework]
        self._failed[framework.name] = named(error)
        self._notes.add(f"the source {framework.name} fails and is left out: {named(error)}")

    def _find(self) -> Iterator[Framework]:
        """Yield the frameworks of this package, then those that other distributions offer."""
        yield from (Torch(), Jax(), CuPy(), TensorFlow(), Rmm())
        from importlib.metadata import entry_points  # 50 ms, unless IPython has it already

        try:
            entries = tuple(entry_points(group=ENTRY_POINTS))
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
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._failed[entry.name] = named(error)
                self._notes.add(f"the source {entry.name} of {entry.value} fails: {named(error)}")
            else:
                yield framework


def _counters_of(framework: Framework) -> list[DeviceCounter]:
    counters = list(framework.counters())
    for counter in counters:
        if not isinstance(counter, DeviceCounter):
            raise TypeError(f"{counter!r} is not a DeviceCounter")
    return counters
