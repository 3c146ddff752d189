"""A notebook's memory over time, as a matplotlib figure; and a long cell's, as a line of text."""

from __future__ import annotations
