"""What every tracing back end does: it asks subscribers which code to follow, and reports its lines to them.

There is one back end per process. It asks each subscriber, a `LineProfiler`, once for each code object
whether to follow it, and reports to the `CodeFrames` that it returned. No frame is kept alive. No
exception of ours reaches the user's code, only one that the user's own signal handler raised while we ran.
"""

from __future__ import annotations

import threading
import weakref
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..runtime.clock import monotonic_s, this_thread
from ..runtime.errors import is_from_a_handler, named

if TYPE_CHECKING:
    from .line_profiler import CodeFrames, LineProfiler

CUT_SHORT = "an exception cut the measuring short: what the lines that ran then had used is left out"
ENDED = "tracing was ended or taken over meanwhile: lines that ran after that are not measured"
name_of = type.__dict__["__name__"].__get__  # without asking a metaclass, which is the user's


def now_s() -> float:
    """Return the calling thread's time without the cost of tracing."""
    return monotonic_s() - this_thread.overhead_s


class Followed(NamedTuple):
    """A code object with followers; kept alive, so that no other takes its id."""

    code: CodeType  # the code object
    followers: tuple[tuple[LineProfiler, CodeFrames], ...] = ()  # who follows it, and for which subscriber
    asked: tuple[LineProfiler, ...] = ()  # every subscriber that was asked


class TracingBackend:
    """Every subscriber of the process; a subclass for each interface that Python has for tracing."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.subscribers: tuple[LineProfiler, ...] = ()
        self._followed: dict[int, Followed] = {}
        self._unwanted: dict[int, weakref.ref[CodeType]] = {}  # without followers; not kept alive

    def subscribe(self, subscriber: LineProfiler) -> str | None:
        """Report to a subscriber from here on; return why that is impossible, None where it is done."""
        with self._lock:
            why_not = None if self.subscribers else self._begin()
            if why_not is None:
                self.subscribers = (*self.subscribers, subscriber)
                self._unwanted.clear()
                self._ask_again()
            return why_not

    def unsubscribe(self, subscriber: LineProfiler) -> None:
        """Stop reporting to a subscriber; after the last tracing is off. Again, it does what is left."""
        with self._lock:
            self.subscribers = tuple(other for other in self.subscribers if other is not subscriber)
            for key, (code, followers, asked) in tuple(self._followed.items()):
                left = tuple(pair for pair in followers if pair[0] is not subscriber)
                if left:
                    others = tuple(one for one in asked if one is not subscriber)
                    self._followed[key] = Followed(code, left, others)
                else:
                    self._follow(code, on=False)
                    del self._followed[key]
            if not self.subscribers:
                self._end()
                self._followed.clear()
                self._unwanted.clear()

    def why_not_here(self) -> str | None:
        """Return why the calling thread is not traced, though there are subscribers; None where it is."""
        return None

    def _begin(self) -> str | None:
        """Begin to trace for the first subscriber; return why not, where that is impossible."""

    def _end(self) -> None:
        """Stop tracing; it may be called again."""

    def _ask_again(self) -> None:
        """Have Python report again what it was told to leave out: there is a new subscriber."""

    def _follow(self, code: CodeType, *, on: bool) -> None:
        """Have Python report a code object's lines, or no longer."""

    def _is_followed(self, frame: FrameType) -> bool:
        """Return whether this frame's code is followed, after asking every subscriber not yet asked."""
        code, unwanted, key = frame.f_code, self._unwanted, id(frame.f_code)
        if key in unwanted:
            return False
        with self._lock:
            _, followers, asked = self._followed.get(key, Followed(code))
            for subscriber in self.subscribers:
                if subscriber in asked:
                    continue
                try:
                    follower = subscriber.follow(frame)
                except Exception as error:
                    if is_from_a_handler(error):
                        raise
                    self._fail(subscriber, error)
                    continue
                asked = (*asked, subscriber)
                if follower is not None:
                    followers = (*followers, (subscriber, follower))
            if not followers:
                unwanted[key] = weakref.ref(code, lambda _: unwanted.pop(key, None))
                return False
            is_new = key not in self._followed
            self._followed[key] = Followed(code, followers, asked)
            if is_new:
                self._follow(code, on=True)
            return True

    def _report(self, what: str, frame: FrameType, began_s: float, *more: Any) -> None:
        followed = self._followed.get(id(frame.f_code))
        if followed is None:
            return
        now_s = began_s - this_thread.overhead_s
        try:
            for subscriber, follower in followed.followers:
                try:
                    getattr(follower, what)(frame, *more, now_s)
                except BaseException as error:
                    self._failed(subscriber, error)
        finally:
            this_thread.overhead_s += monotonic_s() - began_s

    def _failed(self, subscriber: LineProfiler, error: BaseException) -> None:
        """Raise what a signal handler of the user's raised in us; any error of ours ends the subscription."""
        if isinstance(error, RecursionError):  # the user's stack is full: no fault of ours
            subscriber.stack_was_full = True
        elif isinstance(error, Exception) and not is_from_a_handler(error):
            self._fail(subscriber, error)
        else:
            subscriber.cut_off(CUT_SHORT)
            raise error

    def _fail(self, subscriber: LineProfiler, error: Exception) -> None:
        try:
            self.unsubscribe(subscriber)
            subscriber.cut_off(f"lines are measured no further: {named(error)}")
        except Exception:
            pass  # nothing of ours may reach the user's code

    def after_fork_in_child(self) -> None:
        """Forget the parent's subscribers, and the lock, which another thread may have held."""
        self._lock = threading.RLock()
        for subscriber in self.subscribers:
            self.unsubscribe(subscriber)
