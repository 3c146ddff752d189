"""What an experiment consumed, what came back, and what is available."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..engine.scope import Scope
from ..records import DRIVER
from ..runtime.signals import is_from_a_handler

if TYPE_CHECKING:
    from ..records import DeviceUsage, Measurement


class IPyExperimentMemory(NamedTuple):
    """Memory of an experiment, in bytes; 0 without a device, or where the figure is unknown.

    What torch keeps in its cache counts as available.
    """

    consumed: int
    reclaimed: int
    available: int


class IPyExperimentData(NamedTuple):
    """An experiment: general RAM, and the device that was current when it began."""

    cpu: IPyExperimentMemory
    gpu: IPyExperimentMemory


class Consumed(NamedTuple):
    """Bytes of general RAM and of the experiment's device; None where unknown."""

    cpu: int | None
    gpu: int | None

    def plus(self, other: Consumed) -> Consumed:
        """Return the sum of both; unknown plus anything is unknown."""
        pairs = zip(self, other, strict=True)
        return Consumed(*(None if a is None or b is None else a + b for a, b in pairs))

    def minus(self, other: Consumed) -> Consumed:
        """Return the difference; unknown minus anything, or the reverse, is unknown."""
        pairs = zip(self, other, strict=True)
        return Consumed(*(None if a is None or b is None else a - b for a, b in pairs))


def open_baseline() -> Scope:
    """Return a scope whose results tell what has been consumed since now.

    It asks for no peak, so it is closed at once: until its result is asked for it costs nothing.
    """
    scope = Scope(reset_peaks=False).open()
    scope.close()
    return scope


def device_in(measurement: Measurement | None, index: int | None) -> DeviceUsage | None:
    """Return the framework's device of this index in a measurement; None where there is none."""
    if measurement is None or index is None:
        return None
    return next((gpu for gpu in measurement.gpus if gpu.index == index and gpu.backend != DRIVER), None)


def machine_ram_bytes() -> tuple[int | None, int | None]:
    """Return how much of the machine's RAM is available, and its total; None each where psutil fails."""
    try:
        import psutil

        memory = psutil.virtual_memory()
        return int(memory.available), int(memory.total)
    except Exception as error:  # an installation can be broken in any way
        if is_from_a_handler(error):
            raise
        return None, None
