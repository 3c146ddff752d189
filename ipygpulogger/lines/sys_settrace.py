"""The tracing back end before Python 3.12, `sys.settrace`: each call of library code costs a look-up."""

from __future__ import annotations

import dis
import sys
import threading
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from typing import TYPE_CHECKING, Any

from ..runtime.clock import monotonic_s, this_thread
from .tracing import ENDED, TracingBackend, name_of, running_frames

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from .tracing import Subscriber

_CO_SUSPENDS = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


class SysSetTrace(TracingBackend):
    """Lines as `sys.settrace` reports them: one trace function per thread, which may be another tool's."""

    def __init__(self) -> None:
        super().__init__()
        self._yields: dict[int, frozenset[int]] = {}
        self._raised: set[int] = set()  # frames that an exception is about to leave
        self._enough: dict[int, set[int]] = {}  # by the code's id, lines not to be reported any more
        self._threads: dict[Subscriber, int] = {}  # the thread that each subscribed on
        # One object each: a bound method is a new one every time.
        self._trace_calls, self._trace_events = self._on_call, self._on_event

    def subscribe(self, subscriber: Subscriber) -> str | None:
        """Subscribe as in any back end, unless this thread has another trace function."""
        with self._lock:
            if sys.gettrace() not in (None, self._trace_calls):
                return (
                    "lines are not measured: another tool traces this thread (a debugger, coverage),"
                    " and before Python 3.12 there is room for one"
                )
            why_not = super().subscribe(subscriber)
            if why_not is None:
                self._threads[subscriber] = threading.get_ident()
                sys.settrace(self._trace_calls)  # on each subscriber's thread
            return why_not

    def _begin(self) -> str | None:
        if threading.gettrace() is None:
            threading.settrace(self._trace_calls)
        return None

    def _end(self) -> None:
        if threading.gettrace() is self._trace_calls:
            threading.settrace(None)
        if sys.gettrace() is self._trace_calls:
            sys.settrace(None)
        for frame in running_frames():
            if frame.f_trace is self._trace_events:
                frame.f_trace = None
        self._yields.clear()
        self._raised.clear()
        self._enough.clear()

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Unsubscribe as in any back end; a trace function that another tool has set since stays."""
        if (
            subscriber in self.subscribers
            and threading.get_ident() == self._threads.get(subscriber)
            and sys.gettrace() is not self._trace_calls
        ):
            subscriber.cut_off(ENDED)
        super().unsubscribe(subscriber)
        here = threading.get_ident()
        others = [thread for other, thread in self._threads.items() if other is not subscriber]
        was_alone_here = self._threads.get(subscriber) == here and here not in others
        if was_alone_here and sys.gettrace() is self._trace_calls:
            sys.settrace(None)
        self._threads.pop(subscriber, None)

    def trace_this_thread(self) -> bool:
        """Trace the calling thread too, if it has no trace function; return whether that is new."""
        is_new = bool(self.subscribers) and sys.gettrace() is None
        if is_new:
            sys.settrace(self._trace_calls)
        return is_new

    def untrace_this_thread(self) -> None:
        """Trace the calling thread no longer."""
        if sys.gettrace() is self._trace_calls:
            sys.settrace(None)

    def _ask_again(self) -> None:
        self._enough.clear()

    def _already_runs(self, frame: FrameType) -> None:
        if frame.f_trace is None:
            frame.f_trace = self._trace_events

    def _on_call(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if id(code) in self._unwanted:
            return None
        began_s, overhead = monotonic_s(), this_thread.overhead
        if not self.subscribers:  # this thread went on after the last one unsubscribed
            if sys.gettrace() is self._trace_calls:
                sys.settrace(None)
            return None
        try:
            if not self._is_followed(frame):
                return None
        finally:
            overhead.s += monotonic_s() - began_s
        if event == "call" and code.co_flags & _CO_SUSPENDS and frame.f_lasti > self._first(code):
            self._report("resumed", frame, monotonic_s())
        return self._trace_events

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> Any:
        began_s = monotonic_s()
        if id(frame.f_code) not in self._followed:
            frame.f_trace = None
            return None
        if event == "line":
            code, lineno = frame.f_code, frame.f_lineno
            if lineno in self._enough.get(id(code), ()):
                return self._trace_events
            self._raised.discard(id(frame))
            if self._report("line", frame, began_s, lineno):
                self._enough.setdefault(id(code), set()).add(lineno)
        elif event == "exception":
            if not issubclass(arg[0], StopIteration):  # with which any loop or await ends
                self._raised.add(id(frame))
        elif event == "return":
            flags = frame.f_code.co_flags
            if not (flags & _CO_SUSPENDS and self._suspends(frame, arg)):
                self._raised.discard(id(frame))
                self._report("ended", frame, began_s)
            elif flags & CO_GENERATOR or (
                flags & CO_ASYNC_GENERATOR and name_of(type(arg)) == "async_generator_wrapped_value"
            ):
                self._report("suspended", frame, began_s)
        return self._trace_events

    def _suspends(self, frame: FrameType, value: object) -> bool:
        """Return whether a frame that returns a value to its caller will be resumed."""
        if value is None and id(frame) in self._raised:
            return False
        return frame.f_lasti in self._yields_of(frame.f_code)

    def _first(self, code: CodeType) -> int:
        """Return the offset in the bytecode of a frame that was never resumed, as it is called."""
        return min(self._yields_of(code), default=sys.maxsize) - 1

    def _yields_of(self, code: CodeType) -> frozenset[int]:
        """Return the offsets in the bytecode at which a frame of this code is suspended."""
        offsets = self._yields.get(id(code))
        if offsets is None:
            offsets = self._yields[id(code)] = frozenset(
                # Python 3.10 steps back before YIELD_FROM, so as to run it again.
                instruction.offset - (2 if instruction.opname == "YIELD_FROM" else 0)
                for instruction in dis.get_instructions(code)
                if instruction.opname in {"YIELD_VALUE", "YIELD_FROM"}
            )
        return offsets
