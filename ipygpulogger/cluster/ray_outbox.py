"""In a worker process of Ray: records on their way to the driver's mailbox.

A call of the mailbox costs as much as a short task. So the record of a task that ends is sent at once only if
none was sent shortly before, else with the next ones, by a thread that waits while nothing is to be sent.
Tasks that run for longer than a moment are announced, so that the driver knows of those that never end.
Records are not waited for. Only before a task that begins after a pause the mailbox must answer, in about a
millisecond: so the connection stands, and a watch that was stopped, or begun anew, is noticed.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..runtime import clock
from ..runtime.errors import named
from .ray_mailbox import BATCH_S, mailbox_name

if TYPE_CHECKING:
    from .ray_mailbox import Began, Ended

_ANNOUNCED_AFTER_S = 0.05
_FRESH_S = 0.25  # how long an answer of the mailbox holds, or that there is none: the driver may watch anew
_LONGEST_ANSWER_S = 5.0
_PAUSE_S = 60.0  # after a mailbox that exists did not answer
_MOST_UNANSWERED = 20  # calls
_MOST_WAITING = 5000  # records, of half a kilobyte usually; further ones are counted as lost
_MOST_IN_A_CALL = 500
_REASON = 200  # characters


class Outbox:
    """What this process has to tell the mailbox.

    Attributes:
        worker: What this process is called: "worker" and the beginning of its id in Ray.
    """

    def __init__(self) -> None:
        self.worker = ""
        self._node = ""
        self._mailbox: Any = None
        self._looked_s = self._sent_s = self._answered_s = -_FRESH_S
        self._sent = self._answered = 0  # numbers of calls
        self._unable = False
        self._lost = 0  # records, since the last call
        self._ended: deque[Ended] = deque()
        self._running: dict[str, tuple[str, float]] = {}  # those not announced: name, and since when
        self._lock = threading.Lock()
        self._something = threading.Event()
        self._thread: threading.Thread | None = None

    def stands(self) -> bool:
        """Return whether there is a mailbox. One that was not heard of for a moment is asked.

        Threads that call it meanwhile wait for the answer, or their tasks would run unmeasured.
        """
        if not self._is_known():
            with self._lock:
                if not self._is_known():  # still, and not by the answer to another thread
                    self._find_out()
        return self._mailbox is not None

    def _is_known(self) -> bool:
        known_s = self._looked_s if self._mailbox is None else self._answered_s
        return clock.monotonic_s() - known_s < _FRESH_S

    def _find_out(self) -> None:
        if self._mailbox is not None:
            self._ask(self._mailbox)
        if self._mailbox is None and clock.monotonic_s() > self._looked_s:
            try:
                self._look()
            finally:  # not before, for until then the answer is not known
                self._looked_s = max(self._looked_s, clock.monotonic_s())

    def _ask(self, mailbox: Any) -> None:
        """Wait for an answer of the mailbox, and keep it if one comes."""
        number = self._sent
        try:
            # Not `ray.get`, which would free this task's CPU for others, and complains in async actors.
            mailbox.hello.remote().future().result(_LONGEST_ANSWER_S)
        except NoAnswer:
            self._mailbox, self._looked_s = None, clock.monotonic_s() + _PAUSE_S
        except Exception:  # it was stopped
            self._mailbox = None
        else:  # to all earlier calls too, since it takes them in their order
            self._answered, self._answered_s = max(self._answered, number), clock.monotonic_s()
            self._mailbox = mailbox

    def _look(self) -> None:
        import ray

        context = ray.get_runtime_context()
        try:
            mailbox = ray.get_actor(mailbox_name(context.get_job_id()))
        except ValueError:  # no watch is running
            return
        self.worker, self._node = f"worker {context.get_worker_id()[:8]}", context.get_node_id()
        self._sent = self._answered = 0
        self._ask(mailbox)
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_later, name="ipygpulogger-ray", daemon=True)
            self._thread.start()

    def began(self, task: str, name: str) -> None:
        """Note that a task began; it is announced if it runs for longer."""
        self._running[task] = name, clock.monotonic_s()
        self._something.set()

    def ended(self, task: str, record: bytes | None, needed_bytes: int, *, at_once: bool) -> None:
        """Send the record of a task that ended, now or with the next ones.

        Args:
            task: Its id.
            record: The packed record; None if the task could not be measured.
            needed_bytes: What it needed, see `most_needed_bytes`.
            at_once: Send it now, for this process may end with the task.
        """
        self._running.pop(task, None)
        if len(self._ended) < _MOST_WAITING:
            self._ended.append((task, record, needed_bytes))
        else:
            self._lost += 1
        if at_once or clock.monotonic_s() - self._sent_s >= BATCH_S:
            self._send()
        self._something.set()  # also if it was sent: more may have come meanwhile

    def unable(self, error: Exception) -> None:
        """Tell the driver, once, why this process measures nothing; never raises."""
        if not self._unable:
            self._unable = True
            with suppress(Exception):
                import ray

                mailbox = ray.get_actor(mailbox_name(ray.get_runtime_context().get_job_id()))
                mailbox.cannot.remote(socket.gethostname(), named(error)[:_REASON])

    def _send_later(self) -> None:
        while True:
            self._something.wait()
            self._something.clear()
            while self._ended or self._running:
                time.sleep(BATCH_S)
                try:
                    self._send()
                except Exception:  # Ray ends in this process
                    self._ended.clear()

    def _send(self) -> None:
        with self._lock:
            mailbox, now_s = self._mailbox, clock.monotonic_s()
            long = [task for task, (_, s) in list(self._running.items()) if now_s - s >= _ANNOUNCED_AFTER_S]
            if mailbox is None:
                self._running.clear()
                self._ended.clear()
                return
            if not (self._ended or long) or self._sent - self._answered > _MOST_UNANSWERED:
                return
            began: list[Began] = [
                (task, f"{known[0]} on {self.worker}")
                for task in long
                if (known := self._running.pop(task, None))  # it may end just now
            ]
            ended = [self._ended.popleft() for _ in range(min(len(self._ended), _MOST_IN_A_CALL))]
            lost, self._lost = self._lost, 0
            self._sent, self._sent_s = self._sent + 1, now_s
            number = self._sent

        def answered(answer: Any) -> None:
            if self._mailbox is not mailbox:
                return  # another one has its own numbers
            if answer.exception() is None:
                self._answered, self._answered_s = max(self._answered, number), clock.monotonic_s()
            else:  # stopped, or out of reach: perhaps there is another one
                self._looked_s = -_FRESH_S  # first, or another thread would take it that no watch is running
                self._mailbox = None

        mailbox.take.remote(os.getpid(), self._node, began, ended, lost).future().add_done_callback(answered)


outbox = Outbox()
