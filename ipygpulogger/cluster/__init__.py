"""Many processes: ranks, engines, workers and tasks, each measured where it runs, shown in one table.

Only records are sent, with what the engine itself offers for that; nothing is installed on the cluster.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..analysis.group import Group, Missing
    from ..records.process import Process, ProcessRecord
    from .torch_distributed import gather
    from .watcher import Watch, watch

__all__ = ["Group", "Missing", "Process", "ProcessRecord", "Watch", "gather", "watch"]

_HOMES = {"Process": "..records.process", "ProcessRecord": "..records.process"}
_HOMES |= {"Group": "..analysis.group", "Missing": "..analysis.group"}
_HOMES |= {"Watch": ".watcher", "watch": ".watcher", "gather": ".torch_distributed"}


def __getattr__(name: str) -> Any:
    """Return a public name, imported when it is first asked for (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
