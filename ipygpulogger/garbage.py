"""Reference cycles that wait for the garbage collector."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Mapping

    from .reach import Holdings


def waiting(holdings: Holdings, claimed: Container[Hashable]) -> Mapping[str, int]:
    """To be."""
    return {}
