"""One execution of a notebook, in a real kernel with the logger on and without a change to the notebook."""

from __future__ import annotations

import ast
import asyncio
import atexit
import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.machine import machine
from ..records.units import clipped
from ..storage.decode import record_from
from ..storage.embed import embedded
from ..storage.formats import IN_METADATA, own_record, shows_processes
from .arguments import BadRequest, installed
from .streams import aside, without_colours

if TYPE_CHECKING:
    import argparse

    from ..records import CellRecord
    from .progress import Transcript
    from .report import Results

# In the kernel, where the notebook may have given our names to something else. The records travel in the rich
# report, whatever report the user's configuration asks for.
_EXTENSION = "__import__('ipygpulogger.notebook.magics').notebook.magics"
_START = "__import__('ipygpulogger').load(get_ipython(), report='rich')"
_LOGGER = f"{_EXTENSION}.GpulogMagics.of(get_ipython()).extension"
_LACKS = f"__import__('json').dumps({_LOGGER}._reporter.lacks)"
_LAST_RECORD = f"{_EXTENSION}.last_record()"
_PROCESS_RECORDS = f"{_EXTENSION}.process_records({{since}})"
_LINES, _READ_BYTES = 25, 20_000  # the most that is told of what the kernel's process wrote
_MESSAGE = 100  # characters of an error's message; the whole is in the traceback
_NO_ANSWER = (asyncio.TimeoutError, KeyError, TypeError, ValueError, SyntaxError)
_GRACE_S = 10  # how long an interrupted cell may take to end before its kernel is ended; and an answer


class _TooLong(Exception):  # noqa: N818 - ends the run
    """A cell ran longer than allowed."""


class Terminated(KeyboardInterrupt):
    """SIGTERM came, and not Ctrl-C."""


