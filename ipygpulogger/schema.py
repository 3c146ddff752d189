"""Records as JSON: the form that a notebook keeps, within two kilobytes, and back again."""

from __future__ import annotations
