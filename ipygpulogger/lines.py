"""What each line of some code used: hits, time, RAM, each GPU; the same as a scope, per line."""

from __future__ import annotations
