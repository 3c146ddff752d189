"""Gathering the records of all processes of a job, through the job's own store.

Every operation here ends after a time-out. A collective operation would wait for a rank that died; an
operation on the store waits where the machine of the store has stopped answering.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from ..analysis.group import Group, Missing
from ..blocks.measure import warn
from ..records.units import shortened
from ..runtime import clock
from ..runtime.errors import first_line
from .arrivals import MOST_BYTES, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..records.process import ProcessRecord
    from .torch_distributed import Job

T = TypeVar("T")

ANSWER_S = 5.0  # at most, for a few operations; they usually take 0.1 ms
_LONGEST_S = 1e6  # a thread cannot be waited for any longer
_PREFIX = "ipygpulogger"


class StoreLostError(Exception):
    """The store failed or did not answer. It is not asked again."""


class JobStore:
    """A connection of our own to the store of the default process group; opened when it is first needed.

    A connection of its own, because an operation of torch may hold the other one for minutes, such as the
    set-up of NCCL while it waits for all ranks.
    """

    def __init__(self) -> None:
        self.lost = ""  # why the store cannot be used any longer
        self._opened: Any = None
        self._opening = threading.Lock()

    def within(self, operation: Callable[[], T], wait_s: float = 0.0) -> T:
        """Run an operation on another thread, for `ANSWER_S` and what it waits itself at most.

        Raises:
            StoreLostError: It failed, or has not ended by then. So does each that follows, at once.
        """
        if self.lost:
            raise StoreLostError(self.lost)
        results: list[T] = []

        def run() -> None:
            try:
                results.append(operation())
            except Exception as reason:
                self.lost = f"the job's store cannot be reached: {shortened(first_line(reason))}"

        try:
            thread = threading.Thread(target=run, name="ipygpulogger ranks", daemon=True)
            thread.start()
        except RuntimeError as reason:  # no further thread
            raise StoreLostError(str(reason)) from None
        thread.join(min(wait_s, _LONGEST_S) + ANSWER_S)
        if not results:
            self.lost = self.lost or "the job's store does not answer"
            raise StoreLostError(self.lost)
        return results[0]

    def set(self, key: str, value: bytes) -> None:
        """Set a key. Over TCP this sends, and waits for nothing."""
        self._store().set(key, value)

    def has(self, keys: Sequence[str]) -> bool:
        """Return whether all of these keys are set."""
        return bool(self._store().check(list(keys)))

    def get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values of keys that are set."""
        store = self._store()
        if len(keys) > 1 and store.has_extended_api():
            return list(map(bytes, store.multi_get(list(keys))))
        return [bytes(store.get(key)) for key in keys]

    def delete(self, key: str) -> bool:
        """Delete a key, where this kind of store can; return whether it was set."""
        with suppress(RuntimeError, NotImplementedError):  # a `FileStore` cannot
            return bool(self._store().delete_key(key))
        return False

    def _store(self) -> Any:
        with self._opening:
            if self._opened is None:
                self._opened = _opened(ANSWER_S)
            return self._opened


def _opened(timeout_s: float) -> Any:
    """Return a connection to the store of the default process group, where our keys are apart from others."""
    distributed: Any = sys.modules["torch.distributed"]
    store = _of_the_group(distributed)
    while isinstance(store, distributed.PrefixStore):
        store = store.underlying_store
    if isinstance(store, distributed.TCPStore):
        limit = timedelta(seconds=timeout_s)
        where = {"host_name": store.host, "port": store.port}
        store = distributed.TCPStore(**where, is_master=False, wait_for_workers=False, timeout=limit)
    return distributed.PrefixStore(_PREFIX, store)


def _of_the_group(distributed: Any) -> Any:
    """Return the store of the default process group, however the group was set up.

    `rendezvous("env://")` would make a new server in rank 0, and knows only groups that were set up by
    environment variables.
    """
    ask = getattr(distributed.group.WORLD, "get_group_store", None)
    if ask is not None:
        return ask()
    return distributed.distributed_c10d._get_default_store()  # before torch 2.8


_STAMP_BYTES = 48  # at most
_CLOCK_S = 2.0  # what the clocks of two machines may differ by, and the resolution of a process's start


