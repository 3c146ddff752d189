"""What Python tells of the lines that run: by `sys.monitoring`, or by `sys.settrace` before Python 3.12."""

from __future__ import annotations

import os
import sys

from .dispatcher import Dispatcher, Spent, frames, now_s, spent
from .monitoring import Monitoring
from .settrace import SetTrace

__all__ = ["Spent", "frames", "ignore", "join", "listen", "now_s", "part", "spent"]

_dispatcher: Dispatcher = Monitoring() if sys.version_info >= (3, 12) else SetTrace()
listen, ignore = _dispatcher.listen, _dispatcher.ignore
join, part = _dispatcher.join, _dispatcher.part

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_dispatcher.after_fork_in_child)
