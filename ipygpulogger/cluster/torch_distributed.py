"""The ranks of a torch.distributed job: `gather` brings what each measured to rank 0.

A rank writes its record to the job's key-value store and goes on; rank 0 reads what is there. No collective
operation takes part, so a rank that died keeps nobody waiting, and no device is touched.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import threading
import weakref
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from ..blocks.measure import Measure
from ..blocks.warn import warn
from ..records.group import Group, Missing
from ..records.measurement import Measurement
from ..records.process import Process, ProcessRecord
from ..runtime import clock
from .arrivals import MOST_BYTES, packed, unpacked
from .attempt import STAMP_BYTES, Attempt
from .job_store import JobStore, StoreLostError

if TYPE_CHECKING:
    from collections.abc import Callable

NOT_MEASURED = "not measured"
_NOT_VALID = "sent something that is not a record"
_TOO_OLD = "its record was sent before the job restarted, or its clock is behind that of rank 0"

_SLOWEST_LOOK_S, _FASTEST_LOOK_S = 0.1, 0.002
_POST_S = 5.0  # at most, for a rank to send its record; usually 0.1 ms
_LATE = 256  # keys that came too late, or never
_LONGEST_S = 1e6  # a thread cannot be waited for any longer


def gather(
    measured: Measure | Measurement | None, timeout_s: float = 30.0, *, label: str | None = None
) -> Group | None:
    """Bring what every rank of a torch.distributed job measured to rank 0.

    Every rank calls it. The n-th call for a label belongs to the n-th call for this label of each other
    rank, so the ranks may call it at different times and from different threads.

    In a program that is a single process, without torchrun and without a process group, it returns the group
    of this one process. So the same script runs with ``python`` and with ``torchrun``.

    Args:
        measured: What `measure` returned, after its block or call has ended; or any `Measurement`. None, or
            a block that could not be measured, is shown as missing.
        timeout_s: How long rank 0 waits for the other ranks. 0 takes what has arrived. Other ranks do not
            wait.
        label: What was measured; by default the label of the measurement. Of None without a label, that of
            this process's previous call.

    Returns:
        On rank 0 the records of all ranks in the order of their ranks, and which ranks are missing and why;
        printed, a table. None on the other ranks.

    Raises:
        RuntimeError: The process is one of several and has no process group, so that the others cannot be
            reached. Or nothing has been measured yet.
        TypeError: The argument is not a measurement.
    """
    record, name = _measurement(measured)
    gathering = post(record, label or name)
    return None if gathering is None else gathering.wait(timeout_s)


def _measurement(measured: object) -> tuple[Measurement | None, str | None]:
    """Return the measurement and its label, as far as they are known."""
    if isinstance(measured, Measure):
        return measured.last, measured.label
    if measured is not None and not isinstance(measured, Measurement):
        raise TypeError(
            f"gather() takes what measure() returned, a Measurement or None, not {type(measured).__name__}"
        )
    return measured, None if measured is None else measured.label


def post(measured: Measurement | None, label: str | None) -> Gathering | None:
    """Send what this rank measured, without waiting for others.

    Returns:
        On rank 0 what collects the records of the others; None elsewhere.
    """
    return _job().post(measured, label)


def is_one_of_several() -> bool:
    """Return whether this process is a rank of a process group that has others; imports nothing."""
    distributed = _distributed()
    return distributed is not None and distributed.get_world_size() > 1


class Job:
    """This process's place among the ranks."""

    def __init__(self, rank: int, size: int, store: Any, before: Job | None = None) -> None:
        self.size, self.store = size, store
        self.process = Process(socket.gethostname(), os.getpid(), rank)
        self.late: deque[str] = deque(maxlen=_LATE)  # keys to delete, once they are set
        self.attempt = Attempt()
        # Another process group may have the same store, with keys of the one before.
        self._calls: Counter[str] = Counter(before._calls if before else ())
        self._label: str | None = None  # of the previous call
        self._lock = threading.Lock()

    def post(self, measured: Measurement | None, label: str | None) -> Gathering | None:
        """Send what this rank measured; on rank 0 return what collects the others."""
        with self._lock:
            label = self._label = label or self._label
            number = self._calls[label or ""]
            if label is not None:
                self._calls[label] += 1
        record = None if measured is None else ProcessRecord.of(measured, self.process)
        rank = self.process.rank
        if rank == 0:
            return Gathering(self, label, number, record)
        if label is None:
            warn(f"rank {rank} has nothing to send: it was not measured, and gather() was given no label")
            return None
        value = self.attempt.stamp() + (b"" if record is None else packed(record))
        try:
            self.store.within(_POST_S, lambda: self.store.set(self.key(label, number, rank), value))
        except StoreLostError as reason:
            warn(f"what rank {rank} measured does not reach rank 0: {reason}")
        return None

    def key(self, label: str, number: int, rank: int | None) -> str:
        """Return under which key a rank sends the record of its so-many-th call for a label."""
        return f"{hashlib.sha256(label.encode(errors='replace')).hexdigest()[:16]}/{number}/{rank}"


