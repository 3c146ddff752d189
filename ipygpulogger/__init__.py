"""After every notebook cell: how much RAM and GPU RAM it consumed, peaked and uses, and how long it took.

``%load_ext ipygpulogger`` in a notebook, ``IPyGPULogger().start()`` for the printed form, ``measure``
anywhere else. Importing this starts nothing.

The house, from the ground up; imports go downward only:

==============  =======================================================================
units           bytes, megabytes, seconds and foreign words to text
clock           seconds and the time of day, also where a test has frozen Python's clocks
records         Data, CellRecord, Measurement, Usage, Peak, DeviceUsage, ...
schema          records as JSON, as a notebook keeps them, and back again
budget          how much memory a cell may use
timeline        the course of one number over a scope, kept small
wrappers        functions of ours in the place of another library's, and theirs back again
collector       the user's garbage collector, which our own work neither sets off nor brings nearer
signals         what a signal handler raised, told apart from what failed
output          words of ours on the user's streams
calls           a context around every call of a function; whether a call still runs
watcher         a process that watches resident memory where no kernel counter does
resets          whether something else resets this process's high-water mark
driver          what the CUDA driver tells of a device without a context being made
sources/        the outside world, one file per origin of truth: process, nvml, torch, jax, cupy,
                tensorflow, rmm, host
peaks           the one owner of resets: many scopes over one counter
sampler         the one background thread
holdings        who holds what on a device
machine         every source of the process, and the owners of their peaks
devicewatch     one device in one scope, and the arithmetic of it
scope           open, close, usage: every measurement is a scope
gap             what moved between the end of one cell and the beginning of the next
dispatcher      who listens to the lines that run, and what each is told
monitoring      sys.monitoring tells of them, from Python 3.12 on
settrace        sys.settrace does, before
tracing         the one of the two that this Python has
rows            the memory of lines: one look at each boundary, folded into the lines open then
visits          which line each frame is at; which lines are too many to be measured
lines           the same as a scope, per line
frames          exceptions, their tracebacks and frames, read without running anybody's code
referents       what an object refers to, asked in C
claims          which block of memory is whose, and who shares it
reach           the walk: the memory that a name reaches
owners          who holds the memory: variables, Out, the last traceback, autograd graphs
letgo           dropping what hides behind the shell
garbage         reference cycles that wait for the garbage collector
libraries       what came with imported libraries
growth          which names account for what a cell consumed
files           what is written, whole or not at all
history         the records kept, ranked, saved, loaded
log             a line of JSON for each cell, written as the cells end
compare         two runs of a notebook
render/         text, HTML, plots: records in, strings and figures out
shell           IPython's events, filtered into "a real cell began, ended"
live            a long cell while it runs
request         what a cell asks for itself: %%gpulog
celllines       the lines of a cell, and of functions that earlier cells defined
oom             the error that says a device had no memory left
tracebacks      gpu_mem_restore and its kin: an exception goes on without the memory it held
autopsy         a cell that ran out of memory: why, and the one next step
logger          IPyGPULogger: the cell
device          gpu_mem_get and its kin: one GPU from outside
dataframes      reduce_mem_usage: a DataFrame in smaller types
trace           measure, GPUMemTrace: a block or a function
linetrace       measure_lines: each line of a function
epochs          watch_epochs: one epoch of a training
callbacks/      fastai, Lightning, transformers, Keras: adapters over one epoch
experiments     IPyExperiments: a part of a notebook that cleans up after itself
utils/          the doors for migrants: old names, re-exported
magics          %gpulog
parameters      a notebook's parameters, as papermill has them
run             one execution of a notebook, in a kernel with the logger on
arguments       the words of the command line
cli             run, report, compare, doctor
==============  =======================================================================
"""

from __future__ import annotations

from typing import Any

from .epochs import watch_epochs
from .history import History
from .linetrace import measure_lines
from .logger import IPyGPULogger
from .records import CellRecord, Data, DeviceUsage, Measurement, Peak, Usage
from .trace import measure

__all__ = [
    "CellRecord",
    "Data",
    "DeviceUsage",
    "History",
    "IPyGPULogger",
    "Measurement",
    "Peak",
    "Usage",
    "load_ipython_extension",
    "measure",
    "measure_lines",
    "unload_ipython_extension",
    "watch_epochs",
]


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext ipygpulogger``: report every cell from here on, and offer ``%gpulog``.

    Where that is not possible, one sentence says why, and the shell works on.
    """
    from .output import say
    from .signals import is_from_a_handler
    from .units import printable

    try:
        from .magics import load

        load(shell)
    except Exception as reason:
        if is_from_a_handler(reason):
            raise
        sentence = f"ipygpulogger measures nothing: {reason}; once that is mended: %reload_ext ipygpulogger"
        say(printable(sentence), aside=True)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext ipygpulogger``: as if it had never been loaded."""
    from .magics import unload

    unload(shell)


def _magics_of(shell: Any, logger: IPyGPULogger) -> Any:
    from .magics import GpulogMagics  # 40 ms of loading, IPython's own included: only where there is a logger

    return GpulogMagics(shell, logger)


IPyGPULogger.magics_of = _magics_of


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version

        return version("ipygpulogger")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
