"""Two runs of a notebook: which cells are the same, which got worse."""

from __future__ import annotations
