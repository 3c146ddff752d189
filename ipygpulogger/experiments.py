"""IPyExperiments: a part of a notebook whose variables go when it ends."""

from __future__ import annotations
