"""`gather`: the records of all ranks of a torch.distributed job on rank 0, for a scope or each epoch.

A rank writes its record to the job's key-value store and goes on; rank 0 reads what is there. No collective
operation takes part, so the other ranks do not wait for one that died, and no device is touched.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import threading
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..blocks.measure import Measure, warn
from ..records.measurement import Measurement
from ..records.process import Process, ProcessRecord
from .arrivals import packed
from .gathering import Attempt, Gathering, JobStore, StoreLostError

if TYPE_CHECKING:
    from ..analysis.group import Group


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
    collecting = post(record, label or name)
    return None if collecting is None else collecting.wait(timeout_s)


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
    """Send what this rank measured, without waiting; on rank 0 return what collects the others."""
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
            self.store.within(lambda: self.store.set(self.key(label, number, rank), value))
        except StoreLostError as reason:
            warn(f"what rank {rank} measured does not reach rank 0: {reason}")
        return None

    def key(self, label: str, number: int, rank: int | None) -> str:
        """Return under which key a rank sends the record of its so-many-th call for a label."""
        return f"{hashlib.sha256(label.encode(errors='replace')).hexdigest()[:16]}/{number}/{rank}"


_current: tuple[int, Any, Job] | None = None  # the process, its process group, and its place in that
_making = threading.Lock()


def _job() -> Job:
    """Return this process's place in its job; the same until another process group is set up.

    Raises:
        RuntimeError: The process is one of several and has no process group.
    """
    global _current  # noqa: PLW0603 - one for the process, as the process group is
    distributed, pid = _distributed(), os.getpid()
    if distributed is None:
        if _one_of_several_is_meant():
            raise RuntimeError(
                "gather() needs the process group of this job: call it between "
                "torch.distributed.init_process_group() and destroy_process_group()"
            )
        group, rank, size = None, 0, 1
    else:
        # A weak reference: the group ends when it is destroyed.
        group = weakref.ref(distributed.group.WORLD)
        rank, size = distributed.get_rank(), distributed.get_world_size()
    with _making:
        known_pid, known_group, job = _current or (None, None, None)
        if job is None or (known_pid, known_group) != (pid, group):  # a forked child has its own connection
            # Calls before there was a group, or before a fork, have no counterpart on the other ranks.
            before = job if known_pid == pid and known_group is not None else None
            job = Job(rank, size, JobStore(), before)
            _current = pid, group, job
        return job


def _one_of_several_is_meant() -> bool:
    """Return whether this process was started as one of several ranks."""
    size = os.environ.get("WORLD_SIZE", "")
    return size.isdecimal() and int(size) > 1


def _distributed() -> Any:
    """Return the module torch.distributed if it has a default process group, else None."""
    distributed: Any = sys.modules.get("torch.distributed")
    there = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if there else None
