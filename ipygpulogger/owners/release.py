"""Dropping what hides behind the shell: the last traceback, `Out`, `_`."""

from __future__ import annotations

import builtins
import gc
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from ..engine.machine import machine
from ..engine.now import measured_now
from ..records import came_back
from .frames import unique_frames
from .roots import CACHED, DEBUGGERS, all_holdings, exceptions_of, links_of, owners_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..records import Owner

R = TypeVar("R")

_LAST = ("last_type", "last_value", "last_traceback", "last_exc")  # in `sys`


def give_back(
    shell: Any,
    kind: Callable[[tuple[Owner, ...], dict[str, tuple[int, ...]], bool], R],
    *,
    reset_peaks: bool = True,
) -> R:
    """Drop what hides behind the shell, collect garbage, and empty the caches.

    Args:
        shell: IPython's.
        kind: Made of the three things there are to say: the owners that held memory without being variables;
            the bytes that came back by device, "RAM" last, of the process's own and of the whole device where
            that is known; whether everything that is hidden was looked at.
        reset_peaks: Reset the kernel's peak counter.
    """
    found = owners_in(shell, all_holdings())
    hidden = tuple(owner for owner in found.owners if owner.kind in ("traceback", "output"))
    before = measured_now(reset_peaks=reset_peaks)
    let_go(shell)
    gc.collect()
    machine().settling.settle(gc_collect=True, clear_cache=True)
    after = measured_now(reset_peaks=reset_peaks)
    return kind(hidden, came_back(before, after), found.complete)


def let_go(shell: Any) -> None:
    """Drop what hides behind the shell: the last traceback with its frames, `Out`, `_`, `_12`.

    What the user gave such a name stays theirs. The inputs are text and stay too.
    """
    frames = unique_frames(links_of(shell, exceptions_of(shell)))
    _forget_traceback(getattr(shell, "InteractiveTB", None))
    for frame in frames:
        frame.f_globals.pop(DEBUGGERS, None)
    shell.user_ns.pop(DEBUGGERS, None)
    for name in _LAST:
        sys.__dict__.pop(name, None)
    if getattr(shell, "last_execution_result", None) is not None:
        shell.last_execution_result = None
    _empty_outputs(shell)


def _forget_traceback(formatter: Any) -> None:
    """The shell's formatter keeps a traceback for `%debug`, and a debugger, which it makes anew if asked."""
    for name in ("tb", "pdb"):
        if getattr(formatter, name, None) is not None:
            setattr(formatter, name, None)


def _empty_outputs(shell: Any) -> None:
    """As `displayhook.flush` does, which overwrites a `_` of the user's and forgets the shell's own copy."""
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
        if name not in names and not hasattr(builtins, "_"):  # as gettext has it: then the shell keeps off
            names[name] = hidden[name] = ""
