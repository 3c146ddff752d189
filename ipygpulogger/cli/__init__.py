"""The command line: ``ipygpulogger run``, ``report``, ``compare`` and ``doctor``.

==========  ======================================================
arguments   the words of the command line
parameters  a notebook's parameters, as papermill has them
run         one execution of a notebook, in a kernel with the logger on
commands    the four commands
==========  ======================================================
"""

from __future__ import annotations

from .commands import main

__all__ = ["main"]
