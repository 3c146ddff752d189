"""The names from which the walk starts, and how the shell's hidden references among them are dropped.

A shell is passed in; IPython itself is not imported here.
"""

from __future__ import annotations

import builtins
import gc
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from functools import lru_cache, partial
from itertools import compress, repeat
from types import FrameType, ModuleType, TracebackType
from typing import Any, TypeGuard

from ..engine.machine import machine
from ..engine.scope import measured_now
from ..records import Owner, came_back
from ..runtime import clock
from ..runtime.objects import walk_tb
from ..runtime.shell import is_users_module, module_namespace
from .attribution import Root, WalkResult
from .memory_blocks import ArrayReaders, array_readers
from .referents import exception_chain, is_function, locals_of, traceback_of, unique_frames, worth_visiting
from .walk import BUDGET_S, walk

_SHELLS_OWN = {"In", "Out", "get_ipython", "exit", "quit", "open"}  # and names that begin with "_"
_PARTS: tuple[str, ...] = ("user_ns", "user_ns_hidden", "user_module", "displayhook", "history_manager")
_PARTS += ("InteractiveTB", "SyntaxTB", "last_execution_result", "kernel")
CACHED = re.compile(r"_\d+|_{1,3}")  # names under which the display hook keeps a cell's value
LAST = "last traceback"
DEBUGGERS = "__pdb_convenience_variables"  # where pdb puts exceptions, from Python 3.12 on


def owners_in(  # noqa: PLR0913, PLR0917 - callers name the last four
    shell: Any,
    readers: ArrayReaders,
    exception: BaseException | None = None,
    budget_s: float = BUDGET_S,
    urgent: Container[str] = (),
    only: Container[str] | None = None,
) -> WalkResult:
    """Attribute the memory that is reachable from a shell's user namespace and its hidden references.

    What several names reach counts for the first of: variables, what exceptions and graphs in them keep,
    `Out`, the last traceback and that of `exception`, the user's modules; `urgent` names are visited first.
    Or from some variables `only`.
    """
    ends_s = clock.thread_s() + budget_s
    modules = list(filter(_is_module, list(sys.modules.values())))
    if only is None:
        roots = [*_shells_names(shell, exception), *_modules_globals(filter(is_users_module, modules))]
    else:
        roots = [root for root in _variables(shell) if root.name in only]
    closed = [shell, shell.user_ns, *_shells_own(shell), *map(module_namespace, modules)]
    left_s = max(budget_s / 3, ends_s - clock.thread_s())
    return walk(roots, readers, closed=closed, budget_s=left_s, urgent=urgent)


def roots_at(
    frames: Iterable[FrameType], shell: Any, exception: BaseException | None = None
) -> tuple[list[Root], list[Any]]:
    """Return the names of running functions and of a shell or a program, and what leads out of them."""
    functions = [frame for frame in frames if is_function(frame)]
    roots = [Root(name, "variable", value) for frame in functions for name, value in locals_of(frame)]
    if shell is not None:
        own = [shell, shell.user_ns, *_shells_own(shell)]
        return roots + _shells_names(shell, exception), [*functions, *own]
    main = sys.modules.get("__main__")
    names = module_namespace(main) if _is_module(main) else {}
    roots += [Root(name, "variable", value) for name, value in list(names.items()) if name[:2] != "__"]
    errors = exception_chain(exception)
    entries = [entry for error in errors for entry in walk_tb(traceback_of(error))]
    return [*roots, *_last_errors(errors, entries)], [*functions, names]


def users_globals() -> Iterator[Root]:
    """Yield the variables of the user's modules; these are looked up again once something is imported."""
    names = _users_modules(len(sys.modules), next(reversed(sys.modules), None))
    yield from _modules_globals(filter(_is_module, map(sys.modules.get, names)))


@lru_cache(1)
def _users_modules(_count: int, _last: str | None) -> list[str]:
    return [name for name, one in list(sys.modules.items()) if is_users_module(one)]


def _shells_names(shell: Any, exception: BaseException | None = None) -> list[Root]:
    errors = exceptions_of(shell, exception)
    return [
        *_variables(shell),
        *_outputs(shell),
        *_last_errors(errors, traceback_entries(shell, [])),
        Root("debugger", "traceback", shell.user_ns.get(DEBUGGERS)),
    ]


def _variables(shell: Any) -> Iterator[Root]:
    """Return the variables that can hold memory; in C, for there may be thousands."""
    names = dict(shell.user_ns)
    names.pop(DEBUGGERS, None)
    for name, value in list(shell.user_ns_hidden.items()):
        is_shells = type(name) is not str or name in _SHELLS_OWN or name.startswith("_")
        if is_shells and names.get(name, names) is value:
            del names[name]
    values = names.values()
    worth = set(map(id, worth_visiting(values)))
    whole = zip(map(str, names), repeat("variable"), values, repeat(""))
    chosen = compress(whole, map(worth.__contains__, map(id, values)))
    return map(partial(tuple.__new__, Root), chosen)  # as Root(*one), in C


def _outputs(shell: Any) -> Iterator[Root]:
    names = shell.user_ns
    outputs = names.get("_oh")
    kept = list(outputs.items()) if isinstance(outputs, dict) else []
    for number, value in kept:
        yield Root(f"Out[{number}]", "output", value)
    numbered = {f"_{number}": value for number, value in kept}  # which `_12` repeats
    hidden = list(shell.user_ns_hidden.items())  # at once: other threads may add to it
    cached = [item for item in hidden if CACHED.fullmatch(str(item[0]))]
    cached.sort(key=lambda item: not item[0][1:].isdigit())  # `_12` is surer than `_` to stay what it is
    cached += [(name, getattr(shell.displayhook, name, None)) for name in ("_", "__", "___")]
    cached.append(("_", getattr(getattr(shell, "last_execution_result", None), "result", None)))
    for name, value in cached:
        if numbered.get(name) is not value:
            yield Root(name if names.get(name) is value else f"IPython's own {name}", "output", value)