class Gathering:
    """One call of `gather` on rank 0: the records that have arrived for it."""

    def __init__(self, job: Job, label: str | None, number: int, own: ProcessRecord | None) -> None:
        self._job, self._label = job, label
        self._records = {} if own is None else {0: own}
        self._missing = {0: NOT_MEASURED} if own is None else {}
        self._open = (
            {} if label is None else {rank: job.key(label, number, rank) for rank in range(1, job.size)}
        )
        self._old: set[int] = set()
        self._stopped = threading.Event()

    def complete(self) -> bool:
        """Return whether each rank has answered."""
        return not self._open

    def look(self, wait_s: float = _POST_S) -> bool:
        """Take the records if all have arrived, without waiting for any; return whether they have."""
        return self._within(wait_s, self._take_all)

    def wait(self, timeout_s: float, why: str = "") -> Group:
        """Wait for the records until each rank has answered or the time is over, and return them.

        Args:
            timeout_s: How long.
            why: What is said of a rank that has not answered; by default how long it was waited for.
        """
        until_s = clock.monotonic_s() + timeout_s

        def collect() -> bool:
            pause_s = _FASTEST_LOOK_S
            while not self._take_all() and (left_s := until_s - clock.monotonic_s()) > 0:
                if self._stopped.wait(min(pause_s, left_s)):
                    return False
                pause_s = min(1.5 * pause_s, _SLOWEST_LOOK_S)
            return self._take_each()

        try:
            self._within(min(timeout_s, _LONGEST_S) + _POST_S, collect)
        finally:
            self._stopped.set()  # also where the user interrupts
        return self.group(why or f"no answer within {timeout_s:g} s")

    def group(self, why: str = "no answer") -> Group:
        """Return what has arrived; the ranks that have not answered are missing for this reason."""
        if self._label is None:
            why = "rank 0 was not measured, and gather() was given no label"
        lost = self._job.store.lost
        silent = {rank: _TOO_OLD if rank in self._old else lost or why for rank in range(1, self._job.size)}
        records = list(self._records.values())
        told = {**{rank: why for rank, why in silent.items() if rank not in self._records}, **self._missing}
        missing = [Missing(f"rank {rank}", told[rank]) for rank in sorted(told)]
        self._job.late.extend(self._open.values())
        if lost and self._open:
            warn(f"rank 0 has no records of other ranks: {lost}")
        return Group(self._label or NOT_MEASURED, records, missing)

    def _within(self, wait_s: float, operation: Callable[[], bool]) -> bool:
        if not self._open:
            return True
        try:
            return bool(self._job.store.within(wait_s, operation))
        except StoreLostError:
            return False

    def _take_all(self) -> bool:
        """Take the records of all ranks that have not answered, if every one has: two questions for all."""
        if self._open and self._job.store.has(list(self._open.values())):
            self._take(list(self._open))
        return self.complete()

    def _take_each(self) -> bool:
        """Take what is there at the end, rank by rank, and delete what came too late for earlier calls."""
        self._take([rank for rank, key in self._open.items() if self._job.store.has([key])])
        for _ in range(len(self._job.late)):
            key = self._job.late.popleft()
            if not self._job.store.delete(key):
                self._job.late.append(key)
        return self.complete()

    def _take(self, ranks: list[int]) -> None:
        store = self._job.store
        for rank, value in zip(ranks, store.get([self._open[rank] for rank in ranks]), strict=True):
            stamp, line_end, payload = value[: STAMP_BYTES + MOST_BYTES].partition(b"\n")
            if self._job.attempt.is_later_than(stamp):
                self._old.add(rank)  # the rank may still send that of this attempt
                continue
            self._old.discard(rank)
            store.delete(self._open.pop(rank))
            record = unpacked(payload)
            if record is not None and record.rank == rank:
                self._records[rank] = record
            else:
                self._missing[rank] = _NOT_VALID if payload or not line_end else NOT_MEASURED


_current: tuple[object, Job] | None = None  # with the process and the process group that it is of
_making = threading.Lock()


def _job() -> Job:
    """Return this process's place in its job; the same until another process group is set up.

    Raises:
        RuntimeError: The process is one of several and has no process group.
    """
    global _current  # noqa: PLW0603 - one for the process, as the process group is
    distributed = _distributed()
    with _making:
        if distributed is None:
            several = int(os.environ.get("WORLD_SIZE") or 1) > 1
            if several:
                raise RuntimeError(
                    "gather() needs the process group of this job: call it between "
                    "torch.distributed.init_process_group() and destroy_process_group()"
                )
            key: Any = os.getpid(), None
            rank, size = 0, 1
        else:
            rank, size = distributed.get_rank(), distributed.get_world_size()
            key = (
                os.getpid(),
                weakref.ref(distributed.group.WORLD),
            )  # or it would live on when it is destroyed
        if _current is None or _current[0] != key:  # a forked child must not use its parent's connection
            _current = key, Job(rank, size, JobStore(), _current and _current[1])
        return _current[1]


def _distributed() -> Any:
    """Return the module torch.distributed if it has a default process group, else None."""
    distributed: Any = sys.modules.get("torch.distributed")
    there = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if there else None
