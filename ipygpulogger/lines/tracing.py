"""The lines that run, reported by `sys.monitoring`, or by `sys.settrace` before Python 3.12."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from .spent import Spent, spent
from .sys_monitoring import SysMonitoring
from .sys_settrace import SysSetTrace

if TYPE_CHECKING:
    from .tracing_backend import TracingBackend

__all__ = ["Spent", "spent", "subscribe", "trace_this_thread", "unsubscribe", "untrace_this_thread"]

_backend: TracingBackend = SysMonitoring() if sys.version_info >= (3, 12) else SysSetTrace()
subscribe, unsubscribe = _backend.subscribe, _backend.unsubscribe
trace_this_thread, untrace_this_thread = _backend.trace_this_thread, _backend.untrace_this_thread

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_backend.after_fork_in_child)
