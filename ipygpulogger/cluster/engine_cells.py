"""In an engine of ipyparallel: each cell is measured while a client watches, whichever sent it.

The record goes back as data that the cell publishes (``ipyparallel.datapub``), so that it arrives together
with the cell's output. No second request is sent, and no cell waits for an engine that is busy or dead.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from ..blocks.measure import Measure, measure
from ..records import Status
from ..records.process import Process, ProcessRecord
from ..runtime.shell import current_shell, error_of, first_line, was_interrupted
from .arrivals import packed

KEY = "ipygpulogger"  # of the published data; the record of one engine, as bytes


def begin() -> None:
    """Measure cells from now on, until any client that watches ends it; publish host and process id."""
    # So a notebook on the same machine does not reset this process's high-water mark. And the first message
    # imports modules, in the engine and in the client: sent now, their memory counts for no cell.
    shell = current_shell()
    if EngineCells.here is None:
        if not hasattr(shell, "data_pub"):
            raise RuntimeError("only engines of ipyparallel have the means to send records")
        with measure("the first measurement, whose imports no cell should pay for"):
            pass
        EngineCells.here = EngineCells(shell)
    shell.data_pub.publish_data({KEY: json.dumps([socket.gethostname(), os.getpid()]).encode()})


def end() -> None:
    """Measure no more; nothing of ours remains."""
    if EngineCells.here is not None:
        EngineCells.here.stop()
        EngineCells.here = None


class EngineCells:
    """Measures the cells of an engine."""

    here: ClassVar[EngineCells | None] = None  # the one of this process, while a client watches

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._running: Measure | None = None
        self._callbacks = {"pre_run_cell": self._pre_run_cell, "post_run_cell": self._post_run_cell}
        for event, callback in self._callbacks.items():
            shell.events.register(event, callback)

    def stop(self) -> None:
        """Remove the callbacks."""
        self._drop()
        for event, callback in self._callbacks.items():
            with suppress(ValueError):  # the shell's events were reset
                self._shell.events.unregister(event, callback)

    def _pre_run_cell(self, info: Any) -> None:
        with suppress(BaseException):  # interrupted, or no descriptors are left: the cell runs unmeasured
            if info.store_history:  # if not, it is a cell within a cell, as `%%capture` makes one
                self._drop()
                running = Measure(f"In [{self._shell.execution_count}]")
                running.__enter__()
                self._running = running

    def _post_run_cell(self, result: Any) -> None:
        with suppress(BaseException):  # as above; the client says that this engine sent no record
            info = getattr(result, "info", None)
            if not getattr(info, "store_history", True):
                return
            if (running := self._drop()) is not None and running.last is not None:
                record = ProcessRecord.of(running.last, Process(socket.gethostname(), os.getpid()))
                record = replace(record, source=first_line(getattr(info, "raw_cell", "")))
                if (error := error_of(result)) is not None:
                    status: Status = "interrupted" if was_interrupted(error) else "error"
                    record = replace(record, status=status, error=type(error).__name__)
                self._shell.data_pub.publish_data({KEY: packed(record)})

    def _drop(self) -> Measure | None:
        """Close the open measurement; that of an earlier cell is one whose end no event reported."""
        running, self._running = self._running, None
        if running is not None:
            running.__exit__(None, None, None)
        return running
