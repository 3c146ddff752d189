"""The user's variables: which there are, forgetting their values, and the one that is being assigned."""

from __future__ import annotations

import dis
import sys
import weakref
from typing import TYPE_CHECKING, Any

from ..owners.roots import CACHED
from ..runtime.frames import walk_stack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


def variables(shell: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each of the user's variables, as ``%who`` lists them."""
    hidden = shell.user_ns_hidden
    for name, value in list(shell.user_ns.items()):
        if type(name) is str and not name.startswith("_") and hidden.get(name, hidden) is not value:
            yield name, value


def forget(shell: Any, values: list[Any], names_before: frozenset[str]) -> None:
    """Drop IPython's references to values whose variables are gone: `Out`, `_`, `_12`, the last result.

    A value stays everywhere if another name of the user's, or an output from before, still refers to it.
    IPython's own ``%xdel`` would delete the other names as well.
    """
    names, hidden, hook = shell.user_ns, shell.user_ns_hidden, shell.displayhook
    outputs = names.get("_oh")
    outputs = outputs if isinstance(outputs, dict) else {}
    ipythons = {name for name in hidden if CACHED.fullmatch(str(name))}  # a `_` of the user's is not hidden
    kept = [value for name, value in names.items() if name not in ipythons or hidden[name] is not value]
    kept += [value for number, value in outputs.items() if f"_{number}" in names_before]
    gone = {id(value) for value in values} - {id(value) for value in kept}
    for number in [number for number, value in outputs.items() if id(value) in gone]:
        del outputs[number]
    for name in [name for name in ipythons if id(hidden[name]) in gone]:
        is_ipythons = names.get(name, names) is hidden.pop(name)
        if is_ipythons:
            del names[name]
        if is_ipythons and name in ("_", "__", "___"):
            names[name] = hidden[name] = ""
    for name in ("_", "__", "___"):
        if id(getattr(hook, name, None)) in gone:
            setattr(hook, name, "")
    if id(getattr(shell.last_execution_result, "result", None)) in gone:
        shell.last_execution_result = None


def release_namesake(shell: Any, frame: FrameType | None, kind: type) -> None:
    """Release the experiment whose name the running statement is about to give to a new one.

    Python would do so only after the new one has begun. If that was the last reference, the old experiment
    finishes here. If not, it gets its name back and goes on. A finished one is released as well: its logger
    is full of reference cycles, which would count as garbage of the new experiment.

    Args:
        shell: IPython's shell.
        frame: The caller of the new experiment's constructor.
        kind: The class of experiments.
    """
    calls = (call for call in walk_stack(frame) if call.f_code.co_name != "__init__")  # of subclasses
    statement = next(calls, None)
    if statement is None:
        return
    names, name = shell.user_ns, _assigned_name(statement, shell.user_ns)
    old = names.get(name)
    if not issubclass(type(old), kind):
        return
    old = weakref.ref(old)
    del names[name]
    if (survivor := old()) is not None:
        names[name] = survivor


def _assigned_name(frame: FrameType, names: dict[str, Any]) -> str | None:
    """Return the name in this namespace that gets the result of the call which the frame is executing."""
    code = iter(dis.get_instructions(frame.f_code))
    for instruction in code:
        if instruction.offset == frame.f_lasti:
            break
    following = next((found for found in code if found.opname != "EXTENDED_ARG"), None)
    if following is None:
        return None
    # The locals of a function are not read: up to Python 3.12 that leaves a copy of them in its frame.
    is_global = following.opname == "STORE_GLOBAL" and frame.f_globals is names
    if is_global or (following.opname == "STORE_NAME" and frame.f_locals is names):
        return str(following.argval)
    return None


def is_being_reset() -> bool:
    """Return whether IPython is wiping its namespace: that fails if a name vanishes meanwhile."""
    return any(
        frame.f_code.co_name == "reset" and frame.f_globals.get("__name__") == "IPython.core.interactiveshell"
        for frame in walk_stack(sys._getframe())
    )
