"""How much memory a cell may use: "10GB", and whether it went over."""

from __future__ import annotations
