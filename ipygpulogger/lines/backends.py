"""The tracing back ends: `sys.monitoring` from Python 3.12 on, `sys.settrace` before.

With the former, library code runs at full speed meanwhile; with the latter, each call of it costs a look-up.
"""

from __future__ import annotations

import dis
import itertools
import sys
import threading
from collections.abc import Callable
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from ..runtime.clock import monotonic_s, this_thread
from ..runtime.objects import walk_stack
from .tracing import ENDED, TracingBackend, name_of

if TYPE_CHECKING:
    from .line_profiler import LineProfiler

_TOOL_IDS = 3, 4, 5, 2  # 0 and 1 are the debugger's and coverage's; 2 and 5, by custom, others' too
_NAME = "ipygpulogger"  # the tool's name, as other tools see it
_CO_SUSPENDS = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_YIELD_VALUE, _YIELD_FROM = dis.opmap["YIELD_VALUE"], dis.opmap.get("YIELD_FROM")


class SysMonitoring(TracingBackend):
    """Lines as `sys.monitoring` reports them."""

    def __init__(self) -> None:
        super().__init__()
        self._api: Any = getattr(sys, "monitoring")  # noqa: B009 - unknown to 3.10
        self._tool_id: int | None = None
        # Functions on one line: Python 3.13 reports that line only once, so their start stands for it.
        self._on_def_line: set[int] = set()
        events = self._api.events
        self._local = events.LINE | events.PY_RETURN | events.PY_YIELD | events.PY_RESUME
        self._callbacks: dict[int, Callable[..., Any]] = {
            events.PY_START: self._on_start,
            events.PY_RESUME: self._on_resume,
            events.LINE: self._on_line,
            events.PY_YIELD: self._on_yield,
            events.PY_RETURN: self._on_return,
            events.PY_UNWIND: self._on_unwind,
            events.PY_THROW: self._on_resume,
        }

    def _begin(self) -> str | None:
        self._end()  # in case an interrupt cut the last end short
        api, events = self._api, self._api.events
        for tool_id in _TOOL_IDS:
            if api.get_tool(tool_id) is None:
                self._tool_id = tool_id  # first, so that `_end` finds it after an interrupt
                api.use_tool_id(tool_id, _NAME)
                break
        else:
            return "lines are not measured: other tools hold all of Python's monitoring ids"
        for event, callback in self._callbacks.items():
            api.register_callback(tool_id, event, callback)
        api.set_events(tool_id, events.PY_START | events.PY_RESUME | events.PY_UNWIND | events.PY_THROW)
        return None

    def _end(self) -> None:
        api, tool_id = self._api, self._tool_id
        if tool_id is None:
            return
        if api.get_tool(tool_id) == _NAME:
            api.set_events(tool_id, 0)
            for event in self._callbacks:
                api.register_callback(tool_id, event, None)
            api.free_tool_id(tool_id)
            # What we disabled would stay disabled for the next tool that has this id.
            api.restart_events()
        self._tool_id = None

    def _ask_again(self) -> None:
        self._api.restart_events()

    def _follow(self, code: CodeType, *, on: bool) -> None:
        if not on:
            self._on_def_line.discard(id(code))
        if self._tool_id is not None:
            self._api.set_local_events(self._tool_id, code, self._local if on else 0)

    def _on_start(self, code: CodeType, _: int) -> Any:
        began_s, frame = monotonic_s(), sys._getframe(1)
        try:
            known = id(code) in self._on_def_line
            followed = known or (self._is_followed(frame) and _starts_on_its_def_line(code))
        finally:
            this_thread.overhead_s += monotonic_s() - began_s
        if not followed:
            return self._api.DISABLE
        self._on_def_line.add(id(code))
        self._report("line", frame, monotonic_s(), frame.f_lineno)
        return None

    def _on_resume(self, code: CodeType, _: int, *thrown: BaseException) -> Any:
        began_s, frame = monotonic_s(), sys._getframe(1)
        if id(code) in self._followed or self._is_followed(frame):
            self._report("resumed", frame, began_s)
            return None
        return None if thrown else self._api.DISABLE

    def _on_line(self, code: CodeType, lineno: int) -> Any:
        began_s = monotonic_s()
        if id(code) not in self._followed:
            return self._api.DISABLE
        self._report("line", sys._getframe(1), began_s, lineno)
        return None

    def _on_yield(self, code: CodeType, _: int, value: object) -> None:
        began_s, flags = monotonic_s(), code.co_flags
        is_wrapped = name_of(type(value)) == "async_generator_wrapped_value"
        if flags & CO_COROUTINE or (flags & CO_ASYNC_GENERATOR and not is_wrapped):
            return  # it awaits: its line stays open
        self._report("suspended", sys._getframe(1), began_s)

    def _on_return(self, _: CodeType, __: int, ___: object) -> None:
        began_s = monotonic_s()
        self._report("ended", sys._getframe(1), began_s)

    def _on_unwind(self, code: CodeType, _: int, error: BaseException) -> None:
        began_s, followed = monotonic_s(), self._followed.get(id(code))
        if followed is not None:
            if isinstance(error, RecursionError):
                # It may have been raised as one of our callbacks was entered, before anything was reported.
                for pair in followed.followers:
                    pair[0].stack_was_full = True
            self._report("ended", sys._getframe(1), began_s)


