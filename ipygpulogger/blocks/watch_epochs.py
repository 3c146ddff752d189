"""`watch_epochs`: measures each iteration of a training loop."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from ..runtime.output import say
from .epoch_record import doubts
from .epoch_scope import EpochScope

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sized

    from .epoch_record import EpochRecord

T = TypeVar("T")

_HEADER = "epoch        time  cpu used      peak  gpu used      peak"


@final
class WatchedEpochs(Generic[T]):
    """What `watch_epochs` returns: the same items to loop over, and what was measured.

    Attributes:
        history: The epochs that ended, each an `EpochRecord`.
    """

    def __init__(self, items: Iterable[T], *, report: bool, device: Any = None) -> None:
        self.history: list[EpochRecord] = []
        self._items, self._report, self._device = items, report, device

    def __len__(self) -> int:
        items: Sized = self._items  # type: ignore[assignment] # without a length, this raises its own error
        return len(items)

    def __iter__(self) -> Iterator[T]:
        scope, items, rows = EpochScope(), iter(self._items), 0
        try:
            for i in count():
                scope.begin()  # before the item is fetched, so that this is part of the epoch
                try:
                    item = [next(items)]
                except StopIteration:
                    return
                name = str(item[0]) if isinstance(item[0], int) else str(i)
                yield item.pop()  # no reference to it stays here
                record = scope.end(f"epoch {name}", self._device, marked=self._report)
                if record is None:
                    continue
                self.history.append(record)
                if self._report:
                    say(("" if rows else f"{_HEADER}\n") + _row(name, record))
                    rows += 1
        finally:
            scope.drop()


def _row(name: str, record: EpochRecord) -> str:
    figures = "".join(f"{figure:>10}" for figure in record.memory())
    remarks = "".join(f" ({doubt})" for doubt in doubts(record))
    return f"{name:>5}{record.time_s:>11.3f}s{figures} MB{remarks}"


def watch_epochs(epochs: Iterable[T], report: bool = True, device: Any = None) -> WatchedEpochs[T]:
    """Measure each iteration of a loop: the general RAM and GPU RAM that it kept, and its transient peak.

    An iteration begins before its item is fetched and ends when the loop requests the next. One that is left
    by ``break``, by an exception or by an interrupt is not recorded.

    Args:
        epochs: What to loop over; the items are passed on unchanged.
        report: Print a row of a table after each iteration, in MB.
        device: Where the training runs: "cuda:1", a `torch.device`; by default the device whose memory
            changed most. ``history`` has all of them.

    Returns:
        The same items to loop over; ``history`` holds an `EpochRecord` for each iteration that ended.

    Example:
        ``for epoch in watch_epochs(range(3)): train()``
    """
    return WatchedEpochs(epochs, report=report, device=device)
