"""`gather`: the records of all ranks of a torch.distributed job on rank 0.

A rank writes its record to the job's key-value store and goes on; rank 0 reads what is there. No collective
operation takes part, which would wait for a rank that died, and no device is touched.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import threading
import time
import weakref
from collections import Counter
from datetime import timedelta
from typing import Any

from ..analysis.group import Group, Missing
from ..blocks.measure import Measure, warn
from ..records.measurement import Measurement
from ..records.process import Process, ProcessRecord
from ..records.units import shortened
from ..runtime import clock
from ..runtime.errors import first_line
from .arrivals import packed, unpacked

_CONNECT_S = 5.0  # at most
_SLOWEST_POLL_S, _FASTEST_POLL_S = 0.1, 0.002
_NOT_MEASURED = "not measured"
_NOT_VALID = "sent something that is not a record"
_current: tuple[Any, Job] | None = None  # the process group, and the place of this process in it
_making = threading.Lock()


def gather(
    measured: Measure | Measurement | None, timeout_s: float = 30.0, *, label: str | None = None
) -> Group | None:
    """Bring what every rank of a torch.distributed job measured to rank 0.

    Every rank calls it. The n-th call for a label belongs to the n-th call for this label of each other
    rank, so the ranks may call it at different times and from different threads. In a program of a single
    process, run without torchrun, it returns the group of this one process.

    Args:
        measured: What `measure` returned, after its block or call has ended; or any `Measurement`. None, or
            a block that could not be measured, is shown as missing; None needs the label of the others.
        timeout_s: How long rank 0 waits for the others, which do not wait. 0 takes what has arrived.
        label: What was measured; by default the label of the measurement.

    Returns:
        On rank 0 the records of all ranks in the order of their ranks, and which ranks are missing and why;
        printed, a table. None on the other ranks.

    Raises:
        RuntimeError: The process is one of several and has no process group, so that the others cannot be
            reached. Or nothing has been measured yet.
        TypeError: The argument is not a measurement.
    """
    record = measured.last if isinstance(measured, Measure) else measured
    if record is not None and not isinstance(record, Measurement):
        kind = type(measured).__name__
        raise TypeError(f"gather() takes what measure() returned, a Measurement or None, not {kind}")
    gathering = _job().post(record, label or (_NOT_MEASURED if measured is None else measured.label))
    return None if gathering is None else gathering.wait(timeout_s)


class Job:
    """This process's place among the ranks, and its connection to the store of the job."""

    # That is opened when it is first needed. It is one of its own, because an operation of torch may hold the
    # other one for minutes, such as the set-up of NCCL while it waits for all ranks.
    def __init__(self, rank: int, size: int, store: Any = None, calls: Counter[str] | None = None) -> None:
        self.size = size
        self._store = store
        self.lost: str = ""  # why the store cannot be used any longer; then it is not asked again
        self.process: Process = Process(socket.gethostname(), os.getpid(), rank)
        # By label. Another process group may have the same store, with keys of the one before.
        self.calls: Counter[str] = calls or Counter()
        self._lock = threading.Lock()
        # The store may stay when torchrun restarts the job: what a rank sent before is not taken.
        self._attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")

    def post(self, measured: Measurement | None, label: str) -> Gathering | None:
        """Send what this rank measured; on rank 0 return what collects the others."""
        with self._lock:
            number = self.calls[label]
            self.calls[label] += 1
        record = None if measured is None else ProcessRecord.of(measured, self.process)
        rank = self.process.rank
        if rank == 0:
            return Gathering(self, label, number, record)
        key, value = self.key(label, number, rank), b"" if record is None else packed(record)
        self.ask("set", key, value)  # over TCP this waits for nothing
        if self.lost:
            warn(f"what rank {rank} measured does not reach rank 0: {self.lost}")
        return None

    def key(self, label: str, number: int, rank: int | None) -> str:
        """Return under which key a rank sends the record of its so-many-th call for a label."""
        digest = hashlib.sha256(label.encode(errors="replace")).hexdigest()[:16]
        return f"{digest}/{number}/{rank}/{self._attempt}"

    def ask(self, method: str, *args: Any) -> Any:
        """Return what a method of the store returns; None if the store is lost, now or before."""
        if self.lost:
            return None
        try:
            with self._lock:
                if self._store is None:
                    self._store = _connection()
            return getattr(self._store, method)(*args)
        except Exception as reason:
            if method != "delete_key":  # a `FileStore` has none
                self.lost = f"the job's store cannot be reached: {shortened(first_line(reason))}"
            return None


