"""Many processes: ranks, engines, workers and tasks, each measured where it runs, shown in one table.

=================  ===========================================================
engines            `watch`: a table after each cell whose work ran in other processes
watcher            `Watch`: what `watch` returns
after_cell         the table below a cell's own report
arrivals           records on their way from one process to another
torch_distributed  `gather`: the records of all ranks of a torch.distributed job, on rank 0
gathering          one call of `gather` on rank 0
job_store          the store through which the ranks of such a job find each other
attempt            what the ranks sent before torchrun restarted them
epochs             the records of all ranks for each epoch of a training
ipyparallel        engines of an ipyparallel cluster
engine_cells       in such an engine: each cell measured
runs               several runs of a process as one record
ray                tasks and actors of Ray
ray_wrapped        functions and actor classes that measure their calls
ray_worker         one call, measured in the worker
ray_outbox         records on their way out of a worker
ray_mailbox        the actor beside the driver that receives them
dask               tasks of dask.distributed
dask_plugins       what Dask installs for that on its workers and its scheduler
dask_tasks         how a worker measures its tasks
=================  ===========================================================

Each process measures itself with `measure`. Only records are sent, with what the engine itself offers for
that; nothing is installed on the cluster.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..records.group import Group, Missing
    from ..records.process import Process, ProcessRecord
    from .engines import watch
    from .torch_distributed import gather
    from .watcher import Watch

__all__ = ["Group", "Missing", "Process", "ProcessRecord", "Watch", "gather", "watch"]


_FILES = {
    "Group": "..records.group",
    "Missing": "..records.group",
    "Process": "..records.process",
    "ProcessRecord": "..records.process",
    "Watch": ".watcher",
    "gather": ".torch_distributed",
    "watch": ".engines",
}


def __getattr__(name: str) -> Any:
    """Return a public name, imported when it is first asked for (PEP 562)."""
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_FILES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
