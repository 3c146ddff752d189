"""Who holds the memory: variables, `Out`, the last traceback, the user's modules: where the walk begins.

A shell is handed in; IPython itself is not known here.
"""

from __future__ import annotations

import gc
import re
import sys
from typing import TYPE_CHECKING, Any

from .frames import (
    chain,
    function_name,
    is_shells,
    is_users_module,
    linked,
    locals_of,
    namespace_of_module,
    traceback_of,
    unique_frames,
)
from .reach import BUDGET_S, Found, Root, modules, walk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

    from .reach import Holdings

_SHELLS_OWN = {"In", "Out", "get_ipython", "exit", "quit", "open"}  # and names that begin with "_"
_PARTS: tuple[str, ...] = ("user_ns", "user_ns_hidden", "user_module", "displayhook", "history_manager")
_PARTS += ("InteractiveTB", "SyntaxTB", "last_execution_result", "kernel")
CACHED = re.compile(r"_\d+|_{1,3}")  # of a cell's value, as the display hook keeps it
DEBUGGERS = "__pdb_convenience_variables"  # where pdb puts exceptions, from Python 3.12 on


def owners_in(
    shell: Any, holdings: Holdings, exception: BaseException | None = None, budget_s: float = BUDGET_S
) -> Found:
    """Who holds the arrays that a shell's user can reach, or that it hides.

    Memory that several hold counts once, for the first of: variables, `Out`, tracebacks, modules.

    Args:
        shell: IPython's.
        holdings: What `Framework.holding` says of a value, for each framework.
        exception: One more whose frames count as the last traceback's.
        budget_s: After so long it stops.
    """
    errors = exceptions_of(shell, exception)
    links = links_of(shell, errors)
    roots = [
        *_variables(shell),
        *_outputs(shell),
        *_frame_locals(shell, unique_frames(links)),
        *_carried(errors),
        *_modules_globals(),
    ]
    closed = [shell, *_shells_own(shell), *errors, *links, *unique_frames(links)]
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


def _frame_locals(shell: Any, frames: list[FrameType]) -> Iterator[Root]:
    for frame in frames:
        if frame.f_locals is not shell.user_ns and not is_shells(frame):
            for name, value in locals_of(frame):
                yield Root(f"last traceback: {function_name(frame)}.{name}", "traceback", value)


def _carried(errors: list[BaseException]) -> Iterator[Root]:
    """What exceptions themselves hold: their arguments and attributes."""
    for error in errors:
        yield Root(f"last traceback: {type(error).__name__}", "traceback", gc.get_referents(error))


def _modules_globals() -> Iterator[Root]:
    for module in modules():
        if is_users_module(module):
            namespace = namespace_of_module(module)
            for name, value in list(namespace.items()):
                yield Root(f"{namespace.get('__name__')}.{name}", "other", value)


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
