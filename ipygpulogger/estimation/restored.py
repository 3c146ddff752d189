"""Puts back what a run changed: containers, attributes, names, generators; holds Ctrl-C back.

It interrupts the function, and never what puts everything back. Its handler runs only where the function's
own code does, or an operator has ended: C++ code of torch that calls Python in between ends the process on
an error. The handlers of other signals run as ever.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from operator import is_
from types import FrameType, ModuleType
from typing import Any

from ..runtime.objects import walk_stack

_OURS = __name__.partition(".")[0]
_MISSING = object()  # nothing is there, or it cannot be read
_GENERATORS = frozenset((("numpy", "Generator"), ("numpy", "RandomState"), ("torch", "Generator")))


class Restored:
    """What was noted, to be put back at the end."""

    def __init__(self, hold: Callable[[Any], Any], real: Callable[[Any], Any]) -> None:
        self._hold, self._real = hold, real  # what stands for a value meanwhile, and the value for that
        self.undo: list[tuple[Callable[[list[Any]], None], list[Any]]] = []

    def _note(self, put: Callable[[list[Any]], None], values: Any) -> None:
        self.undo.append((put, [self._hold(one) for one in values]))

    def container(self, holder: Any) -> None:
        """Note the items of a dictionary, list, deque or set."""
        self._note(partial(_fill, holder), items_of(holder))

    def place(self, *access: Callable[..., Any], args: tuple[Any, ...] = ()) -> Any:
        """Note what one place holds, and return it; None if there is nothing."""
        # `access`: what reads the place, what puts something there, and what leaves nothing there.
        get, put, remove = (partial(one, *args) for one in access)
        value = _read(get)

        def put_back(values: list[Any]) -> None:
            if _read(get) is not values[0]:
                with contextlib.suppress(AttributeError, TypeError):  # a slot that cannot be written
                    remove() if values[0] is _MISSING else put(values[0])

        self._note(put_back, [value])
        return None if value is _MISSING else value

    def generator(self, value: Any) -> None:
        """Note the state of a generator of random numbers."""
        if hasattr(value, "getstate"):
            names = "getstate", "setstate"
        elif hasattr(value, "get_state"):
            names = "get_state", "set_state"
        else:  # numpy's newer ones
            self.place(getattr, setattr, delattr, args=(value.bit_generator, "state"))
            return
        get, put = (getattr(value, one) for one in names)
        old = get()
        self.undo.append((lambda _: put(old), []))

    def surroundings(self, torch: ModuleType) -> None:
        """Note the generators that all share."""
        devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
        numpy = getattr(sys.modules.get("numpy"), "random", None)
        for one in filter(None, (random, numpy, torch.default_generator, *devices)):
            self.generator(one)

    def put_back(self) -> None:
        """Put everything back as it was, whatever the function changed."""
        for put, values in reversed(self.undo):
            put([self._real(one) for one in values])


def items_of(holder: Any) -> list[Any]:
    """Return the items of a container, of a dictionary its keys and values in turn."""
    if isinstance(holder, dict):
        return [one for item in list(dict.items(holder)) for one in item]
    return list(holder)


def _fill(holder: Any, values: list[Any]) -> None:
    """Give a container its items again, with no method of the user's."""
    now = items_of(holder)
    if len(now) == len(values) and all(map(is_, now, values)):
        return
    kind: Any = next(one for one in (OrderedDict, dict, list, deque, set) if isinstance(holder, one))
    kind.clear(holder)
    if isinstance(holder, dict):
        for key, value in zip(values[::2], values[1::2], strict=True):
            kind.__setitem__(holder, key, value)
    else:
        (kind.update if kind is set else kind.extend)(holder, values)


def _read(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except (AttributeError, KeyError, TypeError, ValueError):
        return _MISSING


def is_generator(value: Any) -> bool:
    """Return whether an object is a generator of random numbers: of Python's, of numpy's or of torch's."""
    kind = type(value)
    named = kind.__module__.partition(".")[0], kind.__name__
    return isinstance(value, random.Random) or named in _GENERATORS


class Interrupts:
    """Ctrl-C while a function is estimated, on the main thread."""

    def __init__(self) -> None:
        self._handler: Any = None
        self._arrived = self._allowed = False

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Have the handler of SIGINT run only where it is `allowed`, or at the end."""
        self._handler = signal.getsignal(signal.SIGINT)
        if not callable(self._handler) or threading.current_thread() is not threading.main_thread():
            yield
            return
        try:
            signal.signal(signal.SIGINT, self._handle)
            yield
        finally:
            self._allowed = False
            if signal.getsignal(signal.SIGINT) == self._handle:  # else the function has set another one
                signal.signal(signal.SIGINT, self._handler)
            self._run()

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Have the handler run within: the user's function is called here."""
        self._allowed = True
        try:
            self._run()
            yield
        finally:
            self._allowed = False

    def after(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that handles an operator, with an interrupt waiting for its end."""

        # In the middle of one torch's own state must not be left as it is.
        def handled(func: Any, *args: Any) -> Any:
            try:
                return handler(func, *args)
            finally:
                if self._allowed and func.namespace != "prim":  # which reads the device, size or strides
                    self._run()

        return handled

    def _handle(self, _: int, frame: FrameType | None) -> None:
        self._arrived = True
        if self._allowed and not _is_in_torch(frame):
            self._run(frame)

    def _run(self, frame: FrameType | None = None) -> None:
        if self._arrived:
            self._arrived = False
            allowed, self._allowed = self._allowed, False  # if it raises, all is put back undisturbed
            self._handler(signal.SIGINT, frame)
            self._allowed = allowed


def _is_in_torch(frame: FrameType | None) -> bool:
    """Return whether code of torch or of this package runs, or what that called of Python's own modules."""
    for one in walk_stack(frame):
        module = str(one.f_globals.get("__name__", ""))
        root = module.partition(".")[0]
        if root == "torch":
            return not module.startswith("torch.utils.data")  # which waits for other processes
        if root not in sys.stdlib_module_names:
            return root == _OURS
    return True
