"""What Python tells of the lines that run: `sys.monitoring`, or `sys.settrace` before Python 3.12."""

from __future__ import annotations
