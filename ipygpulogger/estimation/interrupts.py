"""Ctrl-C while a function is estimated: it strikes the function, and never what puts everything back.

Python runs the handler of a signal between any two steps of the main thread's code, and that of SIGINT raises
KeyboardInterrupt there. While fake tensors stand in the place of real ones, handlers run only where the
function's own code does, or an operator has ended: C++ code of torch that calls Python in between ends the
process on an error. What comes at another moment waits.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from ..runtime.frames import walk_stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

T = TypeVar("T")
_OURS = __name__.partition(".")[0]


class Interrupts:
    """The signals that come while a function is estimated; those of other threads are nothing here."""

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._waiting: list[int] = []
        self._allowed = False
        self._held = 0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Have the handlers of signals run only where they are `allowed`, the others at the end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        try:
            for number in signal.valid_signals():
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._handle)
            yield
        finally:
            self._allowed = False
            self._restore()
            self._run()

    def _restore(self) -> None:
        for number, handler in reversed(self._handlers.items()):  # that of SIGINT is one of the last
            if signal.getsignal(number) == self._handle:  # else the function has set another one
                signal.signal(number, handler)

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Have the handlers run within: the user's function is called here."""
        self._allowed = True
        try:
            self._run()
            yield
        finally:
            self._allowed = False

    def after(self, handler: Callable[..., T]) -> Callable[..., T]:
        """Return a function that handles an operator, with the signals waiting for its end.

        In the middle of one torch's own state must not be left as it is.
        """

        def handled(func: Any, *args: Any) -> T:
            if threading.current_thread() is not threading.main_thread():
                return handler(func, *args)
            self._held += 1
            try:
                return handler(func, *args)
            finally:
                self._held -= 1
                is_operator = func.namespace != "prim"  # no question for the device, size or strides
                if self._waiting and self._allowed and not self._held and is_operator:
                    self._run()

        return handled

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._allowed and not self._held and not _is_in_torch(frame):
            self._call(number, frame)
        else:
            self._waiting.append(number)

    def _run(self) -> None:
        while self._waiting:
            self._call(self._waiting.pop(0), None)

    def _call(self, number: int, frame: FrameType | None) -> None:
        allowed, self._allowed = self._allowed, False  # if it raises, all is put back undisturbed
        self._handlers[number](number, frame)
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