class Execution:
    """One execution of a notebook, as `read_notebook` returns it, in its own folder, as in Jupyter.

    Its outputs are filled in. `cell` is the one that runs, or ran last: "cell 3 of 12".
    """

    def __init__(self, notebook: Any, path: Path, options: argparse.Namespace) -> None:
        self.started: bool = False  # the kernel, and the logger in it
        self.cells_without_record: int = 0
        self.cells_failed: int = 0  # and not tagged "raises-exception"
        self._seen: set[datetime] = set()  # when the recorded cells began
        self._since = 0  # in the history of the kernel's logger
        self._notebook = notebook
        self._options = {"lines": options.lines, "peak": options.peak}  # of the logger
        self._timeout_s: float | None = options.timeout
        self._interrupted: type[KeyboardInterrupt] | None = None  # by the last signal
        self._late = self._is_ending = False
        self._alarm: asyncio.TimerHandle | None = None  # when the cell has run too long
        cells = enumerate(notebook.cells)
        self._codes = [i for i, cell in cells if cell.cell_type == "code" and cell.source.strip()]
        self.has_code: bool = bool(self._codes)  # if not, no kernel is started
        self.cell: str = ""
        kernelspec = notebook.metadata.get("kernelspec", {})
        if options.kernel is None:
            language = str(kernelspec.get("language") or "")
            if language.lower() not in ("python", ""):
                raise BadRequest(f"{path} is written in {language}; only Python notebooks can be measured")
        name = options.kernel or kernelspec.get("name", "python3")
        self._client: Any = installed("nbclient").NotebookClient(
            notebook,
            timeout=None,
            allow_errors=options.allow_errors,
            kernel_name=name,
            resources={"metadata": {"path": str(path.parent.resolve())}},
            on_cell_start=self._on_cell_start,
            on_cell_executed=self._on_cell_executed,
        )
        self._nbclients_process_message = self._client.process_message
        self._client.process_message = self._process_message
        self._manager = self._client.create_kernel_manager()
        kernels = self._manager.kernel_spec_manager
        if name not in kernels.find_kernel_specs():
            asks = f"{path} asks for the kernel {name!r}, which"
            lacks = f"the kernel {name!r}" if options.kernel else asks
            choose = "choose one of jupyter kernelspec list with --kernel"
            raise BadRequest(f"{lacks} is not installed here; {choose}")
        language = kernels.get_kernel_spec(name).language
        if language.lower() not in ("python", ""):
            raise BadRequest(f"the kernel {name!r} speaks {language}; only Python can be measured")

    def execute(self, results: Results, transcript: Transcript) -> str | None:
        """Execute the cells in turn, and return why that ended early; raise what came before the first."""
        self._results, self._transcript = results, transcript
        for cell in self._notebook.cells:  # outputs of an earlier execution must not be taken for this one's
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
                cell.metadata.pop(IN_METADATA, None)
        if not self.has_code:
            self._results.started()
            self.started = True
            return None
        with tempfile.TemporaryDirectory(prefix="ipygpulogger-") as folder:
            if os.name == "posix":  # ipykernel 7 warns about TCP at each start
                self._manager.transport, self._manager.ip = "ipc", str(Path(folder) / "kernel")
            self._output = Path(folder) / "output"
            with self._output.open("wb") as output:
                # Not what cells print: most of it is noise, but a kernel that dies may say why.
                return asyncio.run(self._execute(stdout=output, stderr=output))

    async def _execute(self, **streams: Any) -> str | None:
        why: str | None = None
        # Run as soon as nbclient waits for the kernel that it starts: behind its own handlers of signals.
        asyncio.get_running_loop().call_soon(self._handle_signals, asyncio.current_task())
        try:
            await self._client.async_execute(**streams)
        except asyncio.CancelledError:
            if self._manager.has_kernel:  # nbclient leaves one that it was starting
                await self._manager.shutdown_kernel(now=True)
        except Exception as error:
            if not self._interrupted:
                why = self._why(error)
        finally:
            self._disarm()
            atexit.unregister(self._client._cleanup_kernel)  # of nbclient, which an interrupt keeps from that
        if self._interrupted:
            raise self._interrupted
        return why

    def _why(self, error: Exception) -> str:
        """Return why an error of nbclient's ended the execution; raise it if that is unforeseen."""
        from nbclient.exceptions import CellExecutionError, DeadKernelError

        if self._late:
            return f"stopped at {self.cell}, which ran longer than {self._timeout_s:g} s"
        if isinstance(error, CellExecutionError):
            what = ": ".join(filter(None, (error.ename, clipped(_first_line(error.evalue), _MESSAGE))))
            return f"stopped at the cell that failed: {what}"
        text = self._output.read_bytes()[-_READ_BYTES:].decode(errors="replace")
        said = [line for line in text.splitlines() if line.strip()][-_LINES:]
        if isinstance(error, DeadKernelError):
            aside(*(f"    {line}" for line in said))
            news = machine().limits.new_oom_kills()
            return f"the kernel died while it ran {self.cell or 'no cell'}{f': {news}' if news else ''}"
        if isinstance(error, RuntimeError) and not self.started:
            reason = f"{error} ({said[-1]})" if said else error
            raise BadRequest(f"the kernel {self._client.kernel_name!r} did not start: {reason}") from error
        raise error

    async def _on_cell_start(self, cell: Any, cell_index: int) -> None:
        """Start the logger before the first cell, and show which cell runs; called by nbclient."""
        self._disarm()  # nbclient may have skipped the previous cell
        if self._interrupted:  # and the previous cell caught the interrupt
            raise self._interrupted
        if not self.started:
            await self._start()
        if cell_index in self._codes:
            number, count = self._codes.index(cell_index) + 1, len(self._codes)
            self.cell = f"cell {number} of {count}"
            self._transcript.begin(number, count, cell.source)
            if self._timeout_s is not None:
                self._arm(self._timeout_s, self._too_long)

    async def _on_cell_executed(self, cell: Any, cell_index: int, execute_reply: Any, **_: Any) -> None:
        """Pass on the record of the cell that has just ended; called by nbclient."""
        self._disarm()
        record = _displayed_record(cell) or await self._ask_for_record(cell)
        if record is None:
            self.cells_without_record += 1
        else:
            self._seen.add(record.started_at)
            if record.cell_id is None and "id" in cell:  # which nbclient does not tell the kernel
                record = replace(record, cell_id=cell.id)
            self._results.keep([record], cell.source)
        reply = execute_reply["content"]
        failed = reply["status"] == "error"
        self.cells_failed += failed and "raises-exception" not in cell.metadata.get("tags", ())
        with self._results.failure("stdout"):
            # A `UsageError`, as of a magic, has no traceback.
            said = reply.get("traceback") or [f"{reply.get('ename')}: {reply.get('evalue')}"]
            self._transcript.end(record, said if failed else ())
        if failed or cell_index == self._codes[-1] or shows_processes(cell):
            await self._ask_for_processes()
        if self._late:
            raise _TooLong

    async def _ask_for_record(self, cell: Any) -> CellRecord | None:
        """Return the record of the cell that has just ended without a report; None if the logger has none."""
        try:
            values, report = await self._value_of(_LAST_RECORD)
            record = record_from(values)
        except _NO_ANSWER:
            return None
        lines = list(filter(None, map(str.strip, cell.source.splitlines())))
        firsts = lines[: 2 if "%%gpulog" in lines[0] else 1]  # a record has the line after `%%gpulog`
        if record.started_at in self._seen or not any(line.startswith(record.source) for line in firsts):
            return None  # the record of an earlier cell, or of one nested in this one
        if report == "metadata" and not record.gpulog_only:
            cell.metadata[IN_METADATA] = embedded(record)
        return record

    async def _ask_for_processes(self) -> None:
        """Pass on the records of other processes that the kernel's logger keeps since the last time."""
        try:
            self._since, found = await self._value_of(_PROCESS_RECORDS.format(since=self._since))
            records = list(map(record_from, found))
        except _NO_ANSWER:  # the kernel died, or the notebook stopped the logger
            return
        if records:
            self._results.keep(records)  # the tables of them are in the notebook

    async def _value_of(self, expression: str) -> Any:
        """Return what an expression in the kernel returns as JSON; raise one of `_NO_ANSWER` if it cannot."""
        request = self._request("", user_expressions={"answer": expression})
        content = await asyncio.wait_for(request, _GRACE_S)
        return json.loads(ast.literal_eval(content["user_expressions"]["answer"]["data"]["text/plain"]))

    async def _request(self, code: str, **more: Any) -> dict[str, Any]:
        """Return the kernel's reply to code that it runs without a number in `In`."""
        for _ in range(3):
            identity = self._client.kc.execute(code, silent=True, store_history=False, **more)
            if asyncio.iscoroutine(identity):
                identity = await identity
            reply = await self._client.async_wait_for_reply(identity)
            nothing = {"status": "error", "evalue": "no answer"}
            content: dict[str, Any] = reply["content"] if reply else nothing
            if content["status"] != "aborted":  # as a request is that comes just after a cell failed
                break
        return content

    async def _start(self) -> None:
        client = self._client
        set_options = (f"; {_LOGGER}.{name} = {value!r}" for name, value in self._options.items() if value)
        content = await self._request("".join((_START, *set_options)))
        if content["status"] != "ok":
            lacks = f"cannot load ipygpulogger ({_first_line(content.get('evalue', ''))})"
            cure = "install it there with pip install ipygpulogger"
            raise BadRequest(f"the kernel {client.kernel_name!r} {lacks}: {cure}")
        with contextlib.suppress(*_NO_ANSWER):
            for sentence in await self._value_of(_LACKS) if self._options["peak"] else ():
                aside(f"ipygpulogger: {sentence}")  # what the logger's start prints is not shown
        self._results.started()
        self.started = True

    def _handle_signals(self, task: asyncio.Task[Any] | None) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError):  # Windows
            for number, kind in (signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated):
                loop.add_signal_handler(number, self._interrupt, task, kind)

    def _interrupt(self, task: asyncio.Task[Any] | None, kind: type[KeyboardInterrupt]) -> None:
        """Interrupt the cell on a signal, so that its figures are kept; end the kernel on the second one.

        While the kernel starts, no cell can be interrupted, so the first signal ends the kernel.
        """
        if self.started and not self._interrupted:
            self._interrupt_cell()
            if kind is Terminated:  # it is sent once, and SIGKILL often follows after 10 s
                self._disarm()
                self._arm(_GRACE_S / 2, self._end_kernel)
        elif task is not None and not self._is_ending:  # a third one must not cut the ending short
            self._is_ending = True
            task.cancel()
        self._interrupted = kind

    def _too_long(self) -> None:
        """Interrupt the cell, so that its figures are kept; if that does not help, end the kernel."""
        self._late = True
        self._interrupt_cell()
        self._arm(_GRACE_S, self._end_kernel)

    def _interrupt_cell(self) -> None:
        self._pending = asyncio.ensure_future(self._manager.interrupt_kernel())

    def _process_message(self, message: dict[str, Any], cell: Any, cell_index: int) -> Any:
        """Print an output as it comes, beside what nbclient does with it."""
        output = self._nbclients_process_message(message, cell, cell_index)
        if output is not None:
            with self._results.failure("stdout"):
                self._transcript.output(output)
        return output

    def _end_kernel(self) -> None:
        self._pending = asyncio.ensure_future(self._manager.shutdown_kernel(now=True))

    def _arm(self, delay_s: float, action: Callable[[], None]) -> None:
        self._alarm = asyncio.get_running_loop().call_later(delay_s, action)

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()


def _displayed_record(cell: Any) -> CellRecord | None:
    """Return the record in the cell's own report."""
    with contextlib.suppress(TypeError, ValueError):  # it may be an output that the cell made itself
        return None if (values := own_record(cell)) is None else record_from(values)
    return None


def _first_line(evalue: str) -> str:
    """Return the first line of an error's message in the kernel, without colours; empty without one."""
    return without_colours(evalue).strip().partition("\n")[0]
