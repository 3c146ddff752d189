"""The cells of a notebook, ranked; and two runs, compared."""

from __future__ import annotations
