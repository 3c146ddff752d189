"""Reference cycles that wait for the garbage collector."""

from __future__ import annotations
