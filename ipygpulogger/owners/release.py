"""Dropping what hides behind the shell: the last traceback, `Out`, `_`."""

from __future__ import annotations

import builtins
import gc
import sys
from typing import Any, NamedTuple

from ..engine.machine import machine
from ..engine.scope import Scope
from ..records import Measurement, Owner, came_back
from .frames import unique_frames
from .roots import CACHED, DEBUGGERS, all_holdings, exceptions_of, links_of, owners_in

_LAST = ("last_type", "last_value", "last_traceback", "last_exc")  # in `sys`


class GivenBack(NamedTuple):
    """What was dropped, and what came of it.

    Attributes:
        owners: Who held memory without being a variable.
        came_back: Bytes by device, "RAM" last: of the process's own, and of the whole device where known.
        complete: Whether all that is hidden was looked at.
    """

    owners: tuple[Owner, ...]
    came_back: dict[str, tuple[int, ...]]
    complete: bool


def give_back(shell: Any, *, reset_peaks: bool = True) -> GivenBack:
    """Drop what hides behind the shell, collect garbage, empty the caches, and tell what came back."""
    found = owners_in(shell, all_holdings())
    hidden = tuple(owner for owner in found.owners if owner.kind in ("traceback", "output"))
    before = measured_now(reset_peaks=reset_peaks)
    let_go(shell)
    gc.collect()
    machine().settling.settle(gc_collect=True, clear_cache=True)
    after = measured_now(reset_peaks=reset_peaks)
    return GivenBack(hidden, came_back(before, after), found.complete)


def measured_now(*, reset_peaks: bool = True) -> Measurement:
    """What is in use at this moment, on every device."""
    scope = Scope(reset_peaks=reset_peaks, all_devices=True).open()
    scope.close()
    return scope.result(Measurement, "now")


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
