"""How much memory a cell may use: "10GB", and whether it went over."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .measurement import Measurement
    from .usage import Usage

OVER = "Over budget on"  # how a record's note about an excess begins
LEFT = "RAM left", "Address space left", "Data memory left"  # how one about a limit that is near begins

_NUMBER = r"(\d{1,18}(?:\.\d{1,18})?|\.\d{1,18})"
_SIZE = _NUMBER + r"\s*(?:([kmgt])(?:i?b)?|b)"
_POWERS = {None: 0, "k": 1, "m": 2, "g": 3, "t": 4}


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII | re.IGNORECASE)


def parse(text: str) -> int:
    """Return the bytes that a text means: "10GB", "8 GB", "512MB", "1.5GiB", "4g", "4096B".

    A GB is ``2**30`` bytes and a MB ``2**20``, as everywhere in this package and in NVIDIA's driver; GiB
    means the same. A fraction of a byte is dropped. A number without a unit is refused, because 10 hardly
    ever means 10 bytes.

    Raises:
        ValueError: The text is not a size, has no unit, or is less than a byte.
    """
    from fractions import Fraction  # like the pattern, nothing that every process needs

    text = text.strip()
    match = _compiled(_SIZE).fullmatch(text)
    size_bytes = int(Fraction(match[1]) * 1024 ** _POWERS[match[2] and match[2].lower()]) if match else 0
    if not size_bytes:
        fault = "has no unit" if _compiled(_NUMBER).fullmatch(text) else "is not a memory size"
        raise ValueError(f"{text!r} {fault}: write a size such as 10GB, 512MB or 4096B")
    return size_bytes


class Excess(NamedTuple):
    """A peak above its budget; if it is not exact, a lower bound of it."""

    name: str  # "RAM", or the device id: "cuda:0"
    peak_bytes: int
    budget_bytes: int
    at_least: bool

    @property
    def over_bytes(self) -> int:
        """How far the peak lies above the budget."""
        return self.peak_bytes - self.budget_bytes


def excesses(
    measurement: Measurement, *, ram_bytes: int | None = None, gpu_bytes: int | None = None
) -> Iterator[Excess]:
    """Yield the peaks of this process, in RAM and on each device, that are above a budget.

    A peak that is not exact counts with its lower bound, so that an excess is certain. A device whose use
    cannot be attributed to this process is left out, because the peak there is unknown.

    Args:
        measurement: What was measured.
        ram_bytes: The budget of general RAM; None without one.
        gpu_bytes: The budget of each device; None without one.
    """
    if ram_bytes is not None:
        yield from _over("RAM", measurement.gen, ram_bytes)
    if gpu_bytes is not None:
        for gpu in measurement.gpus:
            if gpu.attributed:
                yield from _over(gpu.id, gpu, gpu_bytes)


def _over(name: str, usage: Usage, budget_bytes: int) -> Iterator[Excess]:
    if usage.peak.lo_bytes > budget_bytes:
        yield Excess(name, usage.peak.lo_bytes, budget_bytes, usage.peak.quality != "exact")
