"""The key-value store of a torch.distributed job, through which its ranks found each other.

Every operation here ends after a time-out. A collective operation would wait for a rank that died; an
operation on the store waits where the machine of the store has stopped answering.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from ..records.units import shortened
from ..runtime.errors import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

ANSWER_S = 5.0  # at most, for a few operations; they usually take 0.1 ms
_PREFIX = "ipygpulogger"


class StoreLostError(Exception):
    """The store failed or did not answer. It is not asked again."""


class JobStore:
    """A connection of our own to the store of the default process group; opened when it is first needed.

    A connection of its own, because an operation of torch may hold the other one for minutes, such as the
    set-up of NCCL while it waits for all ranks.

    Attributes:
        lost: Why the store cannot be used any longer; empty while it can.
    """

    def __init__(self) -> None:
        self.lost = ""
        self._opened: Any = None
        self._opening = threading.Lock()

    def within(self, seconds: float, operation: Callable[[], T]) -> T:
        """Run an operation on another thread, for so long at most.

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
        thread.join(seconds)
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
