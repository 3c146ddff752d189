"""Who holds the memory: variables, `Out`, the last traceback, the user's modules: where the walk begins.

A shell is handed in; IPython itself is not known here.
"""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..engine.machine import machine
from .blocks import Root
from .frames import chain, is_users_module, linked, namespace_of_module, traceback_of
from .host_arrays import HOST
from .walk import BUDGET_S, walk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from .blocks import Found
    from .walk import Holdings

_SHELLS_OWN = {"In", "Out", "get_ipython", "exit", "quit", "open"}  # and names that begin with "_"
_PARTS: tuple[str, ...] = ("user_ns", "user_ns_hidden", "user_module", "displayhook", "history_manager")
_PARTS += ("InteractiveTB", "SyntaxTB", "last_execution_result", "kernel")
CACHED = re.compile(r"_\d+|_{1,3}")  # of a cell's value, as the display hook keeps it
LAST = "last traceback"
DEBUGGERS = "__pdb_convenience_variables"  # where pdb puts exceptions, from Python 3.12 on


def all_holdings() -> Holdings:
    """Everybody who knows arrays: numpy's and Python's own, and each framework."""
    return [HOST.holding, *(framework.holding for framework in machine().frameworks)]


def owners_in(
    shell: Any, holdings: Holdings, exception: BaseException | None = None, budget_s: float = BUDGET_S
) -> Found:
    """Who holds the memory that a shell's user can reach, or that it hides.

    Memory that several hold counts once, for the first of: variables, what exceptions and autograd graphs
    in variables keep, `Out`, the last traceback, pyplot's figures, the user's modules.

    Args:
        shell: IPython's.
        holdings: What `Framework.holding` says of a value, for each framework; `all_holdings()`.
        exception: One more whose frames count as the last traceback's.
        budget_s: After so long it stops.
    """
    errors = exceptions_of(shell, exception)
    roots = [
        *_variables(shell),
        *_outputs(shell),
        *_last_errors(errors, links_of(shell, [])),
        *_debuggers(shell),
        *_figures(),
        *_modules_globals(),
    ]
    closed = [shell, shell.user_ns, *_shells_own(shell), *map(namespace_of_module, _modules())]
    return walk(roots, holdings, closed=closed, budget_s=budget_s)


def _variables(shell: Any) -> Iterator[Root]:
    hidden = shell.user_ns_hidden
    for name, value in list(shell.user_ns.items()):
        shells = type(name) is not str or name in _SHELLS_OWN or name.startswith("_")
        if name != DEBUGGERS and not (shells and hidden.get(name, hidden) is value):
            yield Root(str(name), "variable", value)


def _outputs(shell: Any) -> Iterator[Root]:
    outputs = shell.user_ns.get("_oh")
    if isinstance(outputs, dict):
        for number, value in list(outputs.items()):
            yield Root(f"Out[{number}]", "output", value)
    for name, value in list(shell.user_ns_hidden.items()):
        if CACHED.fullmatch(str(name)):
            yield Root(f"Out[{name[1:]}]" if name[1:].isdigit() else name, "output", value)
    for name in ("_", "__", "___"):
        yield Root(name, "output", getattr(shell.displayhook, name, None))
    yield Root("_", "output", getattr(getattr(shell, "last_execution_result", None), "result", None))


def _last_errors(errors: list[BaseException], links: list[TracebackType]) -> Iterator[Root]:
    """What exceptions carry themselves, the innermost first; the walk names their frames' variables."""
    for error in reversed(errors):
        yield Root(f"{LAST}: {type(error).__name__}", "traceback", error, LAST)
    for link in links:
        yield Root(LAST, "traceback", link)


def _debuggers(shell: Any) -> Iterator[Root]:
    """What pdb keeps for its convenience."""
    kept = shell.user_ns.get(DEBUGGERS)
    if isinstance(kept, dict):
        for name, value in list(kept.items()):
            yield Root(f"debugger: ${name}", "traceback", value)


def _figures() -> Iterator[Root]:
    """The figures that pyplot keeps open."""
    managers = getattr(getattr(sys.modules.get("matplotlib._pylab_helpers"), "Gcf", None), "figs", None)
    if isinstance(managers, dict):
        for number, manager in list(managers.items()):
            yield Root(f"pyplot figure {number}", "other", manager)


def _modules_globals() -> Iterator[Root]:
    for module in _modules():
        if is_users_module(module):
            namespace = namespace_of_module(module)
            for name, value in list(namespace.items()):
                if type(name) is str and not name.startswith("__"):  # its loader leads to Python's machinery
                    yield Root(f"{namespace.get('__name__')}.{name}", "other", value)


def _modules() -> list[ModuleType]:
    return [module for module in list(sys.modules.values()) if issubclass(type(module), ModuleType)]


def _shells_own(shell: Any) -> list[Any]:
    """What the shell is made of: who reaches it holds nothing of what it hides."""
    return [shell.user_ns.get("_oh"), *(getattr(shell, name, None) for name in _PARTS)]


def links_of(shell: Any, errors: list[BaseException]) -> list[TracebackType]:
    """All that the shell, Python and these exceptions hold of tracebacks."""
    formatters = getattr(getattr(shell, "InteractiveTB", None), "tb", None)
    tracebacks = [*map(traceback_of, errors), getattr(sys, "last_traceback", None), formatters]
    return list({id(link): link for traceback in tracebacks for link in linked(traceback)}.values())


def exceptions_of(shell: Any, exception: BaseException | None = None) -> list[BaseException]:
    """Those whose frames the shell or Python still holds after the cell, with all their chains."""
    result = getattr(shell, "last_execution_result", None)
    kept = [
        exception,
        *(getattr(sys, name, None) for name in ("last_exc", "last_value")),
        *(getattr(result, name, None) for name in ("error_in_exec", "error_before_exec")),
    ]
    found: list[BaseException] = []
    for one in kept:
        if isinstance(one, BaseException):
            found += [error for error in chain(one) if not any(error is known for known in found)]
    return found
