"""Run the cells of a page in a shell of a new process, where no other test has left anything.

A program: JSON on stdin, ``{"given": code, "cells": [code, ...]}``; on stdout, of each cell the name of what it raised
and what it printed.
"""

import contextlib
import io
import json
import sys

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from ipygpulogger.owners import growth


def main():
    asked = json.load(sys.stdin)
    growth.BUDGET_S = 10  # a busy machine cuts no search short
    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    exec(asked["given"], shell.user_ns)
    found = []
    for code in asked["cells"]:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            ran = shell.run_cell(code, store_history=True)
        error = ran.error_before_exec or ran.error_in_exec
        found.append((type(error).__name__ if error else None, printed.getvalue()))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
