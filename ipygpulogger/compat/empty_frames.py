"""Drop the local variables that the tracebacks of exceptions keep alive."""

from __future__ import annotations

import builtins
import gc
import inspect
import sys
from collections import Counter
from types import CellType, FrameType, FunctionType
from typing import Any

from ..owners.exceptions import (
    LOCALS_LEAVE_A_COPY,
    empty_if_unshared,
    is_function,
    traceback_of,
    unique_frames,
)
from ..runtime.frames import walk_tb

_CODE_THAT_WAITS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_AS_VALUE = {"": object()}
_DICT_REFERENCES = sys.getrefcount(_AS_VALUE[""])  # what `getrefcount` says of a value that one dict holds


def empty_frames(errors: list[BaseException]) -> None:
    """Clear the local variables of finished calls in the tracebacks of these exceptions.

    The lines of the tracebacks stay readable. Left alone are calls that still run, on any thread; generators
    and coroutines that may be resumed; the namespace of a module; and dicts that the user got by `locals()`.
    """
    emptied = []
    for frame in unique_frames(entry for error in errors for entry in walk_tb(traceback_of(error))):
        if _is_module_level(frame) or _may_resume(frame):
            continue
        try:
            frame.clear()
        except RuntimeError:  # still executing; from 3.13 on, also suspended
            continue
        emptied.append(frame)
        if LOCALS_LEAVE_A_COPY:  # which `clear` leaves there, up to 3.11.7 and 3.12.1 (cpython#113939)
            left = gc.get_referents(frame)
            while left:
                value = left.pop()
                if value is not frame.f_globals and value is not frame.f_builtins:
                    empty_if_unshared(value)
    _empty_functions(emptied)


def _empty_functions(emptied: list[FrameType]) -> None:
    """Drop closures and default values of the frames' functions.

    From Python 3.11 on a cleared frame still refers to its function. A function that is reachable from
    elsewhere is left alone: as for the garbage collector, one that has more references than come from the
    functions examined here.
    """
    parts, inner_references = _functions_of(emptied)
    reached = [key for key in parts if sys.getrefcount(parts[key]) - _DICT_REFERENCES > inner_references[key]]
    while reached:
        part = parts.pop(reached.pop(), None)
        reached += [id(value) for value in _parts_of_function(part) if id(value) in parts]
    for part in parts.values():
        if type(part) is FunctionType:
            part.__defaults__ = part.__kwdefaults__ = None
        elif type(part) is CellType:
            del part.cell_contents


def _functions_of(emptied: list[FrameType]) -> tuple[dict[int, Any], Counter[int]]:
    """Return the frames' functions and their parts by id, and how often these refer to each other."""
    values = [value for frame in emptied for value in gc.get_referents(frame)]
    found = [value for value in values if type(value) is FunctionType]
    parts: dict[int, Any] = {}
    inner_references: Counter[int] = Counter()
    while found:
        part = found.pop()
        inner_references[id(part)] += 1
        if id(part) not in parts:
            parts[id(part)] = part
            found += _parts_of_function(part)
    return parts, inner_references


def _parts_of_function(part: Any) -> list[Any]:
    """Return what a function consists of: closure tuple, its cells, functions in these, default values."""
    values = gc.get_referents(part)
    if type(part) is FunctionType:
        names = part.__globals__, vars(builtins)
        values = [value for value in values if not any(value is shared for shared in names)]
        return [value for value in values if type(value) in (tuple, dict)]
    return [value for value in values if type(value) in (FunctionType, CellType)]


def _is_module_level(frame: FrameType) -> bool:
    return not is_function(frame) and frame.f_locals is frame.f_globals


def _may_resume(frame: FrameType) -> bool:
    """Return whether a call still runs, or is a suspended generator: `clear` would close that up to 3.12."""
    if sys.version_info >= (3, 13):
        return False
    if sys.version_info >= (3, 11):  # the frame owns its variables and code only once the call has ended
        return not any(value is frame.f_code for value in gc.get_referents(frame))
    if not frame.f_code.co_flags & _CODE_THAT_WAITS:
        return False  # finished, or `clear` refuses
    try:
        frame.f_lineno = 0  # type: ignore[misc] # never allowed; the message shows the frame's state
    except ValueError as refusal:
        return "'line' trace event" not in str(refusal)
    return True
