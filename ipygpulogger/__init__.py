"""After every notebook cell: how much RAM and GPU RAM it consumed, needed and uses, and how long it took.

``%load_ext ipygpulogger`` in a notebook, ``IPyGPULogger().start()`` for the printed form, ``measure``
anywhere else. Importing this starts nothing. (To pytest: PYTEST_DONT_REWRITE.)

The packages, from the ground up; imports go downward only:

==============  ========================================================================================
runtime/        how our code behaves inside the user's process: clock, streams, signals, garbage collector
records/        what a measurement is: values, units
analysis/       what many records say: summary, comparison, leaks, fit, imbalance, budget
storage/        records in files and notebooks: codec, formats, history, log
sources/        where figures come from: kernel, NVML, CUDA driver, torch, jax, cupy, tensorflow, rmm
render/         records to text, HTML and plots
engine/         one scope over many counters: peaks, ledger, sampler, machine
lines/          what each source line used
owners/         which names hold memory: growth, cycles, releasing it, out of memory
allocator/      torch's caching allocator: its rules and recorded events, a model of it
breakdown/      what was alive at the peak: the allocators' own events, replayed
estimation/     what a function would need, found on fake tensors
blocks/         `measure`, `measure_lines`, `watch_epochs`
verify/         known amounts of memory, measured and held beside the truth
cluster/        many processes: ranks, engines, workers, tasks
notebook/       IPython: the cell, the live display, the magics
cli/            the command line: run, report, compare, doctor
compat/         the functions and classes of fastai v1 and ipyexperiments, implemented on the engine
callbacks/      callbacks for fastai, Lightning, transformers and Keras
utils/          import paths of fastai's and ipyexperiments' names, re-exported from compat
experiments.py  import path of ipyexperiments' classes, re-exported from compat
pytest_plugin.py  ``pytest --gpulog``: tests ranked by what they needed, budgets, leaks
__main__.py     ``python -m ipygpulogger``: the command line
==============  ========================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .blocks.measure import OverBudget, measure
    from .blocks.measure_lines import measure_lines
    from .blocks.watch_epochs import watch_epochs
    from .estimation.estimate import estimate
    from .notebook.logger import IPyGPULogger
    from .records import (
        AtPeak,
        CellRecord,
        ChildrenUsage,
        ChildUsage,
        Data,
        DeviceUsage,
        Estimate,
        Heap,
        LineUsage,
        Measurement,
        Metric,
        OutOfMemory,
        Owner,
        Peak,
        RamUsage,
        Usage,
    )
    from .storage.history import History

__all__ = [
    "AtPeak",
    "CellRecord",
    "ChildUsage",
    "ChildrenUsage",
    "Data",
    "DeviceUsage",
    "Estimate",
    "Heap",
    "History",
    "IPyGPULogger",
    "LineUsage",
    "Measurement",
    "Metric",
    "OutOfMemory",
    "OverBudget",
    "Owner",
    "Peak",
    "RamUsage",
    "Usage",
    "estimate",
    "load_ipython_extension",
    "measure",
    "measure_lines",
    "unload_ipython_extension",
    "watch_epochs",
]


def load_ipython_extension(shell: Any) -> None:
    """Start the reports and add ``%gpulog``; IPython calls this for ``%load_ext ipygpulogger``.

    If that fails, one sentence on stderr says why, and the shell is not affected.
    """
    from .runtime.collector import undisturbed

    try:
        with undisturbed():  # the user's garbage collector, which would look at everything twice meanwhile
            load(shell)
    except Exception as reason:
        from .records.units import printable
        from .runtime.errors import is_from_a_handler, say

        if is_from_a_handler(reason):
            raise
        sentence = f"ipygpulogger measures nothing: {reason}; to try again: %reload_ext ipygpulogger"
        say(printable(sentence), aside=True)


def load(shell: Any, report: str | None = None) -> None:
    """Start a logger in IPython's shell, as ``il`` if that name is free; loading twice changes nothing.

    The kind of report, if ``ipygpulogger run`` gives none, is the configured one, else the rich one.
    """
    from .notebook.logger import IPyGPULogger
    from .notebook.magics import GpulogMagics, unload

    magics = GpulogMagics.of(shell)
    if magics.extension is not None:
        return
    kind = report or (None if "report" in shell.config.IPyGPULogger else "rich")
    logger = magics.extension = IPyGPULogger(report=kind) if kind else IPyGPULogger()
    logger._reporter.keeps_metadata = report is not None  # `run` does
    try:
        magics.offer(logger)
        shell.user_ns.setdefault("il", logger)
        logger._start()
    except BaseException:
        unload(shell)
        raise


def unload_ipython_extension(shell: Any) -> None:
    """Stop the reports and remove ``%gpulog``; IPython calls this for ``%unload_ext ipygpulogger``."""
    from .notebook.magics import unload

    unload(shell)


_HOMES = {  # where a public name is defined; its module is imported when the name is first asked for
    "History": ".storage.history",
    "IPyGPULogger": ".notebook.logger",
    "OverBudget": ".blocks.measure",
    "estimate": ".estimation.estimate",
    "measure": ".blocks.measure",
    "measure_lines": ".blocks.measure_lines",
    "watch_epochs": ".blocks.watch_epochs",
}


def __getattr__(name: str) -> Any:
    """Return a public name, or the version; importing the package alone imports nothing else (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        return version("ipygpulogger")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(_HOMES.get(name, ".records"), __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
