"""Measure and report the cells of an IPython shell.

Here is what loading and unloading the extension does.
"""

from __future__ import annotations

import json
from typing import Any

from IPython.core.getipython import get_ipython

from .logger import IPyGPULogger
from .magics import loaded


def load(shell: Any, report: str | None = None) -> None:
    """Start a logger in IPython's shell, as ``il`` if that name is free; loading twice changes nothing.

    Without a kind of report it is what the user's configuration says, else the rich one.
    """
    if shell in loaded:
        return
    if report is None and "report" not in shell.config.IPyGPULogger:
        report = "rich"
    logger = IPyGPULogger(report=report) if report else IPyGPULogger()
    loaded[shell] = logger.magics
    try:
        logger.magics.offer()
        shell.user_ns.setdefault("il", logger)
        logger.start()
    except BaseException:
        unload(shell)
        raise


def unload(shell: Any) -> None:
    """Undo all that `load` did."""
    magics = loaded.pop(shell, None)
    if magics is None:
        return
    logger = magics.logger
    logger.stop()
    magics.withdraw()
    if shell.user_ns.get("il") is logger:
        del shell.user_ns["il"]


def last_record() -> str:
    """Return the last record of this shell's extension as JSON, null before the first.

    ``ipygpulogger run`` asks the kernel for it, and gets a `KeyError` where the extension is not loaded.
    """
    record = loaded[get_ipython()].logger.record
    return json.dumps(record and record.to_dict())


def process_records(since: int) -> str:
    """Return the length of the history, and the records of other processes in it from there on, as JSON."""
    from ..records.cell_record import process_of
    from ..storage.embed import embedded

    history = loaded[get_ipython()].logger.history
    return json.dumps([len(history), [embedded(one) for one in history[since:] if process_of(one)]])
