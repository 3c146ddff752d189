"""An exception goes on without the memory that its traceback held."""

from __future__ import annotations
