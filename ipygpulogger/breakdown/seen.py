"""What was seen of training while memory was recorded: backward passes, and what blocks held at some moments.

A position in what an allocator did is the number of the last allocation until then, as torch's statistics
count them. The events that torch records are counted in the same way.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .graph import Address
    from .held import Held
    from .places import Frame


class Pass:
    """One backward pass.

    Attributes:
        stack: The Python stack that waits for it, innermost first.
        begin: By device, the position at which it began.
        end: The same for its end; None while it runs.
        retained: Whether its graph stays for another pass.
        inner: Whether it runs within another pass.
        walked: Whether its graph was walked.
        whole: Whether the walk found all that the graph keeps.
        leaves: While it runs, the tensors whose gradients were not looked at yet.
    """

    __slots__ = ("begin", "end", "inner", "leaves", "retained", "stack", "walked", "whole")

    def __init__(self, stack: tuple[Frame, ...], *, retained: bool, inner: bool) -> None:
        self.stack, self.retained, self.inner = stack, retained, inner
        self.begin: dict[int, int] = {}
        self.end: dict[int, int] | None = None
        self.walked = self.whole = False
        self.leaves: list[Any] = []


class Look(NamedTuple):
    """What the blocks at some addresses held at one moment.

    Attributes:
        positions: By device, the position at that moment.
        held: By address.
        of: The backward pass whose graph was walked; None for a look at something else.
    """

    positions: dict[int, int]
    held: dict[Address, Held]
    of: Pass | None = None


class Seen(NamedTuple):
    """All that was seen of training.

    Attributes:
        looks: In their order; those at modules and optimizers come first.
        passes: In the order in which they began.
        exact: Whether this version of torch let us watch backward passes.
    """

    looks: tuple[Look, ...] = ()
    passes: tuple[Pass, ...] = ()
    exact: bool = True


class Kept:
    """The latest items, and of the older ones those around which the peak rose.

    Args:
        count: How many of the latest are kept; of the older ones twice as many.
    """

    def __init__(self, count: int) -> None:
        self._latest: deque[tuple[Any, list[bool]]] = deque()
        self._risen: list[Any] = []
        self._count = count

    def add(self, item: Any) -> None:
        """Add the latest item."""
        self._latest.append((item, [False]))
        if len(self._latest) > self._count:
            old, risen = self._latest.popleft()
            if risen[0]:
                self._risen.append(old)
                del self._risen[: -2 * self._count]

    def rise(self) -> None:
        """Note that the peak rose between the last two items, or after them."""
        for _, risen in itertools.islice(reversed(self._latest), 2):
            risen[0] = True

    def items(self) -> tuple[Any, ...]:
        """Return what is kept, in its order."""
        return (*self._risen, *(item for item, _ in self._latest))
