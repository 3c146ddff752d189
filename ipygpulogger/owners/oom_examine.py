"""Examining a cell that ran out of device memory, while its memory is as the error left it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..records import device_id
from ..sources import Unavailable
from .exceptions import message_of
from .oom_asked import exactly_asked_bytes
from .oom_autopsy import Autopsy
from .oom_batch import find_batch
from .oom_error import FRAMEWORKS, first_word, out_of_memory_in
from .oom_message import read
from .roots import owners_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..sources import DeviceCounter, Framework
    from .oom_message import Said


def examine(error: BaseException | None, shell: Any, frameworks: Sequence[Framework]) -> Autopsy | None:
    """Examine the memory that an out-of-memory error left; None if the error is of another kind.

    Args:
        error: What ended the cell.
        shell: IPython's.
        frameworks: Those of this process.
    """
    cause = out_of_memory_in(error)
    if cause is None:
        return None
    said = read(message_of(cause))
    if (asked_bytes := exactly_asked_bytes(said, cause, frameworks)) is not None:
        said = said._replace(asked_bytes=asked_bytes, rounding_bytes=0)
    counter = _counter(cause, said, frameworks)
    device = counter.device.id if counter else device_id("gpu", said.device_index or 0)
    found = owners_in(shell, [framework.holding for framework in frameworks], error)
    allocated_bytes, reserved_bytes = _allocator(counter)
    memory = counter.device_memory() if counter else None
    return Autopsy(
        device,
        said,
        allocated_bytes,
        reserved_bytes,
        counter.fragmented_bytes() if counter else None,
        memory.free_bytes if memory else None,
        said.allowed_bytes or (counter.limit_bytes() if counter else None),
        tuple(owner for owner in found.owners if owner.device == device),
        found.complete,
        find_batch(error, shell, frameworks),
    )


def _counter(cause: BaseException, said: Said, frameworks: Sequence[Framework]) -> DeviceCounter | None:
    """Return the counter of the device that ran out, if possible of the framework that raised the error."""
    names = {FRAMEWORKS.get(first_word(base)) for base in type(cause).__mro__}
    for framework in sorted(frameworks, key=lambda framework: framework.name not in names):
        index = framework.current_index() if said.device_index is None else said.device_index
        for counter in framework.counters():
            if counter.device.index == index:
                return counter
    return None


def _allocator(counter: DeviceCounter | None) -> tuple[int | None, int | None]:
    """Return the allocated and the reserved bytes; where only one is known, nothing is cached."""
    try:
        readings = counter.look().readings if counter else ()
    except Unavailable:
        readings = ()
    if not readings:
        return None, None
    return readings[0].current_bytes, readings[min(1, len(readings) - 1)].current_bytes
