"""The generators of random numbers that every program has, as they were before a function ran."""

from __future__ import annotations

import contextlib
import random
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType


_KINDS = frozenset((("numpy", "Generator"), ("numpy", "RandomState"), ("torch", "Generator")))


@contextlib.contextmanager
def unmoved(torch: ModuleType, own: Iterable[Any]) -> Iterator[None]:
    """Put the generators of Python, numpy and torch back, and the seeds that CUDA has not taken yet.

    Args:
        torch: The module.
        own: Generators of the user's.
    """
    undo: list[Callable[[], Any]] = [
        partial(random.setstate, random.getstate()),
        *_of_numpy(),
        *_of_torch(torch),
        *(partial(put, get()) for get, put in map(_access, own)),
    ]

    try:
        yield
    finally:
        for one in undo:
            one()


def is_generator(value: Any) -> bool:
    """Return whether an object is a generator of random numbers: of Python's, of numpy's or of torch's."""
    kind = type(value)
    return isinstance(value, random.Random) or (kind.__module__.partition(".")[0], kind.__name__) in _KINDS


def _access(generator: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Return what gives a generator's state, and what sets it."""
    if isinstance(generator, random.Random):
        return generator.getstate, generator.setstate
    bits = getattr(generator, "bit_generator", None)
    if bits is not None:
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    return generator.get_state, generator.set_state


def _of_numpy() -> Iterator[Callable[[], Any]]:
    numpy = sys.modules.get("numpy")
    legacy = getattr(numpy, "random", None)
    if legacy is not None:
        yield partial(legacy.set_state, legacy.get_state())


def _of_torch(torch: ModuleType) -> Iterator[Callable[[], Any]]:
    default = torch.default_generator
    yield partial(default.set_state, default.get_state())
    for one in torch.cuda.default_generators if torch.cuda.is_initialized() else ():
        yield partial(one.set_state, one.get_state())
    tracker = getattr(torch.cuda, "_lazy_seed_tracker", None)
    if tracker is not None:  # of seeds that are set before CUDA is initialised
        yield partial(vars(tracker).update, dict(vars(tracker)))
