"""Bytes, megabytes and seconds as people read them; standard library only."""

from __future__ import annotations

MB = 2**20


def truncated_mb(size_bytes: int) -> int:
    """Whole megabytes (``2**20``), truncated toward zero, as ``Data`` promises."""
    return int(size_bytes / MB)


def rounded_mb(size_bytes: int) -> int:
    """Whole megabytes (``2**20``), the nearest, as the report prints them; never a minus zero."""
    return round(size_bytes / MB)
