"""The epochs of a training that runs as several ranks: for each one, what every rank used."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ..blocks.warn import warn
from ..runtime import clock
from .torch_distributed import is_one_of_several, post

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..records.group import Group
    from ..records.measurement import Measurement
    from .gathering import Gathering

_END_S = 5.0  # for which rank 0 waits at the end of the training, if a rank has not sent its last epochs


class RankEpochs:
    """Bring the epochs of all ranks to rank 0, without waiting for any rank while the training runs.

    Never raises. A copy, such as a pickled callback makes, has the epochs that were complete.

    Attributes:
        groups: A `Group` for each epoch, on rank 0; empty elsewhere and where there is one process.
    """

    def __init__(self, groups: list[Group]) -> None:
        self.groups = groups
        self._open: deque[Gathering] = deque()
        self._begun = False

    def begin(self) -> None:
        """Begin an epoch."""
        self._begun = True

    def add(self, record: Measurement | None, label: str) -> None:
        """Send what this rank used in an epoch that has ended, and take what others have sent; once an epoch.

        Args:
            record: None if it could not be measured.
            label: The name of the epoch.
        """
        _quietly(lambda: self._add(record, label))

    def finish(self, wait_s: float = _END_S) -> None:
        """Take the last epochs; a rank that sends nothing for so long is missing from them."""
        _quietly(lambda: self._finish(wait_s))

    def _add(self, record: Measurement | None, label: str) -> None:
        if not self._begun:
            return
        self._begun = False
        if is_one_of_several() and (gathering := post(record, label)) is not None:
            self._open.append(gathering)
            while self._open and self._open[0].look():
                self.groups.append(self._open.popleft().group())

    def _finish(self, wait_s: float) -> None:
        self._begun = False
        until_s = clock.monotonic_s() + wait_s
        while self._open:
            left_s = max(0.0, until_s - clock.monotonic_s())
            self.groups.append(self._open.popleft().wait(left_s, "no answer by the end of the training"))

    def __reduce__(self) -> tuple[type[RankEpochs], tuple[list[Group]]]:
        return RankEpochs, (self.groups,)


def _quietly(step: Callable[[], None]) -> None:
    try:
        step()
    except Exception as reason:  # the training goes on
        warn(f"what other ranks used is unknown: {reason}")
