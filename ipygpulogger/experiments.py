"""Re-export the names of ipyexperiments: ``import ipygpulogger.experiments as ipyexperiments``."""

from __future__ import annotations

from .compat.experiment import (
    IPyExperiments,
    IPyExperimentsCPU,
    IPyExperimentsGPU,
    IPyExperimentsPytorch,
)
from .compat.experiment_cells import CellLogger, CellLoggerData, CellLoggerMemory, CellLoggerTime
from .compat.experiment_figures import IPyExperimentData, IPyExperimentMemory

__all__ = [
    "CellLogger",
    "CellLoggerData",
    "CellLoggerMemory",
    "CellLoggerTime",
    "IPyExperimentData",
    "IPyExperimentMemory",
    "IPyExperiments",
    "IPyExperimentsCPU",
    "IPyExperimentsGPU",
    "IPyExperimentsPytorch",
]


def __getattr__(name: str) -> str:
    if name == "__version__":  # as `import ipyexperiments` had it
        from importlib.metadata import version

        return version("ipygpulogger")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
