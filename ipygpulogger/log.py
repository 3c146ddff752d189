"""The running log: a line of JSON for each cell, written as the cells end."""

from __future__ import annotations
