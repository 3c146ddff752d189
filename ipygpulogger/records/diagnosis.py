"""What a source of figures reports about itself on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .value import Value


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Diagnosis(Value):
    """What one source of figures reports about itself on this machine.

    Attributes:
        source: "RAM", "NVML", "torch", ...
        state: How good its figures are here: "exact", "bounded", "sampled" or "absent".
        says: What it reads, or why it cannot, in one sentence.
        remedy: What to do about it; None when nothing can be done.
    """

    source: str
    state: Literal["exact", "bounded", "sampled", "absent"]
    says: str
    remedy: str | None = None
