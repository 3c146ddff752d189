"""What Python's and numpy's own objects hold of general RAM."""

from __future__ import annotations
