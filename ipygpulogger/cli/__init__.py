"""The command line: ``ipygpulogger run``, ``report``, ``compare`` and ``doctor``.

It exits with 0; with 1 if a cell failed, went over its budget or grew; with 2 if the request cannot be
carried out: one sentence on stderr, and nothing was written; with 130 if it was interrupted; with 143 if it
was terminated. A script ends as it does without us, but with 1 where it succeeded and went over its budget.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence

from ..runtime.errors import IN_PLAIN_SIGNS, first_line
from . import execution, report, run, script
from .arguments import BadRequest, parse
from .streams import aside

_COMMANDS = {
    "run": run.run,
    "script": script.run_script,
    "report": report.report,
    "compare": report.compare,
    "doctor": report.doctor,
}
_DEBUG = "IPYGPULOGGER_DEBUG"  # set in the environment: unforeseen errors are raised, with their traceback


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with these words, by default those of this process, and return its exit status."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    for stream in () if options.command == "script" else (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a cell's text may not be in the terminal's encoding
            stream.reconfigure(errors=IN_PLAIN_SIGNS)  # type: ignore[union-attr]
    try:
        ended = _COMMANDS[options.command](options)
    except BadRequest as problem:
        aside(f"ipygpulogger: {problem}")
        return 2
    except KeyboardInterrupt as stopped:
        if arguments is None:  # the process ends now, and another Ctrl-C must not cut that short
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return 143 if isinstance(stopped, execution.Terminated) else 130
    except Exception as error:  # not 1, which would mean that a cell grew
        if os.environ.get(_DEBUG):
            raise
        said = f"{type(error).__name__}: {first_line(error)}"
        aside(f"ipygpulogger failed: {said}; {_DEBUG}=1 in the environment shows where")
        return 2
    if isinstance(ended, BaseException):  # of a script
        raise ended
    return ended
