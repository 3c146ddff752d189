"""What one source line used."""

from __future__ import annotations

from dataclasses import dataclass

from .device_usage import DeviceUsage, Sizes  # noqa: TC001 - decoding evaluates the type hints
from .displayed import Displayed
from .units import shortened
from .usage import Usage
from .value import Value


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LineUsage(Displayed, Value):
    """One source line of a cell or function, including everything that it called.

    For a line that ran several times, `consumed_bytes` is the sum over its runs and `peaked_bytes` the
    most that one of them needed for a moment. ``before_bytes`` is what was in use when the first run began.

    Attributes:
        lineno: The line's number, counted from the top of the cell as the user sees it, or of the file.
        source: The line without its indentation.
        hits: How often it began.
        time_s: Its time without the cost of measuring.
        gen: General RAM.
        gpus: The allocators' memory on each device where the line changed anything.
        place: Where the line stands: "" in the cell itself, else "In [3]" or the name of a file.
        complete: Whether its memory was read at every hit; False where that would have been too slow.
        risen: By device id ("cpu" for general RAM), the distance from the lowest start of any run to the
            highest peak of any run. All runs together cannot have held more than this at one time.
            Memory that a loop frees between its runs counts each time in `consumed_bytes`, and once here.
    """

    lineno: int
    source: str
    hits: int
    time_s: float
    gen: Usage
    gpus: tuple[DeviceUsage, ...] = ()
    place: str = ""
    complete: bool = True
    risen: Sizes = ()

    def __repr__(self) -> str:
        where = f"{shortened(self.place)}:{self.lineno}" if self.place else str(self.lineno)
        ran = f"{self.hits} hit{'s' * (self.hits != 1)}, {self.time_s:.3f} s"
        told = [
            f"{name} {Usage.described(usage).rpartition(', ')[0]}"
            for name, usage in [("RAM", self.gen), *((gpu.id, gpu) for gpu in self.gpus)]
        ]
        return f"<LineUsage {where}, {ran}: {'; '.join(told)}: {shortened(self.source)}>"