def _job() -> Job:
    """Return this process's place in its job; the same until another process group is set up."""
    global _current  # noqa: PLW0603 - one for the process, as the process group is
    distributed, group, place = _distributed(), None, (0, 1)
    if distributed is not None:
        # A weak reference: the group ends when it is destroyed.
        group = weakref.ref(distributed.group.WORLD)
        place = distributed.get_rank(), distributed.get_world_size()
    elif (size := os.environ.get("WORLD_SIZE", "")).isdecimal() and int(size) > 1:
        between = "torch.distributed.init_process_group() and destroy_process_group()"
        raise RuntimeError(f"gather() needs the process group of this job: call it between {between}")
    with _making:
        known_group, job = _current or (None, None)
        is_ours = job is not None and job.process.pid == os.getpid()  # a forked child has its own connection
        if job is None or not is_ours or known_group != group:
            # Calls before there was a group, or before a fork, have no counterpart on the other ranks.
            calls = job.calls if job and is_ours and known_group is not None else None
            job = Job(*place, calls=calls)
            _current = group, job
        return job


def _distributed() -> Any:
    found: Any = sys.modules.get("torch.distributed")
    return found if found is not None and found.is_available() and found.is_initialized() else None


def _connection() -> Any:
    """Return a connection to the store of the default process group, where our keys are apart from others."""
    # `rendezvous("env://")` would make a new server in rank 0, and knows only groups set up by variables.
    distributed: Any = sys.modules["torch.distributed"]
    store = distributed.distributed_c10d._get_default_store()
    while isinstance(store, distributed.PrefixStore):
        store = store.underlying_store
    if isinstance(store, distributed.TCPStore):
        limit = timedelta(seconds=_CONNECT_S)
        where = {"host_name": store.host, "port": store.port}
        store = distributed.TCPStore(**where, is_master=False, wait_for_workers=False, timeout=limit)
    return distributed.PrefixStore("ipygpulogger", store)


class Gathering:
    """The records of one call that have arrived on rank 0."""

    def __init__(self, job: Job, label: str, number: int, own: ProcessRecord | None) -> None:
        self._job, self._label = job, label
        self._records = {} if own is None else {0: own}
        self._missing = {0: _NOT_MEASURED} if own is None else {}
        self._open = {rank: job.key(label, number, rank) for rank in range(1, job.size)}

    def wait(self, timeout_s: float) -> Group:
        """Wait for the records until each rank has answered or the time is over, and return them."""
        until_s, pause_s = clock.monotonic_s() + timeout_s, _FASTEST_POLL_S
        while self._open and not (self._is_there(*self._open) or self._job.lost):
            if (left_s := until_s - clock.monotonic_s()) <= 0:
                break
            time.sleep(min(pause_s, left_s))
            pause_s = min(1.5 * pause_s, _SLOWEST_POLL_S)
        for rank in [rank for rank in self._open if self._is_there(rank)]:
            if (value := self._job.ask("get", self._open[rank])) is None:
                break
            record = unpacked(bytes(value))
            self._job.ask("delete_key", self._open.pop(rank))
            if record is not None and record.rank == rank:
                self._records[rank] = record
            else:
                self._missing[rank] = _NOT_VALID if value else _NOT_MEASURED
        why = f"no answer within {timeout_s:g} s"
        if self._job.lost and self._open:
            warn(f"rank 0 has no records of other ranks: {self._job.lost}")
        reasons = dict.fromkeys(range(1, self._job.size), self._job.lost or why) | self._missing
        lacking = sorted(reasons.keys() - self._records.keys())
        missing = [Missing(f"rank {rank}", reasons[rank]) for rank in lacking]
        return Group(self._label, self._records.values(), missing)

    def _is_there(self, *ranks: int) -> bool:
        return bool(self._job.ask("check", [self._open[rank] for rank in ranks]))
