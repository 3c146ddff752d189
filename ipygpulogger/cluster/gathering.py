"""`Gathering`: one call of `gather` on rank 0, which collects what the other ranks have sent for it."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from ..blocks.warn import warn
from ..records.group import Group, Missing
from ..runtime import clock
from . import job_store
from .arrivals import MOST_BYTES, unpacked
from .attempt import STAMP_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..records.process import ProcessRecord
    from .torch_distributed import Job

_NOT_MEASURED = "not measured"
_NOT_VALID = "sent something that is not a record"
_TOO_OLD = "its record was sent before the job restarted, or its clock is behind that of rank 0"

_SILENT_S = 0.1  # for which a rank is waited for that was waited for in vain before
_STILL_SILENT = f"did not answer the previous gather either, so it was waited for {_SILENT_S:g} s only"

_SLOWEST_LOOK_S, _FASTEST_LOOK_S = 0.1, 0.002
_LONGEST_S = 1e6  # a thread cannot be waited for any longer


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
        self._silent: set[int] = set()
        self._stopped = threading.Event()

    def complete(self) -> bool:
        """Return whether each rank has answered."""
        return not self._open

    def look(self) -> bool:
        """Take the records if all have arrived, without waiting for any; return whether they have."""
        return self._within(job_store.ANSWER_S, lambda: self._take_together(list(self._open)))

    def wait(self, timeout_s: float, why: str = "") -> Group:
        """Wait for the records until each rank has answered or the time is over, and return them.

        A rank that was waited for so long in vain, and has not answered since, does not cost the time again.

        Args:
            timeout_s: How long.
            why: What is said of a rank that has not answered; by default how long it was waited for.
        """
        now_s = clock.monotonic_s()

        def collect() -> bool:
            self._delete_late()
            if timeout_s > _SILENT_S:
                known = self._job.silent_s
                self._silent = {rank for rank in self._open if known.get(rank, 0.0) >= timeout_s}
            if self._silent:
                self._await(list(self._open), now_s + _SILENT_S)
            self._await([rank for rank in self._open if rank not in self._silent], now_s + timeout_s)
            return not self._stopped.is_set() and self._take_each()

        try:
            self._within(min(timeout_s, _LONGEST_S) + job_store.ANSWER_S, collect)
        finally:
            self._stopped.set()  # also where the user interrupts
        for rank in list(self._open):  # a thread that hangs may change it
            self._job.silent_s[rank] = max(timeout_s, self._job.silent_s.get(rank, 0.0))
        return self.group(why or f"no answer within {timeout_s:g} s", why or _STILL_SILENT)

    def group(self, why: str = "no answer", why_again: str = "") -> Group:
        """Return what has arrived; the ranks that have not answered are missing for this reason.

        Args:
            why: Of a rank that has not answered.
            why_again: Of one that had not answered before.
        """
        if self._label is None:
            why = "rank 0 was not measured, and gather() was given no label"
        lost = self._job.store.lost
        silent = {
            rank: _TOO_OLD if rank in self._old else lost or (why_again if rank in self._silent else why)
            for rank in range(1, self._job.size)
        }
        records = list(self._records.values())
        told = {**{rank: why for rank, why in silent.items() if rank not in self._records}, **self._missing}
        missing = [Missing(f"rank {rank}", told[rank]) for rank in sorted(told)]
        self._job.late.extend(list(self._open.items()))
        if lost and self._open:
            warn(f"rank 0 has no records of other ranks: {lost}")
        return Group(self._label or _NOT_MEASURED, records, missing)

    def _within(self, wait_s: float, operation: Callable[[], bool]) -> bool:
        if not self._open:
            return True
        try:
            return bool(self._job.store.within(wait_s, operation))
        except job_store.StoreLostError:
            return False

    def _await(self, ranks: list[int], until_s: float) -> None:
        """Take the records of these ranks once all have answered; return then, or when the time is over."""
        pause_s = _FASTEST_LOOK_S
        while not self._take_together(ranks) and (left_s := until_s - clock.monotonic_s()) > 0:
            if self._stopped.wait(min(pause_s, left_s)):
                return
            pause_s = min(1.5 * pause_s, _SLOWEST_LOOK_S)

    def _take_together(self, ranks: list[int]) -> bool:
        """Take the records of ranks if every one has answered: two questions for all. Return whether so."""
        ranks = [rank for rank in ranks if rank in self._open]
        if ranks and self._job.store.has([self._open[rank] for rank in ranks]):
            self._take(ranks)
        return not any(rank in self._open for rank in ranks)

    def _take_each(self) -> bool:
        """Take what is there at the end, rank by rank."""
        self._take([rank for rank, key in self._open.items() if self._job.store.has([key])])
        return self.complete()

    def _delete_late(self) -> None:
        """Delete what came too late for earlier calls; the ranks that sent it are alive."""
        unset = set()  # a rank sends the records of one label in order: no later one is there either
        with suppress(IndexError):  # another thread gathers too
            for _ in range(len(self._job.late)):
                rank, key = self._job.late.popleft()
                series = rank, key.partition("/")[0]
                if series not in unset and self._job.store.delete(key):
                    self._job.silent_s.pop(rank, None)
                else:
                    unset.add(series)
                    self._job.late.append((rank, key))

    def _take(self, ranks: list[int]) -> None:
        store = self._job.store
        for rank, value in zip(ranks, store.get([self._open[rank] for rank in ranks]), strict=True):
            stamp, line_end, payload = value[: STAMP_BYTES + MOST_BYTES].partition(b"\n")
            if self._job.attempt.is_later_than(stamp):
                self._old.add(rank)  # the rank may still send that of this attempt
                continue
            self._old.discard(rank)
            store.delete(self._open.pop(rank))
            self._job.silent_s.pop(rank, None)
            record = unpacked(payload)
            if record is not None and record.rank == rank:
                self._records[rank] = record
            else:
                self._missing[rank] = _NOT_VALID if payload or not line_end else _NOT_MEASURED
