"""Whether a function can be called with the arguments given, its name, and how errors show a value."""

from __future__ import annotations

import functools
import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..records.units import clipped, printable, shortened

if TYPE_CHECKING:
    from types import ModuleType

    from .batches import Arguments

_OWN = frozenset(("device", "capacity", "batch_sizes"))  # the parameters of `estimate`


def imported_torch() -> ModuleType:
    """Return torch.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    try:
        return import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError("estimate needs PyTorch: pip install torch", name="torch") from None


def check(fn: Any, arguments: Arguments) -> None:
    """Check that a function can be called with these arguments.

    Raises:
        TypeError: It is not a function, does not run when it is called, or takes other arguments.
    """
    if not callable(fn):
        raise TypeError(
            f"estimate takes a function and its arguments, not {shown(fn)}:"
            " write estimate(step, batch), not estimate(step(batch))"
        )
    plain = inspect.isroutine(fn) or isinstance(fn, (type, functools.partial))
    code = fn if plain else type(fn).__call__
    kinds = {
        "a coroutine function": inspect.iscoroutinefunction(code),
        "a generator function": inspect.isgeneratorfunction(code),
        "an asynchronous generator function": inspect.isasyncgenfunction(code),
    }
    for kind, is_one in kinds.items():
        if is_one:
            raise TypeError(f"{label_of(fn)} is {kind}: give estimate a function that runs when it is called")
    signature = signature_of(fn)
    if signature is None:
        return
    try:
        signature.bind(*arguments.args, **arguments.kwargs)
    except TypeError as error:
        taken = ", ".join(name for name in signature.parameters if name in _OWN)
        why = f"; its own {taken} can be given by functools.partial" if taken else ""
        raise TypeError(
            f"{label_of(fn)} cannot be called with the arguments that estimate was given: {error}{why}"
        ) from None


def signature_of(fn: Any) -> inspect.Signature | None:
    """Return the signature of a function, for a module that of its ``forward``; None if unknown."""
    forward = None if inspect.isroutine(fn) or isinstance(fn, type) else getattr(fn, "forward", None)
    try:
        return inspect.signature(forward if callable(forward) else fn)
    except (TypeError, ValueError):
        return None


def label_of(fn: Any) -> str:
    """Return the name of a function: "step", "Linear" for a module, that of the function in a partial."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    names = ["__name__"] if inspect.isbuiltin(fn) else ["__qualname__", "__name__"]
    name = next(filter(None, (getattr(fn, one, None) for one in names)), type(fn).__qualname__)
    return shortened(str(name).rpartition("<locals>.")[2])


def shown(value: Any) -> str:
    """Return a value as an error shows it."""
    try:
        return clipped(printable(repr(value)), 60)
    except Exception:  # a `repr` of the user's
        return f"a {type(value).__name__}"
