"""Adapters that show an epoch's memory in the training framework's own way, each with its framework.

Each has ``history``: an `EpochRecord` for every epoch that ended. In a training that runs as several ranks of
torch.distributed, ``ranks`` on rank 0 has a `Group` for each epoch, at the end of the training at the latest.
"""

from __future__ import annotations

import sys
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..blocks.measure import warn
from ..blocks.watch_epochs import EpochScope
from ..cluster.torch_distributed import is_one_of_several, post
from ..runtime import clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..analysis.group import Group
    from ..blocks.watch_epochs import EpochRecord
    from ..cluster.torch_distributed import Gathering


_END_S = 5.0  # for which rank 0 waits at the end of the training, if a rank has not sent its last epochs


class Epochs:
    """What every adapter measures: the epochs of this process, and on rank 0 those of all ranks.

    It never raises, and waits for no rank while the training runs. A copy, such as a pickled callback makes,
    has the epochs that were complete.
    """

    def __init__(self, history: list[EpochRecord] | None = None, ranks: list[Group] | None = None) -> None:
        self.history: list[EpochRecord] = [] if history is None else history
        self.ranks: list[Group] = [] if ranks is None else ranks
        self.scope = EpochScope()
        self._gatherings: deque[Gathering] = deque()  # of the epochs that not all ranks have sent
        self._has_begun = False  # also if it could not be measured: the other ranks count it

    def begin(self) -> None:
        """Begin an epoch."""
        self.scope.begin()
        self._has_begun = True

    def end(self, number: int, device: Any) -> EpochRecord | None:
        """End the epoch, and return its record; None if none was open, or it could not be measured."""
        label = f"epoch {number}"
        record = self.scope.end(label, device)
        if record is not None:
            self.history.append(record)
        if self._has_begun:
            self._has_begun = False
            with _warning():
                self._share(record, label)
        return record

    def _share(self, record: EpochRecord | None, label: str) -> None:
        """Send what this rank used in an epoch, and on rank 0 take what all have sent."""
        if not is_one_of_several() or (gathering := post(record, label)) is None:
            return
        self._gatherings.append(gathering)
        while self._gatherings and self._gatherings[0].poll():
            self.ranks.append(self._gatherings.popleft().group())

    def finish(self, wait_s: float = _END_S) -> None:
        """Drop the open epoch, and take the last ones of the other ranks, for which this waits so long."""
        self.scope.within(None)
        self._has_begun = False
        until_s = clock.monotonic_s() + wait_s
        with _warning():
            while self._gatherings:
                left_s = max(0.0, until_s - clock.monotonic_s())
                gathering = self._gatherings.popleft()
                self.ranks.append(gathering.wait(left_s, "no answer by the end of the training"))

    def __reduce__(self) -> tuple[Any, ...]:
        return Epochs, (self.history, self.ranks)


@contextmanager
def _warning() -> Iterator[None]:
    """Warn where a step fails that concerns other ranks; the training goes on."""
    try:
        yield
    except Exception as reason:
        warn(f"what other ranks used is unknown: {reason}")


def not_installed(error: ModuleNotFoundError, package: str, adapter: str) -> ImportError:
    """Return the error to raise if an adapter's framework cannot be imported, with what helps.

    An error about another package is returned as it is.
    """
    if (error.name or "").partition(".")[0] != package:
        return error
    if sys.modules.get(package) is None:
        return ImportError(f"{adapter} needs {package}, which is not installed: pip install {package}")
    found = found_version(package)
    return ImportError(f"{adapter} needs {error.name}, which {found} does not have: pip install -U {package}")


def found_version(package: str) -> str:
    """Return the name of an imported package and its version, if it has one."""
    return f"{package} {getattr(sys.modules.get(package), '__version__', '')}".rstrip()
