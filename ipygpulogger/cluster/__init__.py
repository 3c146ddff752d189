"""Many processes: ranks, engines, workers and tasks, each measured where it runs, shown in one table.

Only records are sent, with what the engine itself offers for that; nothing is installed on the cluster.
"""

from ..analysis.group import Group, Missing
from ..records.process import Process, ProcessRecord
from .torch_distributed import gather
from .watcher import Watch, watch

__all__ = ["Group", "Missing", "Process", "ProcessRecord", "Watch", "gather", "watch"]
