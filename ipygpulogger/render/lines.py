"""The lines of a cell or function, as a table."""

from __future__ import annotations
