"""What Python tells of the lines that run: `sys.monitoring`, or `sys.settrace` before Python 3.12.

One dispatcher per process, any number of listeners. A listener says of each code object, once, whether it
wants to follow it, and gives a `Follower` that is told of every frame that runs it. Other code runs at full
speed under `sys.monitoring`; under `sys.settrace` each call of it costs one look into a table.

No frame is kept alive, and nothing of ours reaches the user's code but an exception that one of the user's
own signal handlers raised while we ran.
"""

from __future__ import annotations

import dis
import os
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from .signals import is_from_a_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

_TOOL_IDS = (
    3,
    4,
    5,
    2,
)  # 0 and 1 are the debugger's and coverage's; 2 and 5, by custom, a profiler's, an optimizer's
_CO_GENERATOR, _CO_COROUTINE, _CO_ASYNC_GENERATOR = 0x20, 0x80, 0x200
_CO_SUSPENDS = _CO_GENERATOR | _CO_COROUTINE | _CO_ASYNC_GENERATOR
_name_of = type.__dict__["__name__"].__get__  # without asking a metaclass, which is the user's

_NAME = "ipygpulogger"  # a tool's, as others see it
_ENDED = "tracing was ended or taken over meanwhile: lines that ran after that are not measured"
_clock = time.perf_counter


class Follower(Protocol):
    """Is told of every frame of one code object. ``now_s`` is a clock that stands still while we work."""

    def line(self, frame: FrameType, lineno: int, now_s: float) -> bool:
        """A line is about to run; whether its next runs need not be told."""

    def resumed(self, frame: FrameType, now_s: float) -> None:
        """A generator or a coroutine goes on, or is thrown into."""

    def suspended(self, frame: FrameType, now_s: float) -> None:
        """A generator yields; a coroutine that awaits is not told."""

    def over(self, frame: FrameType, now_s: float) -> None:
        """The frame returns, or an exception leaves it."""

    def repair(self) -> None:
        """Something was cut short: an exception of a signal handler passed through us."""


class Listener(Protocol):
    """Whoever wants to know of lines."""

    def follow(self, frame: FrameType) -> Follower | None:
        """Asked once for each code object, when it first runs."""

    def cut_off(self, sentence: str) -> None:
        """Nothing more is told, also not how the lines ended that are open; why, in one sentence."""


class Spent:
    """What tracing cost one thread so far."""

    __slots__ = ("s",)

    def __init__(self) -> None:
        self.s = 0.0


class _Here(threading.local):
    """The calling thread's own."""

    def __init__(self) -> None:
        self.spent = Spent()


_here = _Here()


def spent() -> Spent:
    """What tracing cost the calling thread so far; it goes on counting."""
    return _here.spent


def now_s() -> float:
    """The clock that stands still while tracing works, on the calling thread."""
    return _clock() - _here.spent.s


class _Followed(NamedTuple):
    """A code object that somebody follows; kept, so that no other takes its id."""

    code: CodeType
    followers: tuple[tuple[Listener, Follower], ...]


