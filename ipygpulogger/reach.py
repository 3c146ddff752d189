"""The walk: the memory that a name reaches, without running any code of the user's."""

from __future__ import annotations
