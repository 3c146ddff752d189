"""Re-export the names of ipyexperiments: ``import ipygpulogger.experiments as ipyexperiments``."""
# ruff: noqa: F403, F405 - what is imported is what `__all__` names

from __future__ import annotations

from typing import Any

from .compat.experiment import *
from .compat.experiment_cells import *

__all__ = [
    "CellLogger", "CellLoggerData", "CellLoggerMemory", "CellLoggerTime", "IPyExperimentData",
    "IPyExperimentMemory", "IPyExperiments", "IPyExperimentsCPU", "IPyExperimentsGPU",
    "IPyExperimentsPytorch",
]  # fmt: skip


def __getattr__(name: str) -> Any:  # what `import ipyexperiments` had besides
    if name == "__version__":
        from importlib.metadata import version

        return version("ipygpulogger")
    if name == "utils":
        from . import utils
        from .utils import ipython, mem  # noqa: F401 - loaded, to be its attributes

        return utils
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
