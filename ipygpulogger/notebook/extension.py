"""Load and unload the extension, and what ``ipygpulogger run`` asks it in a kernel."""

from __future__ import annotations

import json
from typing import Any

from IPython.core.getipython import get_ipython

from .logger import IPyGPULogger
from .magics import GpulogMagics


def load(shell: Any, report: str | None = None) -> None:
    """Start a logger in IPython's shell, as ``il`` if that name is free; loading twice changes nothing.

    Without a kind of report it is what the user's configuration says, else the rich one.
    """
    magics = GpulogMagics.of(shell)
    if magics.extension is not None:
        return
    if report is None and "report" not in shell.config.IPyGPULogger:
        report = "rich"
    logger = magics.extension = IPyGPULogger(report=report) if report else IPyGPULogger()
    try:
        magics.offer(logger)
        shell.user_ns.setdefault("il", logger)
        logger.start()
    except BaseException:
        unload(shell)
        raise


def unload(shell: Any) -> None:
    """Undo all that `load` did."""
    magics = GpulogMagics.of(shell)
    logger, magics.extension = magics.extension, None
    if logger is not None:
        logger.stop()
        if shell.user_ns.get("il") is logger:
            del shell.user_ns["il"]


def _logger() -> IPyGPULogger:
    logger = GpulogMagics.of(get_ipython()).extension
    if logger is None:
        raise KeyError("the extension is not loaded")
    return logger


def last_record() -> str:
    """Return the last record of the extension as JSON, null before the first; ``ipygpulogger run`` asks."""
    record = _logger().record
    return json.dumps(record and record.to_dict())


def process_records(since: int) -> str:
    """Return the length of the history, and the records of other processes in it from there on, as JSON."""
    from ..records.cell_record import process_of
    from ..storage.embed import embedded

    history = _logger().history
    return json.dumps([len(history), [embedded(one) for one in history[since:] if process_of(one)]])
