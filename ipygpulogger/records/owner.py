"""A name that holds memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .value import Value

LIBRARIES = "libraries loaded"  # the owner of what imports allocated: "libraries loaded: torch"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Owner(Value):
    """A name that holds memory: "model", "Out[3]", "last traceback: step.act".

    Attributes:
        name: The name as the user would write it.
        size_bytes: What it holds; in a cell's record, how much that grew within the cell.
        device: "cpu" for general RAM, "cuda:0", ...
        kind: Where the name lives.
        shared: Other names that refer to some of the same memory, which is counted under this one only.
    """

    name: str
    size_bytes: int
    device: str
    kind: Literal["variable", "output", "traceback", "other"]
    shared: tuple[str, ...] = ()

    @property
    def is_libraries(self) -> bool:
        """Whether it stands for imported libraries rather than for a name."""
        return self.kind == "other" and self.name.startswith(f"{LIBRARIES}: ")
