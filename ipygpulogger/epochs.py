"""One epoch of a training, measured."""

from __future__ import annotations
