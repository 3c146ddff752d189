"""Many processes: ranks, engines, workers and tasks, each measured where it runs, shown in one table.

=================  ===========================================================
watcher            `watch`: what happens after a cell, whatever the engine is
arrivals           records on their way from one process to another
ipyparallel        engines of an ipyparallel cluster
engine_cells       in such an engine: each cell measured
ray                tasks and actors of Ray
ray_worker         in Ray's workers: each task and method measured, and its record sent
dask               tasks of dask.distributed
dask_worker        in Dask's workers: each task measured
sent               what Ray and Dask send by value to processes that may lack this package
torch_distributed  `gather`: the records of all ranks of a torch.distributed job on rank 0
gathering          collecting them through the job's own store
=================  ===========================================================

Each process measures itself with `measure`. Only records are sent, with what the engine itself offers for
that; nothing is installed on the cluster.
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


_FILES = {
    "Group": "..analysis.group",
    "Missing": "..analysis.group",
    "Process": "..records.process",
    "ProcessRecord": "..records.process",
    "Watch": ".watcher",
    "gather": ".torch_distributed",
    "watch": ".watcher",
}


def __getattr__(name: str) -> Any:
    """Return a public name, imported when it is first asked for (PEP 562)."""
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_FILES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
