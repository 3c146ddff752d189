"""The command line: ``ipygpulogger run``, ``report``, ``compare`` and ``doctor``.

=============  ==========================================================================
command_line   from the arguments to the exit status
arguments      the arguments of the command line
run            ``run``: execute a notebook, and check the budget of each cell
kernels        the notebook that is run, and its kernel
execution      executing the notebook in a kernel with the logger on
report         `report`, `compare` and `doctor`: what a log or a saved notebook says
progress       the progress of a run, and what was reported of its cells
streams        the terminal: colours, columns, streams that may be broken, keys
=============  ==========================================================================
"""

from __future__ import annotations

from .command_line import main

__all__ = ["main"]
