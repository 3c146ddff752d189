"""Dropping what hides behind the shell: the last traceback, `Out`, `_`."""

from __future__ import annotations
