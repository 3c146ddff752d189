"""Releasing the shell's hidden references: the last traceback, `Out`, `_`."""

from __future__ import annotations

import builtins
import gc
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from ..engine.machine import machine
from ..engine.scope import measured_now
from ..records import came_back
from .exceptions import unique_frames
from .memory_blocks import array_readers
from .roots import CACHED, DEBUGGERS, exceptions_of, owners_in, traceback_entries

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..records import Owner

R = TypeVar("R")

_LAST = ("last_type", "last_value", "last_traceback", "last_exc")  # in `sys`


def release(
    shell: Any,
    kind: Callable[[tuple[Owner, ...], dict[str, tuple[int, ...]], bool], R],
    *,
    reset_peaks: bool = True,
) -> R:
    """Drop the shell's hidden references, collect garbage, empty the caches, and measure what came back.

    Returned is what `kind` makes of it: the hidden references that held memory, the largest first; the bytes
    that came back by device, "RAM" last, of this process and of the whole device where that is known; and
    whether there was time to find all hidden references.
    """
    found = owners_in(shell, array_readers())
    hidden = tuple(owner for owner in found.owners if owner.kind in ("traceback", "output"))
    before = measured_now(reset_peaks=reset_peaks)
    drop_hidden_references(shell)
    gc.collect()
    machine().settling.settle(gc_collect=True, clear_cache=True)
    after = measured_now(reset_peaks=reset_peaks)
    return kind(hidden, came_back(before, after), found.complete)


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
    for name in _LAST:
        sys.__dict__.pop(name, None)
    if getattr(shell, "last_execution_result", None) is not None:
        shell.last_execution_result = None
    _empty_outputs(shell)


def _empty_outputs(shell: Any) -> None:
    """Do as `displayhook.flush`, which overwrites a `_` of the user's and forgets the shell's own copy."""
    hook, names, hidden = shell.displayhook, shell.user_ns, shell.user_ns_hidden
    for name in [name for name in hidden if CACHED.fullmatch(str(name))]:
        if names.get(name, names) is hidden[name]:
            del names[name]
        del hidden[name]
    outputs = names.get("_oh")
    if isinstance(outputs, dict):
        for number, value in list(outputs.items()):
            if names.get(f"_{number}", names) is value:
                del names[f"_{number}"]
        outputs.clear()
    for name in ("_", "__", "___"):
        if names.get(name, names) is getattr(hook, name, hook):
            del names[name]
        setattr(hook, name, "")
        if name not in names and not hasattr(
            builtins, "_"
        ):  # gettext puts it there, and then the shell does not set it
            names[name] = hidden[name] = ""
