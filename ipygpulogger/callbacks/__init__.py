"""Adapters that show an epoch's memory in the training framework's own way, each with its framework.

Each has ``history``: an `EpochRecord` for every epoch that ended.
"""

from __future__ import annotations


def unusable(error: ModuleNotFoundError, package: str, adapter: str) -> ImportError:
    """Return what to raise if an adapter's framework is missing or too old; else the error as it is."""
    if (error.name or "").partition(".")[0] != package:
        return error
    return ImportError(f"{adapter} needs {error.name}: pip install -U {package}")
