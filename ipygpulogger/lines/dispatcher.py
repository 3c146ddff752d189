"""Who listens to the lines that run, and what each is told.

One dispatcher per process, any number of listeners. A listener says of each code object, once, whether it
wants to follow it, and gives a `Follower` that is told of every frame that runs it.

No frame is kept alive, and nothing of ours reaches the user's code but an exception that one of the user's
own signal handlers raised while we ran.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..runtime.clock import monotonic_s
from ..runtime.errors import named
from ..runtime.frames import walk_stack
from ..runtime.signals import is_from_a_handler

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR = 0x20, 0x80, 0x200
ENDED = "tracing was ended or taken over meanwhile: lines that ran after that are not measured"
name_of = type.__dict__["__name__"].__get__  # without asking a metaclass, which is the user's


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


here = _Here()


def spent() -> Spent:
    """What tracing cost the calling thread so far; it goes on counting."""
    return here.spent


def now_s() -> float:
    """The clock that stands still while tracing works, on the calling thread."""
    return monotonic_s() - here.spent.s


class Followed(NamedTuple):
    """A code object that somebody follows; kept, so that no other takes its id."""

    code: CodeType
    followers: tuple[tuple[Listener, Follower], ...]


class Dispatcher:
    """Every listener of the process; a subclass for each way Python has of telling."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.listeners: tuple[Listener, ...] = ()
        self._followed: dict[int, Followed] = {}
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
        """Tell a listener no more; after the last one nothing of ours is left.

        Again it changes nothing, or ends what was interrupted, in `listen` too.
        """
        with self._lock:
            self.listeners = tuple(other for other in self.listeners if other is not listener)
            for key, (code, followers) in tuple(self._followed.items()):
                left = tuple(pair for pair in followers if pair[0] is not listener)
                if left:
                    self._followed[key] = Followed(code, left)
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
        newest = self.listeners[-1]
        for frame in reversed(list(walk_stack(sys._getframe(1)))):
            if self._asked(frame):
                self._running(frame)
                for listener, follower in self._followed[id(frame.f_code)].followers:
                    if listener is newest:
                        follower.resumed(frame, monotonic_s() - here.spent.s)

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
            self._followed[id(code)] = Followed(code, tuple(found))
            self._answers[id(code)] = answers
            if new:
                self._follow(code)
            return True

    def _tell(self, what: str, frame: FrameType, began_s: float, *more: Any) -> bool:
        """Tell every follower of a frame; whether none of them needs this told again."""
        followed, spent = self._followed.get(id(frame.f_code)), here.spent
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
            spent.s += monotonic_s() - began_s
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
            listener.cut_off(f"lines are measured no further: {named(error)}")
        except Exception:
            pass  # nothing of ours may reach the user's code

    def after_fork_in_child(self) -> None:
        """Here nobody listens: who did is in the parent; and another thread may have held the lock."""
        self._lock = threading.RLock()
        for listener in self.listeners:
            self.ignore(listener)


def frames() -> Iterator[FrameType]:
    """Every frame that runs in any thread."""
    for newest in sys._current_frames().values():
        yield from walk_stack(newest)
