"""One execution of a notebook, in a real kernel with the logger on and without a change to the notebook."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import re
import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..records import MIME
from ..records.decode import record_from
from ..records.embed import embedded
from ..records.formats import own_report
from .notebook_file import installed
from .progress import Progress
from .request import BadRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from ..records import CellRecord

# Run in the kernel. The records travel in the rich report, whatever report the user's configuration asks for.
_START = (
    "import ipygpulogger.notebook.magics as _magics\n_magics.load(get_ipython(), report='rich')\ndel _magics"
)
# Evaluated in the kernel: the notebook may have changed the report, or given our names to something else.
_LAST_RECORD = "__import__('ipygpulogger.notebook.magics', fromlist=['_']).last_record()"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_HOOKS_S = 0.5  # IPython swallows an interrupt of the hooks that run before a cell's code
_GRACE_S = 10  # how long an interrupted cell may take to end before its kernel is ended; and an answer


class _TooLong(Exception):  # noqa: N818 - ends the run
    """A cell ran longer than allowed."""


class Audience(Protocol):
    """Receives the events of an execution."""

    def started(self) -> None:
        """Begin: the kernel and the logger in it run, and the first cell comes next."""

    def ended(self, record: CellRecord, source: str, report: str) -> None:
        """Receive a cell that ended: its record, its source, its report as plain text, or "" without one."""


class Execution:
    """One execution of a notebook.

    Args:
        notebook: As `notebook_file.read` returns it; its outputs are filled in.
        path: Its file; it runs in that folder, as in Jupyter.
        kernel: The name of another kernel than the notebook's own.
        timeout_s: How long a cell may take; None for no limit.
        audience: Receives the records.

    Attributes:
        has_code: Whether a cell has code; if not, no kernel is started.
        started: Whether the kernel and the logger in it have started.
        cells_without_record: How many cells ran without leaving a record.

    Raises:
        BadRequest: The kernel is not installed or not for Python, or nbclient is not installed.
    """

    def __init__(
        self,
        notebook: Any,
        path: Path,
        *,
        kernel: str | None,
        timeout_s: float | None,
        audience: Audience,
    ) -> None:
        self.started = False
        self.cells_without_record = 0
        self._seen: set[datetime] = set()  # when the recorded cells began
        self._notebook = notebook
        self._timeout_s, self._audience = timeout_s, audience
        self._interrupted = self._late = False
        self._runs = self._interrupt_once_it_runs = False  # of the current cell, in the kernel
        self._alarm: asyncio.TimerHandle | None = None
        self._codes = [i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
        self.has_code = any(notebook.cells[i].source.strip() for i in self._codes)
        self._progress = Progress(len(self._codes))
        kernelspec = notebook.metadata.get("kernelspec", {})
        if kernel is None:
            language = str(kernelspec.get("language") or "")
            if language.lower() not in ("python", ""):
                raise BadRequest(f"{path} is written in {language}; only Python notebooks can be measured")
        name = kernel or kernelspec.get("name", "python3")
        self._client: Any = installed("nbclient").NotebookClient(
            notebook,
            timeout=None,
            kernel_name=name,
            resources={"metadata": {"path": str(path.parent.resolve())}},
            on_cell_start=self._on_cell_start,
            on_cell_executed=self._on_cell_executed,
        )
        self._nbclients_process_message = self._client.process_message
        self._client.process_message = self._process_message
        self._manager = self._client.create_kernel_manager()
        specs = self._manager.kernel_spec_manager
        if name not in specs.find_kernel_specs():
            if kernel is None:
                raise BadRequest(f"{path} asks for the kernel {name!r}, which is not installed here")
            raise BadRequest(f"the kernel {name!r} is not installed here")
        language = specs.get_kernel_spec(name).language
        if language.lower() not in ("python", ""):
            raise BadRequest(f"the kernel {name!r} speaks {language}; only Python can be measured")

    def execute(self) -> str | None:
        """Execute the cells in turn.

        Returns:
            Why the execution ended early, in one sentence; None if it did not.

        Raises:
            BadRequest: The kernel did not start, or cannot load this package.
            KeyboardInterrupt: The user pressed Ctrl-C.
        """
        for cell in self._notebook.cells:  # outputs of an earlier execution must not be taken for this one's
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        if not self.has_code:
            self._audience.started()
            self.started = True
            return None
        with tempfile.TemporaryDirectory(prefix="ipygpulogger-") as sockets:
            if os.name == "posix":  # ipykernel 7 warns about TCP at each start
                self._manager.transport, self._manager.ip = "ipc", str(Path(sockets) / "kernel")
            try:
                return asyncio.run(self._execute())
            finally:
                self._progress.stop()

    async def _execute(self) -> str | None:
        from nbclient.exceptions import CellExecutionError, DeadKernelError

        try:
            await self._client.async_execute()
        except (CellExecutionError, DeadKernelError, _TooLong) as error:
            if self._interrupted:
                raise KeyboardInterrupt from None
            cell = self._progress.cell or "no cell"
            if self._late:
                return f"stopped at {cell}, which ran longer than {self._timeout_s:g} s"
            if isinstance(error, CellExecutionError):
                said = ": ".join(filter(None, (error.ename, _first_line(error.evalue))))
                return f"stopped at the cell that failed: {said}"
            return f"the kernel died while it ran {cell}"
        except RuntimeError as error:
            if self.started:
                raise
            raise BadRequest(f"the kernel {self._client.kernel_name!r} did not start: {error}") from error
        finally:
            self._disarm()
        return None

    async def _on_cell_start(self, cell: Any, cell_index: int) -> None:
        """Start the logger before the first cell, and show which cell runs; called by nbclient."""
        self._disarm()  # nbclient may have skipped the previous cell
        self._runs = False
        if self._interrupted:  # and the previous cell caught the interrupt
            raise KeyboardInterrupt
        if not self.started:
            await self._start()
        if cell.cell_type == "code" and cell.source.strip():
            self._progress.start(self._codes.index(cell_index) + 1, cell.source)
            if self._timeout_s is not None:
                self._arm(self._timeout_s, self._too_long)

    async def _on_cell_executed(self, cell: Any, **_: Any) -> None:
        """Pass on the record of the cell that has just ended; called by nbclient."""
        self._disarm()
        self._runs = False
        self._progress.stop()
        record, plain = displayed_record(cell)
        if record is None:
            record = await self._ask_for_record(cell)
        if record is None:
            self.cells_without_record += 1
        else:
            self._seen.add(record.started_at)
            self._audience.ended(record, cell.source, plain)
        if self._late:
            raise _TooLong

    async def _ask_for_record(self, cell: Any) -> CellRecord | None:
        """Return the record of the cell that has just ended without a report; None if the logger has none."""
        try:
            content = await asyncio.wait_for(
                self._request("", user_expressions={"last": _LAST_RECORD}), _GRACE_S
            )
            answer = content["user_expressions"]["last"]["data"]["text/plain"]
            record = record_from(json.loads(ast.literal_eval(answer)))
        except (asyncio.TimeoutError, KeyError, TypeError, ValueError, SyntaxError):
            return None
        first = cell.source.strip().splitlines()[0]
        if record.started_at in self._seen or not first.startswith(record.source):
            return None  # the record of an earlier cell, or of one nested in this one
        return replace(record, cell_id=cell.id) if record.cell_id is None and "id" in cell else record

    async def _request(self, code: str, **more: Any) -> dict[str, Any]:
        """Return the kernel's reply to code that it runs without a number in `In`."""
        for _ in range(3):
            identity = self._client.kc.execute(code, silent=True, store_history=False, **more)
            if asyncio.iscoroutine(identity):
                identity = await identity
            reply = await self._client.async_wait_for_reply(identity)
            content: dict[str, Any] = (
                reply["content"] if reply else {"status": "error", "evalue": "no answer"}
            )
            if (
                content["status"] != "aborted"
            ):  # which requests are that reach the kernel just after a cell failed
                break
        return content

    async def _start(self) -> None:
        """Start the logger in the kernel."""
        client = self._client
        content = await self._request(_START)
        if content["status"] != "ok":
            raise BadRequest(
                f"the kernel {client.kernel_name!r} cannot load ipygpulogger"
                f" ({_first_line(content.get('evalue', ''))}): install it there with pip install ipygpulogger"
            )
        self._audience.started()
        self.started = True
        with contextlib.suppress(NotImplementedError):  # Windows
            # nbclient's own handler ends the kernel without a word.
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGINT, self._interrupt, asyncio.current_task()
            )

    def _interrupt(self, task: asyncio.Task[Any] | None) -> None:
        """Interrupt the cell on Ctrl-C, so that its figures are kept; end the kernel on the second one."""
        if self._interrupted and task is not None:
            task.cancel()
        else:
            self._interrupt_cell()
        self._interrupted = True

    def _too_long(self) -> None:
        """Interrupt the cell, so that its figures are kept; if that does not help, end the kernel."""
        self._late = True
        self._interrupt_cell()
        self._arm(_GRACE_S, self._end_kernel)

    def _interrupt_cell(self) -> None:
        """Interrupt the cell, or once the kernel runs it: between cells a kernel ignores interrupts."""
        if self._runs:
            self._pending = asyncio.ensure_future(self._manager.interrupt_kernel())
        else:
            self._interrupt_once_it_runs = True

    def _process_message(self, message: dict[str, Any], cell: Any, cell_index: int) -> Any:
        """Notice that the kernel runs the cell now, then do as nbclient does."""
        if message["msg_type"] == "execute_input":
            self._runs = True
            if self._interrupt_once_it_runs:
                self._interrupt_once_it_runs = False
                asyncio.get_running_loop().call_later(_HOOKS_S, self._interrupt_cell)
        return self._nbclients_process_message(message, cell, cell_index)

    def _end_kernel(self) -> None:
        self._pending = asyncio.ensure_future(self._manager.shutdown_kernel(now=True))

    def _arm(self, delay_s: float, action: Callable[[], None]) -> None:
        self._alarm = asyncio.get_running_loop().call_later(delay_s, action)

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()


def displayed_record(cell: Any) -> tuple[CellRecord | None, str]:
    """Return the record in the cell's own report, and the report as plain text; None and "" without one.

    The record gets the cell's id here, because nbclient does not send it to the kernel, as a front end would.
    """
    report: Any = own_report(cell)
    if report is None:
        return None, ""
    try:
        record = record_from(report[MIME])
        if record.cell_id is None and "id" in cell:
            record = replace(record, cell_id=cell.id)
            report[MIME] = embedded(record, report[MIME].get("left_out", ()))
    except (TypeError, ValueError):  # an output that the cell made itself
        return None, ""
    return record, report.get("text/plain", "")


def _first_line(evalue: str) -> str:
    """Return the first line of an error's message in the kernel, without colours; empty without one."""
    lines = _COLOURS.sub("", evalue).strip().splitlines()
    return lines[0] if lines else ""