class _Dispatcher:
    """Every listener of the process; a subclass for each way Python has of telling."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.listeners: tuple[Listener, ...] = ()
        self._followed: dict[int, _Followed] = {}
        self._answers: dict[int, dict[Listener, Follower | None]] = {}
        self._unsure: set[Follower] = set()  # to be repaired once the stack has room
        self._unwanted: dict[int, weakref.ref[CodeType]] = {}  # nobody follows it; not kept, only known again

    def listen(self, listener: Listener) -> str | None:
        """Tell a listener from here on.

        Returns:
            Why that is impossible, in one sentence.
        """
        with self._lock:
            why_not = None if self.listeners else self._begin()
            if why_not is None:
                self.listeners = (*self.listeners, listener)
                self._unwanted.clear()
                self._ask_again()
                self._take_in_the_stack()
            return why_not

    def ignore(self, listener: Listener) -> None:
        """Tell a listener no more; after the last one nothing of ours is left."""
        with self._lock:
            if listener not in self.listeners:
                return
            self.listeners = tuple(other for other in self.listeners if other is not listener)
            for key, (code, followers) in tuple(self._followed.items()):
                left = tuple(pair for pair in followers if pair[0] is not listener)
                if left:
                    self._followed[key] = _Followed(code, left)
                else:
                    self._unfollow(code)
                    del self._followed[key]
            for answers in self._answers.values():
                answers.pop(listener, None)
            if not self.listeners:
                self._end()
                self._unsure.clear()
                self._followed.clear()
                self._answers.clear()
                self._unwanted.clear()

    def join(self) -> bool:
        """Tell of the calling thread too, which ran before anybody listened; whether it needs `part`."""
        return False

    def part(self) -> None:
        """Tell no more of the calling thread, which had joined."""

    def _begin(self) -> str | None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError

    def _ask_again(self) -> None:
        """Somebody new listens: what nobody wanted so far may be wanted now."""

    def _follow(self, code: CodeType) -> None:
        """Have a code object's lines told."""

    def _unfollow(self, code: CodeType) -> None:
        """Nobody follows it any longer."""

    def _take_in_the_stack(self) -> None:
        """Follow what runs on this thread already; those lines began before, so they are no hits."""
        frame: FrameType | None = sys._getframe(1)
        frames = []
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        newest = self.listeners[-1]
        for frame in reversed(frames):
            if self._asked(frame):
                self._running(frame)
                for listener, follower in self._followed[id(frame.f_code)].followers:
                    if listener is newest:
                        follower.resumed(frame, _clock() - _here.spent.s)

    def _running(self, frame: FrameType) -> None:
        """This frame of a followed code object runs already."""

    def _asked(self, frame: FrameType) -> bool:
        """Ask whoever was not asked yet; whether anybody follows this frame's code."""
        code, unwanted = frame.f_code, self._unwanted
        if id(code) in unwanted:
            return False
        with self._lock:
            followed = self._followed.get(id(code))
            answers = self._answers.setdefault(id(code), {}) if followed else {}
            found = list(followed.followers) if followed else []
            for listener in self.listeners:
                if listener in answers:
                    continue
                try:
                    follower = listener.follow(frame)
                except Exception as error:
                    if is_from_a_handler(error):
                        raise
                    self._fail(listener, error)
                    continue
                answers[listener] = follower
                if follower is not None:
                    found.append((listener, follower))
            if not found:
                key = id(code)
                unwanted[key] = weakref.ref(code, lambda _: unwanted.pop(key, None))
                return False
            new = followed is None
            self._followed[id(code)] = _Followed(code, tuple(found))
            self._answers[id(code)] = answers
            if new:
                self._follow(code)
            return True

    def _tell(self, what: str, frame: FrameType, began_s: float, *more: Any) -> bool:
        """Tell every follower of a frame; whether none of them needs this told again."""
        followed, spent = self._followed.get(id(frame.f_code)), _here.spent
        if followed is None:
            return True
        now_s, enough = began_s - spent.s, True
        try:
            if self._unsure and what == "line":  # the exception that did it is dealt with
                self._mend()
        except RecursionError:
            pass
        try:
            for listener, follower in followed.followers:
                try:
                    enough &= bool(getattr(follower, what)(frame, *more, now_s))
                except BaseException as error:
                    enough = False
                    self._failed(listener, follower, error)
        finally:
            spent.s += _clock() - began_s
        return enough

    def _failed(self, listener: Listener, follower: Follower, error: BaseException) -> None:
        """What a signal handler raised in us is the user's and goes on; what we raise ends a listener."""
        if isinstance(error, RecursionError):  # the user's stack is full: no fault of ours
            self._unsure.add(follower)
        elif isinstance(error, Exception) and not is_from_a_handler(error):
            self._fail(listener, error)
        else:
            follower.repair()
            raise error

    def _mend(self) -> None:
        """Repair what a full stack cut short; while it is full, later."""
        for follower in tuple(self._unsure):
            follower.repair()
            self._unsure.discard(follower)

    def _fail(self, listener: Listener, error: Exception) -> None:
        """A listener that fails is told no more, and its user is told why."""
        try:
            self.ignore(listener)
            listener.cut_off(f"lines are measured no further: {type(error).__name__}: {error}")
        except Exception:
            pass  # nothing of ours may reach the user's code

    def after_fork_in_child(self) -> None:
        """Here nobody listens: who did is in the parent; and another thread may have held the lock."""
        self._lock = threading.RLock()
        for listener in self.listeners:
            self.ignore(listener)