class Attempt:
    """One run of the job between two restarts by torchrun, as this rank sees it.

    The job's store may stay when torchrun restarts it, with what the ranks left there, while all ranks run as
    new processes. TORCHELASTIC_RESTART_COUNT does not distinguish the attempts of a whole job, because the
    agent of each machine counts only the restarts that its own ranks caused. So what another machine sent is
    compared by its time.
    """

    def __init__(self) -> None:
        environ = os.environ
        self._machine = environ.get("GROUP_RANK", "0"), environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._began_s = 0.0
        if "TORCHELASTIC_RUN_ID" in environ:
            import psutil

            with suppress(psutil.Error):
                self._began_s = psutil.Process().create_time() - _CLOCK_S

    def stamp(self) -> bytes:
        """Return the line before a record that says when and where it was sent."""
        return f"{clock.wall_s():.3f} {' '.join(self._machine)}\n".encode()

    def is_later_than(self, stamp: bytes) -> bool:
        """Return whether a record was sent before this attempt; an invalid stamp is of no attempt."""
        try:
            sent_s, group, count = stamp.decode().split(" ")
            early = float(sent_s) < self._began_s
        except ValueError:
            return False
        return early or (group == self._machine[0] and count != self._machine[1])


_NOT_MEASURED = "not measured"
_NOT_VALID = "sent something that is not a record"
_TOO_OLD = "its record was sent before the job restarted, or its clock is behind that of rank 0"

_SLOWEST_POLL_S, _FASTEST_POLL_S = 0.1, 0.002


class Gathering:
    """The records of one call that have arrived on rank 0."""

    def __init__(self, job: Job, label: str | None, number: int, own: ProcessRecord | None) -> None:
        self._job, self._label = job, label
        self._records = {} if own is None else {0: own}
        self._missing = {0: _NOT_MEASURED} if own is None else {}
        self._open = (
            {} if label is None else {rank: job.key(label, number, rank) for rank in range(1, job.size)}
        )
        self._old: set[int] = set()
        self._stopped = threading.Event()

    def poll(self) -> bool:
        """Take the records if all have arrived, without waiting for any; return whether they have."""
        return self._within(self._take_together)

    def wait(self, timeout_s: float, why: str = "") -> Group:
        """Wait for the records until each rank has answered or the time is over, and return them.

        The reason is that of a rank that has not answered; by default how long it was waited for.
        """
        until_s = clock.monotonic_s() + timeout_s
        try:
            self._within(lambda: self._await(until_s), timeout_s)
        finally:
            self._stopped.set()  # also where the user interrupts
        return self.group(why or f"no answer within {timeout_s:g} s")

    def group(self, why: str = "no answer") -> Group:
        """Return what has arrived; the ranks that have not answered are missing for this reason."""
        if self._label is None:
            why = "rank 0 was not measured, and gather() was given no label"
        lost = self._job.store.lost
        reasons = dict(self._missing)
        for rank in range(1, self._job.size):
            if rank not in self._records and rank not in reasons:
                reasons[rank] = _TOO_OLD if rank in self._old else lost or why
        missing = [Missing(f"rank {rank}", reasons[rank]) for rank in sorted(reasons)]
        if lost and self._open:
            warn(f"rank 0 has no records of other ranks: {lost}")
        return Group(self._label or _NOT_MEASURED, list(self._records.values()), missing)

    def _within(self, operation: Callable[[], bool], wait_s: float = 0.0) -> bool:
        if not self._open:
            return True
        try:
            return bool(self._job.store.within(operation, wait_s))
        except StoreLostError:
            return False

    def _await(self, until_s: float) -> bool:
        """Take the records once all ranks have answered, or those that are there when the time is over."""
        pause_s = _FASTEST_POLL_S
        while not self._take_together() and (left_s := until_s - clock.monotonic_s()) > 0:
            if self._stopped.wait(min(pause_s, left_s)):
                return False
            pause_s = min(1.5 * pause_s, _SLOWEST_POLL_S)
        self._take([rank for rank, key in self._open.items() if self._job.store.has([key])])
        return not self._open

    def _take_together(self) -> bool:
        """Take the records if every rank has answered: two questions for all. Return whether so."""
        if self._open and self._job.store.has(list(self._open.values())):
            self._take(list(self._open))
        return not self._open

    def _take(self, ranks: list[int]) -> None:
        store = self._job.store
        for rank, value in zip(ranks, store.get([self._open[rank] for rank in ranks]), strict=True):
            stamp, line_end, payload = value[: _STAMP_BYTES + MOST_BYTES].partition(b"\n")
            if self._job.attempt.is_later_than(stamp):
                self._old.add(rank)  # the rank may still send that of this attempt
                continue
            self._old.discard(rank)
            store.delete(self._open.pop(rank))
            record = unpacked(payload)
            if record is not None and record.rank == rank:
                self._records[rank] = record
            else:
                self._missing[rank] = _NOT_VALID if payload or not line_end else _NOT_MEASURED