def _starts_on_its_def_line(code: CodeType) -> bool:
    """Return whether a function's first line of code is the line of its own definition."""
    instructions: Any = dis.get_instructions(code)  # Python 3.10 knows no positions
    for instruction in instructions:
        if instruction.opname in {"RESUME", "INSTRUMENTED_RESUME"}:
            body = next(instructions, instruction)
            return bool(body.positions.lineno == instruction.positions.lineno)
    return False


def _at_a_yield(frame: FrameType) -> bool:
    """Return whether a frame is suspended, or about to be."""
    code, at = frame.f_code.co_code, frame.f_lasti
    # Python 3.10 steps back before YIELD_FROM, so as to run it again.
    return at >= 0 and (code[at] == _YIELD_VALUE or (at + 2 < len(code) and code[at + 2] == _YIELD_FROM))


class SysSetTrace(TracingBackend):
    """Lines as `sys.settrace` reports them: one trace function per thread, which may be another tool's."""

    def __init__(self) -> None:
        super().__init__()
        self._raised: set[int] = set()  # frames that an exception is about to leave
        self._threads: dict[LineProfiler, int] = {}  # the thread that each subscribed on
        # One object each: a bound method is a new one every time.
        self._trace_calls, self._trace_events = self._on_call, self._on_event

    def subscribe(self, subscriber: LineProfiler) -> str | None:
        """Subscribe as in any back end, unless this thread has another trace function."""
        with self._lock:
            if sys.gettrace() not in (None, self._trace_calls):
                why = "another tool traces this thread (a debugger, coverage)"
                return f"lines are not measured: {why}, and before Python 3.12 there is room for one"
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
        for frame in itertools.chain(*map(walk_stack, sys._current_frames().values())):
            if frame.f_trace is self._trace_events:
                frame.f_trace = None
        self._raised.clear()

    def unsubscribe(self, subscriber: LineProfiler) -> None:
        """Unsubscribe as in any back end; a trace function that another tool has set since stays."""
        here = threading.get_ident()
        if self._threads.pop(subscriber, None) == here:
            if sys.gettrace() is not self._trace_calls:
                subscriber.cut_off(ENDED)
            elif here not in self._threads.values():
                sys.settrace(None)
        super().unsubscribe(subscriber)

    def why_not_here(self) -> str | None:
        """Return why this thread is not traced: it has another trace function, or ran before."""
        if sys.gettrace() is self._trace_calls:
            return None
        cure = "that takes Python 3.12, or a thread that is started within the first call"
        return f"calls on other threads that ran before are not measured; {cure}"

    def _on_call(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if id(code) in self._unwanted:
            return None
        began_s = monotonic_s()
        if not self.subscribers:  # this thread went on after the last one unsubscribed
            if sys.gettrace() is self._trace_calls:
                sys.settrace(None)
            return None
        try:
            if not self._is_followed(frame):
                return None
        finally:
            this_thread.overhead_s += monotonic_s() - began_s
        if event == "call" and code.co_flags & _CO_SUSPENDS and _at_a_yield(frame):
            self._report("resumed", frame, monotonic_s())
        return self._trace_events

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> Any:
        began_s = monotonic_s()
        if id(frame.f_code) not in self._followed:
            frame.f_trace = None
            return None
        if event == "line":
            self._raised.discard(id(frame))
            self._report("line", frame, began_s, frame.f_lineno)
        elif event == "exception":
            if not issubclass(arg[0], StopIteration):  # with which any loop or await ends
                self._raised.add(id(frame))
        elif event == "return":
            flags, is_wrapped = frame.f_code.co_flags, name_of(type(arg)) == "async_generator_wrapped_value"
            leaves = arg is None and id(frame) in self._raised
            if leaves or not (flags & _CO_SUSPENDS and _at_a_yield(frame)):
                self._raised.discard(id(frame))
                self._report("ended", frame, began_s)
            elif flags & CO_GENERATOR or (flags & CO_ASYNC_GENERATOR and is_wrapped):
                self._report("suspended", frame, began_s)
        return self._trace_events