class _Monitoring(_Dispatcher):
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
        api, events = self._api, self._api.events
        for tool_id in _TOOL_IDS:
            try:
                api.use_tool_id(tool_id, _NAME)
            except ValueError:
                continue
            self._tool_id = tool_id
            break
        else:
            return "lines are not measured: other tools hold all of Python's monitoring ids"
        for event, callback in self._callbacks.items():
            api.register_callback(tool_id, event, callback)
        api.set_events(tool_id, events.PY_START | events.PY_RESUME | events.PY_UNWIND | events.PY_THROW)
        return None

    def listen(self, listener: Listener) -> str | None:
        self._look()
        return super().listen(listener)

    def ignore(self, listener: Listener) -> None:
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
                listener.cut_off(_ENDED)
                super().ignore(listener)

    def _end(self) -> None:
        api, tool_id, self._tool_id = self._api, self._tool_id, None
        if tool_id is None:
            return
        api.set_events(tool_id, 0)
        for event in self._callbacks:
            api.register_callback(tool_id, event, None)
        api.free_tool_id(tool_id)
        # What we disabled stays so for the id's next owner, unless all is started again.
        api.restart_events()

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
        began_s, spent = _clock(), _here.spent
        frame = sys._getframe(1)
        try:
            followed = id(code) in self._begins_with_def or (
                self._asked(frame) and _begins_with_its_def(code)
            )
        finally:
            spent.s += _clock() - began_s
        if not followed:
            return self._api.DISABLE
        self._begins_with_def.add(id(code))
        self._tell("line", frame, _clock(), frame.f_lineno)
        return None

    def _on_resume(self, code: CodeType, _: int) -> Any:
        began_s = _clock()
        frame = sys._getframe(1)
        if id(code) not in self._followed and not self._asked(frame):
            return self._api.DISABLE
        self._tell("resumed", frame, began_s)
        return None

    def _on_line(self, code: CodeType, lineno: int) -> Any:
        began_s, spent = _clock(), _here.spent
        followed = self._followed.get(id(code))
        if followed is None or len(followed[1]) > 1 or self._unsure:
            return self._api.DISABLE if self._tell("line", sys._getframe(1), began_s, lineno) else None
        (listener, follower), enough = followed[1][0], False
        try:  # as `_tell`, by the shortest way: this is what runs most
            enough = follower.line(sys._getframe(1), lineno, began_s - spent.s)
        except BaseException as error:
            self._failed(listener, follower, error)
        finally:
            spent.s += _clock() - began_s
        return self._api.DISABLE if enough else None

    def _on_yield(self, code: CodeType, _: int, value: object) -> None:
        began_s, flags = _clock(), code.co_flags
        if flags & _CO_COROUTINE or (
            flags & _CO_ASYNC_GENERATOR and _name_of(type(value)) != "async_generator_wrapped_value"
        ):
            return  # it awaits: its line stays open
        self._tell("suspended", sys._getframe(1), began_s)

    def _on_return(self, _: CodeType, __: int, ___: object) -> None:
        began_s = _clock()
        self._tell("over", sys._getframe(1), began_s)

    def _on_unwind(self, code: CodeType, _: int, error: BaseException) -> None:
        began_s = _clock()
        followed = self._followed.get(id(code))
        if followed is not None:
            if isinstance(error, (RecursionError, KeyboardInterrupt)):
                # It may have struck as one of our callbacks was entered: then nobody was told.
                self._unsure.update(follower for _, follower in followed.followers)
            self._tell("over", sys._getframe(1), began_s)

    def _on_throw(self, code: CodeType, _: int, __: BaseException) -> None:
        began_s = _clock()
        frame = sys._getframe(1)
        if id(code) in self._followed or self._asked(frame):
            self._tell("resumed", frame, began_s)


class _SetTrace(_Dispatcher):
    """`sys.settrace`, up to Python 3.11: one tracer per thread, which may be somebody else's."""

    def __init__(self) -> None:
        super().__init__()
        self._yields: dict[int, frozenset[int]] = {}
        self._raised: set[int] = set()  # frames that an exception is about to leave
        self._enough: dict[int, set[int]] = {}  # lines that need not be told any more, by code
        self._threads: dict[Listener, int] = {}  # that each was started on
        self._of_calls, self._of_events = self._on_call, self._on_event  # one object each, to be known again

    def listen(self, listener: Listener) -> str | None:
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
        if (
            listener in self.listeners
            and threading.get_ident() == self._threads.get(listener)
            and sys.gettrace() is not self._of_calls
        ):
            listener.cut_off(_ENDED)
        super().ignore(listener)
        here = self._threads.pop(listener, None) == threading.get_ident()
        if here and threading.get_ident() not in self._threads.values() and sys.gettrace() is self._of_calls:
            sys.settrace(None)

    def join(self) -> bool:
        joins = bool(self.listeners) and sys.gettrace() is None
        if joins:
            sys.settrace(self._of_calls)
        return joins

    def part(self) -> None:
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
        began_s, spent = _clock(), _here.spent
        if not self.listeners:  # this thread went on after the last one stopped listening
            if sys.gettrace() is self._of_calls:
                sys.settrace(None)
            return None
        try:
            if not self._asked(frame):
                return None
        finally:
            spent.s += _clock() - began_s
        if event == "call" and code.co_flags & _CO_SUSPENDS and frame.f_lasti > self._first(code):
            self._tell("resumed", frame, _clock())
        return self._of_events

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> Any:
        began_s = _clock()
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
            elif flags & _CO_GENERATOR or (
                flags & _CO_ASYNC_GENERATOR and _name_of(type(arg)) == "async_generator_wrapped_value"
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


def frames() -> Iterator[FrameType]:
    """Every frame that runs in any thread."""
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            yield frame
            frame = frame.f_back


_dispatcher: _Dispatcher = _Monitoring() if sys.version_info >= (3, 12) else _SetTrace()
listen, ignore = _dispatcher.listen, _dispatcher.ignore
join, part = _dispatcher.join, _dispatcher.part

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_dispatcher.after_fork_in_child)
