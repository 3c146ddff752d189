"""The thread that estimates, and those that it starts; the signals that come meanwhile.

torch's functions are attributes of its modules, which all threads share. For other threads, which may train
or save a checkpoint, they stay as they were.

Ctrl-C interrupts the function, and never what puts everything back. Python runs the handler of a signal
between any two steps of the main thread's code. While fake tensors stand in the place of real ones, handlers
run only where the function's own code does, or an operator has ended: C++ code of torch that calls Python in
between ends the process on an error. What comes at another moment waits.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from ..runtime.objects import walk_stack
from .values import user_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from ..allocator.places import Frame

_OURS = __name__.partition(".")[0]


class OwnThreads:
    """The threads in which the function that is estimated runs.

    One of a `ThreadPoolExecutor` that was there before is of them for as long as it does the function's work.
    """

    def __init__(self) -> None:
        # Returns what has these take fake tensors for real ones.
        self.mode: Callable[[], Any] = contextlib.nullcontext
        self._threads = {threading.current_thread()}
        self.started: list[Frame] = []  # lines that started other threads

    def only(self, new: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is a new one for own threads, and the original one for the others."""
        own = self._threads

        @functools.wraps(original, updated=())
        def either(*args: Any, **kwargs: Any) -> Any:
            return (new if threading.current_thread() in own else original)(*args, **kwargs)

        if not isinstance(new, type):
            return either
        kind: Any = original

        class Either(type):
            def __call__(cls, *args: Any, **kwargs: Any) -> Any:
                is_own = threading.current_thread() in own
                return super().__call__(*args, **kwargs) if is_own else kind(*args, **kwargs)

            def __instancecheck__(cls, instance: Any) -> bool:
                return super().__instancecheck__(instance) or isinstance(instance, kind)

        return Either(original.__name__, (new,), {})

    def noted(self, original: Callable[..., None], thread: threading.Thread) -> None:
        """Start a thread, and note the user's line: what other threads allocate is not counted."""
        self.started.append(user_line())
        thread.run = self._within(thread.run)  # type: ignore[method-assign]  # of this thread alone
        original(thread)

    def submitted(
        self, original: Callable[..., Any], pool: Any, call: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call `ThreadPoolExecutor.submit`, whose threads were there before."""
        self.started.append(user_line())
        return original(pool, self._within(call), *args, **kwargs)

    def _within(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def called(*args: Any, **kwargs: Any) -> Any:
            own = {threading.current_thread()} - self._threads
            self._threads.update(own)
            try:
                with self.mode():
                    return call(*args, **kwargs)
            finally:
                self._threads.difference_update(own)

        return called


class Interrupts:
    """The signals that come while a function is estimated; those of other threads are nothing here."""

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._waiting: list[int] = []
        self._allowed = self._is_over = False
        self._operators = 0  # that are running, within one another

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
            self._allowed, self._is_over = False, True
            try:
                self._restore(list(self._handlers))
            finally:
                self._run()

    def _restore(self, numbers: list[int]) -> None:
        """Set the handlers again, every one, whatever one of them raises meanwhile."""
        try:
            while numbers:
                if signal.getsignal(numbers[-1]) == self._handle:  # else the function has set another one
                    signal.signal(numbers[-1], self._handlers[numbers[-1]])
                numbers.pop()
        finally:
            if numbers:
                self._restore(numbers)

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Have the handlers run within: the user's function is called here."""
        self._allowed = True
        try:
            self._run()
            yield
        finally:
            self._allowed = False

    def after(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that handles an operator, with the signals waiting for its end.

        In the middle of one torch's own state must not be left as it is.
        """

        def handled(func: Any, *args: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return handler(func, *args)
            self._operators += 1
            try:
                return handler(func, *args)
            finally:
                self._operators -= 1
                is_operator = func.namespace != "prim"  # no question for the device, size or strides
                if self._allowed and not self._operators and is_operator:
                    self._run()

        return handled

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_over or (self._allowed and not self._operators and not _is_in_torch(frame)):
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
