"""Training frameworks: each adapter tells an epoch's memory in its framework's own way."""

from __future__ import annotations
