"""`sys.settrace` tells of lines, before Python 3.12; each call of library code costs a look into a table."""

from __future__ import annotations

import dis
import sys
import threading
from typing import TYPE_CHECKING, Any

from ..runtime.clock import monotonic_s
from .dispatcher import (
    CO_ASYNC_GENERATOR,
    CO_COROUTINE,
    CO_GENERATOR,
    ENDED,
    Dispatcher,
    frames,
    here,
    name_of,
)

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from .dispatcher import Listener

_CO_SUSPENDS = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


class SetTrace(Dispatcher):
    """`sys.settrace`, up to Python 3.11: one tracer per thread, which may be somebody else's."""

    def __init__(self) -> None:
        super().__init__()
        self._yields: dict[int, frozenset[int]] = {}
        self._raised: set[int] = set()  # frames that an exception is about to leave
        self._enough: dict[int, set[int]] = {}  # lines that need not be told any more, by code
        self._threads: dict[Listener, int] = {}  # that each was started on
        self._of_calls, self._of_events = self._on_call, self._on_event  # one object each, to be known again

    def listen(self, listener: Listener) -> str | None:
        """As any dispatcher, where this thread has no other tracer."""
        with self._lock:
            if sys.gettrace() not in (None, self._of_calls):
                return (
                    "lines are not measured: another tool traces this thread (a debugger, coverage),"
                    " and before Python 3.12 there is room for one"
                )
            why_not = super().listen(listener)
            if why_not is None:
                self._threads[listener] = threading.get_ident()
                sys.settrace(self._of_calls)  # on each listener's thread
            return why_not

    def _begin(self) -> str | None:
        if threading.gettrace() is None:
            threading.settrace(self._of_calls)
        return None

    def _end(self) -> None:
        if threading.gettrace() is self._of_calls:
            threading.settrace(None)
        if sys.gettrace() is self._of_calls:
            sys.settrace(None)
        for frame in frames():
            if frame.f_trace is self._of_events:
                frame.f_trace = None
        self._yields.clear()
        self._raised.clear()
        self._enough.clear()

    def ignore(self, listener: Listener) -> None:
        """As any dispatcher; a tracer that somebody else put in ours' place stays."""
        if (
            listener in self.listeners
            and threading.get_ident() == self._threads.get(listener)
            and sys.gettrace() is not self._of_calls
        ):
            listener.cut_off(ENDED)
        super().ignore(listener)
        here = threading.get_ident()
        others = [thread for other, thread in self._threads.items() if other is not listener]
        if self._threads.get(listener) == here and here not in others and sys.gettrace() is self._of_calls:
            sys.settrace(None)
        self._threads.pop(listener, None)

    def join(self) -> bool:
        """Trace the calling thread, too, if it has no tracer; whether that is new."""
        joins = bool(self.listeners) and sys.gettrace() is None
        if joins:
            sys.settrace(self._of_calls)
        return joins

    def part(self) -> None:
        """Trace the calling thread no longer."""
        if sys.gettrace() is self._of_calls:
            sys.settrace(None)

    def _ask_again(self) -> None:
        self._enough.clear()

    def _running(self, frame: FrameType) -> None:
        if frame.f_trace is None:
            frame.f_trace = self._of_events

    def _on_call(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if id(code) in self._unwanted:
            return None
        began_s, spent = monotonic_s(), here.spent
        if not self.listeners:  # this thread went on after the last one stopped listening
            if sys.gettrace() is self._of_calls:
                sys.settrace(None)
            return None
        try:
            if not self._asked(frame):
                return None
        finally:
            spent.s += monotonic_s() - began_s
        if event == "call" and code.co_flags & _CO_SUSPENDS and frame.f_lasti > self._first(code):
            self._tell("resumed", frame, monotonic_s())
        return self._of_events

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> Any:
        began_s = monotonic_s()
        if id(frame.f_code) not in self._followed:
            frame.f_trace = None
            return None
        if event == "line":
            code, lineno = frame.f_code, frame.f_lineno
            if lineno in self._enough.get(id(code), ()):
                return self._of_events
            self._raised.discard(id(frame))
            if self._tell("line", frame, began_s, lineno):
                self._enough.setdefault(id(code), set()).add(lineno)
        elif event == "exception":
            if not issubclass(arg[0], StopIteration):  # with which any loop or await ends
                self._raised.add(id(frame))
        elif event == "return":
            flags = frame.f_code.co_flags
            if not (flags & _CO_SUSPENDS and self._suspends(frame, arg)):
                self._raised.discard(id(frame))
                self._tell("over", frame, began_s)
            elif flags & CO_GENERATOR or (
                flags & CO_ASYNC_GENERATOR and name_of(type(arg)) == "async_generator_wrapped_value"
            ):
                self._tell("suspended", frame, began_s)
        return self._of_events

    def _suspends(self, frame: FrameType, value: object) -> bool:
        """Whether a frame that is left will go on."""
        if value is None and id(frame) in self._raised:
            return False
        return frame.f_lasti in self._yields_of(frame.f_code)

    def _first(self, code: CodeType) -> int:
        """Where a frame that was never resumed stands when it is called."""
        return min(self._yields_of(code), default=sys.maxsize) - 1

    def _yields_of(self, code: CodeType) -> frozenset[int]:
        """Where a frame of it stands when it is left and will go on."""
        offsets = self._yields.get(id(code))
        if offsets is None:
            offsets = self._yields[id(code)] = frozenset(
                # Python 3.10 steps back before YIELD_FROM, to come by again.
                instruction.offset - (2 if instruction.opname == "YIELD_FROM" else 0)
                for instruction in dis.get_instructions(code)
                if instruction.opname in {"YIELD_VALUE", "YIELD_FROM"}
            )
        return offsets
