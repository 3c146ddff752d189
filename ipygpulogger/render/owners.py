"""Who holds memory, and what was given back, as text."""

from __future__ import annotations
