"""Which names account for what a cell consumed."""

from __future__ import annotations
