"""The tracing back end from Python 3.12 on: library code runs at full speed meanwhile."""

from __future__ import annotations

import dis
import sys
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from typing import TYPE_CHECKING, Any

from ..runtime.clock import monotonic_s, this_thread
from .tracing import TracingBackend, name_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

_TOOL_IDS = 3, 4, 5, 2  # 0 and 1 are the debugger's and coverage's; 2 and 5, by custom, others' too
_NAME = "ipygpulogger"  # the tool's name, as other tools see it


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
            events.PY_THROW: self._on_throw,
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

    def _follow(self, code: CodeType) -> None:
        if self._tool_id is not None:
            self._api.set_local_events(self._tool_id, code, self._local)

    def _unfollow(self, code: CodeType) -> None:
        self._on_def_line.discard(id(code))
        if self._tool_id is not None:
            self._api.set_local_events(self._tool_id, code, 0)

    def _on_start(self, code: CodeType, _: int) -> Any:
        began_s, overhead = monotonic_s(), this_thread.overhead
        frame = sys._getframe(1)
        try:
            followed = id(code) in self._on_def_line or (
                self._is_followed(frame) and _starts_on_its_def_line(code)
            )
        finally:
            overhead.s += monotonic_s() - began_s
        if not followed:
            return self._api.DISABLE
        self._on_def_line.add(id(code))
        self._report("line", frame, monotonic_s(), frame.f_lineno)
        return None

    def _on_resume(self, code: CodeType, _: int) -> Any:
        began_s = monotonic_s()
        frame = sys._getframe(1)
        if id(code) not in self._followed and not self._is_followed(frame):
            return self._api.DISABLE
        self._report("resumed", frame, began_s)
        return None

    def _on_line(self, code: CodeType, lineno: int) -> Any:
        began_s, overhead = monotonic_s(), this_thread.overhead
        followed = self._followed.get(id(code))
        if followed is None or len(followed[1]) > 1 or self._unsure:
            return self._api.DISABLE if self._report("line", sys._getframe(1), began_s, lineno) else None
        (subscriber, follower), enough = followed[1][0], False
        try:  # `_report`, written out: this is what runs most
            enough = follower.line(sys._getframe(1), lineno, began_s - overhead.s)
        except BaseException as error:
            self._failed(subscriber, follower, error)
        finally:
            overhead.s += monotonic_s() - began_s
        return self._api.DISABLE if enough else None

    def _on_yield(self, code: CodeType, _: int, value: object) -> None:
        began_s, flags = monotonic_s(), code.co_flags
        if flags & CO_COROUTINE or (
            flags & CO_ASYNC_GENERATOR and name_of(type(value)) != "async_generator_wrapped_value"
        ):
            return  # it awaits: its line stays open
        self._report("suspended", sys._getframe(1), began_s)

    def _on_return(self, _: CodeType, __: int, ___: object) -> None:
        began_s = monotonic_s()
        self._report("ended", sys._getframe(1), began_s)

    def _on_unwind(self, code: CodeType, _: int, error: BaseException) -> None:
        began_s = monotonic_s()
        followed = self._followed.get(id(code))
        if followed is not None:
            if isinstance(error, (RecursionError, KeyboardInterrupt)):
                # It may have been raised as one of our callbacks was entered, before anything was reported.
                self._unsure.update(follower for _, follower in followed.followers)
            self._report("ended", sys._getframe(1), began_s)

    def _on_throw(self, code: CodeType, _: int, __: BaseException) -> None:
        began_s = monotonic_s()
        frame = sys._getframe(1)
        if id(code) in self._followed or self._is_followed(frame):
            self._report("resumed", frame, began_s)


def _starts_on_its_def_line(code: CodeType) -> bool:
    """Return whether a function's first line of code is the line of its own definition."""
    instructions: Any = dis.get_instructions(code)  # Python 3.10 knows no positions
    for instruction in instructions:
        if instruction.opname in {"RESUME", "INSTRUMENTED_RESUME"}:
            body = next(instructions, instruction)
            return bool(body.positions.lineno == instruction.positions.lineno)
    return False
