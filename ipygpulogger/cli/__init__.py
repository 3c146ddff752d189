"""The command line: ``ipygpulogger run``, ``report``, ``compare`` and ``doctor``.

=============  ==========================================================================
command_line   from the arguments to the exit status
arguments      the options of each command
request        checks of what was asked for, each with one sentence as its error
run            ``run``: execute a notebook, and check the budget of each cell
notebook_file  reading, checking and writing the notebook
parameters     the notebook's parameters, as in papermill
execution      executing the notebook in a kernel with the logger on
kernels        whether the kernel can be used; what its process writes
results        the records of a run so far: printed, logged and kept
transcript     what is printed of each cell: its line, its traceback, its output
columns        the line of a cell
progress       the line on the terminal that shows which cell runs
keys           the keys pressed meanwhile
report         ``report``: the cells of a log or of a saved notebook, ranked
compare        ``compare``: two runs, cell by cell
saved_run      reading a log or a saved notebook, cell by cell
page           writing the HTML page
doctor         ``doctor``: what can be measured here
streams        writing to stdout and stderr
colours        ANSI styles on a terminal
=============  ==========================================================================
"""

from __future__ import annotations

from .command_line import main

__all__ = ["main"]
