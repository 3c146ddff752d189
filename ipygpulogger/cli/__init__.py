"""The command line: ``ipygpulogger run``, ``report``, ``compare`` and ``doctor``.

=============  ==========================================================================
command_line   from the arguments to the exit status
arguments      the options of each command
request        what was asked for, refused in one sentence if it makes no sense
run            ``run``: execute a notebook; print, log and judge each cell
notebook_file  the notebook: read and checked, written
parameters     its parameters, as in papermill
execution      its execution, in a kernel with the logger on
progress       the line on the terminal that shows which cell runs
report         ``report``: the cells of a log or of a saved notebook, ranked
compare        ``compare``: two runs, cell by cell
saved_run      reading a log or a saved notebook
page           writing the HTML page
doctor         ``doctor``: what can be measured here
aside          sentences on the stream for errors
=============  ==========================================================================
"""

from __future__ import annotations

from .command_line import main

__all__ = ["main"]