def _last_errors(errors: list[BaseException], entries: list[TracebackType]) -> Iterator[Root]:
    """Yield what exceptions hold, the innermost first; the walk names the variables of their frames."""
    for error in reversed(errors):
        yield Root(f"{LAST}: {type(error).__name__}", "traceback", error, LAST)
    for entry in entries:
        yield Root(LAST, "traceback", entry)


def _modules_globals(modules: Iterable[ModuleType]) -> Iterator[Root]:
    for module in modules:
        namespace = module_namespace(module)
        for name, value in list(namespace.items()):
            # `__loader__` leads to Python's import machinery.
            if type(name) is str and not name.startswith("__"):
                yield Root(f"{namespace.get('__name__')}.{name}", "other", value)


def _is_module(value: Any) -> TypeGuard[ModuleType]:
    return issubclass(type(value), ModuleType)


def _shells_own(shell: Any) -> list[Any]:
    """Return the parts of the shell that the walk does not visit: they hold what is hidden."""
    return [shell.user_ns.get("_oh"), *(getattr(shell, name, None) for name in _PARTS)]


def traceback_entries(shell: Any, errors: list[BaseException]) -> list[TracebackType]:
    """Return every traceback entry that the shell, `sys` and these exceptions refer to, each once."""
    formatters = getattr(getattr(shell, "InteractiveTB", None), "tb", None)
    tracebacks = [*map(traceback_of, errors), getattr(sys, "last_traceback", None), formatters]
    return list({id(entry): entry for traceback in tracebacks for entry in walk_tb(traceback)}.values())


def exceptions_of(shell: Any, exception: BaseException | None = None) -> list[BaseException]:
    """Return the exceptions that the shell or `sys` holds after the cell, with their chains, each once."""
    result = getattr(shell, "last_execution_result", None)
    kept = [
        exception,
        *(getattr(sys, name, None) for name in ("last_exc", "last_value")),
        *(getattr(result, name, None) for name in ("error_in_exec", "error_before_exec")),
    ]
    found: list[BaseException] = []
    for one in kept:
        if isinstance(one, BaseException):
            found += [error for error in exception_chain(one) if not any(error is known for known in found)]
    return found


# -- releasing them

_LAST_OF_SYS = ("last_type", "last_value", "last_traceback", "last_exc")  # in `sys`


def release(shell: Any, *, reset_peaks: bool) -> tuple[tuple[Owner, ...], dict[str, tuple[int, ...]], bool]:
    """Drop the shell's hidden references, collect garbage, empty the caches, and measure what came back.

    Returned are the hidden references that held memory, the largest first; what came back, see `came_back`;
    and whether there was time to find all hidden references.
    """
    found = owners_in(shell, array_readers())
    hidden = tuple(owner for owner in found.owners if owner.kind in ("traceback", "output"))
    before = measured_now(reset_peaks=reset_peaks)
    drop_hidden_references(shell)
    gc.collect()
    machine().settling.settle(gc_collect=True, clear_cache=True)
    return hidden, came_back(before, measured_now(reset_peaks=reset_peaks)), found.complete


def drop_hidden_references(shell: Any) -> None:
    """Drop the last traceback with its frames, `Out`, `_` and `_12`.

    A value that the user assigned to such a name stays. The inputs are text and stay too.
    """
    frames = unique_frames(traceback_entries(shell, exceptions_of(shell)))
    formatter = getattr(shell, "InteractiveTB", None)
    for name in ("tb", "pdb"):  # a traceback and a debugger for `%debug`, which makes them anew
        if getattr(formatter, name, None) is not None:
            setattr(formatter, name, None)
    for frame in frames:
        frame.f_globals.pop(DEBUGGERS, None)
    shell.user_ns.pop(DEBUGGERS, None)
    for name in _LAST_OF_SYS:
        sys.__dict__.pop(name, None)
    if getattr(shell, "last_execution_result", None) is not None:
        shell.last_execution_result = None
    empty_outputs(shell)


def empty_outputs(shell: Any, is_gone: Callable[[Any], bool] = lambda _: True) -> None:
    """Drop outputs: all, or those of which this is true.

    `displayhook.flush` overwrites a `_` of the user's and forgets the shell's own copy.
    """
    hook, names, hidden = shell.displayhook, shell.user_ns, shell.user_ns_hidden
    for name in [name for name in hidden if CACHED.fullmatch(str(name)) and is_gone(hidden[name])]:
        if names.get(name, names) is hidden.pop(name):
            del names[name]
    outputs = names.get("_oh")
    if isinstance(outputs, dict):
        for number, value in [item for item in list(outputs.items()) if is_gone(item[1])]:
            if names.get(f"_{number}", names) is value:
                del names[f"_{number}"]
            del outputs[number]
    for name in ("_", "__", "___"):
        value = getattr(hook, name, hook)
        if is_gone(value):
            if names.get(name, names) is value:
                del names[name]
            setattr(hook, name, "")
        # Where gettext has put it into the builtins the shell does not set it.
        if name not in names and not hasattr(builtins, "_"):
            names[name] = hidden[name] = ""
