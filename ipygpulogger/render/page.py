"""A notebook's report as one self-contained HTML page."""

from __future__ import annotations
