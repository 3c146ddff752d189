"""What `getrusage` reports of this process, and of its children that ended."""

from __future__ import annotations

import sys

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

PAGE_BYTES = resource.getpagesize() if resource else 4096
_UNIT_BYTES = 1 if sys.platform == "darwin" else 2**10  # of ru_maxrss, getrusage(2)


def faults_and_mark() -> tuple[tuple[int, ...], int]:
    """Return this process's page faults so far (minor, major), and its high-water mark in bytes.

    The mark has a floor: what the process had resident before its last `exec`.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (usage.ru_minflt, usage.ru_majflt), usage.ru_maxrss * _UNIT_BYTES


def of_ended_children() -> tuple[int, int] | None:
    """Return the page faults of the children that ended and were waited for, and the largest peak of one.

    Returns:
        None where the system has no `getrusage`.
    """
    if resource is None:
        return None
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_minflt + usage.ru_majflt, usage.ru_maxrss * _UNIT_BYTES
