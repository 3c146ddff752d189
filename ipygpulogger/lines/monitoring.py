"""`sys.monitoring` tells of lines, from Python 3.12 on; library code runs at full speed meanwhile."""

from __future__ import annotations

import dis
import sys
from typing import TYPE_CHECKING, Any

from ..runtime.clock import monotonic_s
from .dispatcher import CO_ASYNC_GENERATOR, CO_COROUTINE, ENDED, Dispatcher, here, name_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from .dispatcher import Listener

_TOOL_IDS = 3, 4, 5, 2  # 0 and 1 are the debugger's and coverage's; 2 and 5, by custom, others' too
_NAME = "ipygpulogger"  # a tool's, as others see it


class Monitoring(Dispatcher):
    """`sys.monitoring`, Python 3.12 and later."""

    def __init__(self) -> None:
        super().__init__()
        self._api: Any = getattr(sys, "monitoring")  # noqa: B009 - unknown to 3.10
        self._tool_id: int | None = None
        # A function on one line: Python 3.13 tells that line only the first time, so its start stands for it.
        self._begins_with_def: set[int] = set()
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
        self._end()  # should an interrupt have kept it from being done
        api, events = self._api, self._api.events
        for tool_id in _TOOL_IDS:
            if api.get_tool(tool_id) is None:
                self._tool_id = tool_id  # first: should an interrupt come now, `_end` finds it
                api.use_tool_id(tool_id, _NAME)
                break
        else:
            return "lines are not measured: other tools hold all of Python's monitoring ids"
        for event, callback in self._callbacks.items():
            api.register_callback(tool_id, event, callback)
        api.set_events(tool_id, events.PY_START | events.PY_RESUME | events.PY_UNWIND | events.PY_THROW)
        return None

    def listen(self, listener: Listener) -> str | None:
        """As any dispatcher; first, the id may have been freed by somebody else."""
        self._look()
        return super().listen(listener)

    def ignore(self, listener: Listener) -> None:
        """As any dispatcher; first, the id may have been freed by somebody else."""
        self._look()
        super().ignore(listener)

    def _look(self) -> None:
        """Somebody may have freed our id: take it again, or leave it to whoever took it."""
        api = self._api
        with self._lock:
            tool_id = self._tool_id
            if tool_id is None or (holder := api.get_tool(tool_id)) == _NAME:
                return
            if holder is None:
                api.use_tool_id(tool_id, _NAME)
                if api.get_events(tool_id):  # before Python 3.14 all goes on
                    return
            else:
                self._tool_id = None
                for event, callback in self._callbacks.items():
                    found = api.register_callback(tool_id, event, None)
                    if found != callback:
                        api.register_callback(tool_id, event, found)
            for listener in self.listeners:
                listener.cut_off(ENDED)
                super().ignore(listener)

    def _end(self) -> None:
        api, tool_id = self._api, self._tool_id
        if tool_id is None:
            return
        if api.get_tool(tool_id) == _NAME:
            api.set_events(tool_id, 0)
            for event in self._callbacks:
                api.register_callback(tool_id, event, None)
            api.free_tool_id(tool_id)
            # What we disabled stays so for the id's next owner, unless all is started again.
            api.restart_events()
        self._tool_id = None

    def _ask_again(self) -> None:
        self._api.restart_events()

    def _follow(self, code: CodeType) -> None:
        if self._tool_id is not None:
            self._api.set_local_events(self._tool_id, code, self._local)

    def _unfollow(self, code: CodeType) -> None:
        self._begins_with_def.discard(id(code))
        if self._tool_id is not None:
            self._api.set_local_events(self._tool_id, code, 0)

    def _on_start(self, code: CodeType, _: int) -> Any:
        began_s, spent = monotonic_s(), here.spent
        frame = sys._getframe(1)
        try:
            followed = id(code) in self._begins_with_def or (
                self._asked(frame) and _begins_with_its_def(code)
            )
        finally:
            spent.s += monotonic_s() - began_s
        if not followed:
            return self._api.DISABLE
        self._begins_with_def.add(id(code))
        self._tell("line", frame, monotonic_s(), frame.f_lineno)
        return None

    def _on_resume(self, code: CodeType, _: int) -> Any:
        began_s = monotonic_s()
        frame = sys._getframe(1)
        if id(code) not in self._followed and not self._asked(frame):
            return self._api.DISABLE
        self._tell("resumed", frame, began_s)
        return None

    def _on_line(self, code: CodeType, lineno: int) -> Any:
        began_s, spent = monotonic_s(), here.spent
        followed = self._followed.get(id(code))
        if followed is None or len(followed[1]) > 1 or self._unsure:
            return self._api.DISABLE if self._tell("line", sys._getframe(1), began_s, lineno) else None
        (listener, follower), enough = followed[1][0], False
        try:  # as `_tell`, by the shortest way: this is what runs most
            enough = follower.line(sys._getframe(1), lineno, began_s - spent.s)
        except BaseException as error:
            self._failed(listener, follower, error)
        finally:
            spent.s += monotonic_s() - began_s
        return self._api.DISABLE if enough else None

    def _on_yield(self, code: CodeType, _: int, value: object) -> None:
        began_s, flags = monotonic_s(), code.co_flags
        if flags & CO_COROUTINE or (
            flags & CO_ASYNC_GENERATOR and name_of(type(value)) != "async_generator_wrapped_value"
        ):
            return  # it awaits: its line stays open
        self._tell("suspended", sys._getframe(1), began_s)

    def _on_return(self, _: CodeType, __: int, ___: object) -> None:
        began_s = monotonic_s()
        self._tell("over", sys._getframe(1), began_s)

    def _on_unwind(self, code: CodeType, _: int, error: BaseException) -> None:
        began_s = monotonic_s()
        followed = self._followed.get(id(code))
        if followed is not None:
            if isinstance(error, (RecursionError, KeyboardInterrupt)):
                # It may have struck as one of our callbacks was entered: then nobody was told.
                self._unsure.update(follower for _, follower in followed.followers)
            self._tell("over", sys._getframe(1), began_s)

    def _on_throw(self, code: CodeType, _: int, __: BaseException) -> None:
        began_s = monotonic_s()
        frame = sys._getframe(1)
        if id(code) in self._followed or self._asked(frame):
            self._tell("resumed", frame, began_s)


def _begins_with_its_def(code: CodeType) -> bool:
    """Whether a function's first line of code is that of its own definition."""
    instructions = dis.get_instructions(code)
    for instruction in instructions:
        if instruction.opname in {"RESUME", "INSTRUMENTED_RESUME"}:
            body = next(instructions, instruction)
            return _lineno(body) == _lineno(instruction)
    return False


def _lineno(instruction: dis.Instruction) -> int | None:
    positions = getattr(instruction, "positions", None)  # unknown to 3.10
    return None if positions is None else positions.lineno
