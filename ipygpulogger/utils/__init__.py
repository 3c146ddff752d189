"""Doors for those who come from fastai and ipyexperiments: their names, re-exported."""

from __future__ import annotations
