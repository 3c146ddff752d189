"""Keras 3: an epoch's memory in the logs."""

from __future__ import annotations
