"""One execution of a notebook, in a real kernel with the logger on and without a change to the notebook."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..records import MIME
from ..records.decode import record_from
from ..records.embed import embedded
from ..records.formats import own_report
from ..records.units import is_utf8, printable
from ..runtime.errors import why
from ..runtime.files import BadRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from ..records import CellRecord

# The records travel in the rich report, whatever report the user's own configuration wishes.
_START = (
    "import ipygpulogger.notebook.magics as _magics\n_magics.load(get_ipython(), report='rich')\ndel _magics"
)
# The last record of that logger, whatever the notebook made of its report and of our names.
_LAST = (
    "__import__('json').dumps(__import__('sys').modules['ipygpulogger.notebook.magics']"
    "._loaded[__import__('IPython').get_ipython()].logger.history[-1].to_dict())"
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_GRACE_S = 10  # for a cell that ran too long and was interrupted, before its kernel is ended; for an answer


class _TooLong(Exception):  # noqa: N818 - ends the run
    """A cell used up its time."""


def read(path: Path) -> Any:
    """A notebook that can be executed.

    Raises:
        BadRequest: There is none, it is broken, or what reads it is not installed.
    """
    nbformat = _installed("nbformat")
    try:
        source = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BadRequest(f"there is no notebook {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} cannot be read: {why(error)}") from error
    try:
        raw = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{path} is not a notebook: no JSON ({one_line(error)})") from error
    if not isinstance(raw, dict) or "nbformat" not in raw:
        raise BadRequest(f"{path} is not a notebook: it names no nbformat")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a cell without an id is given one
            notebook = nbformat.reads(source, as_version=4)
            nbformat.validate(notebook)
    except Exception as error:  # nbformat raises many kinds for a broken notebook
        raise BadRequest(f"{path} is a broken notebook: {one_line(error)}") from error
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type == "code" and not is_utf8(cell.source):
            raise BadRequest(
                f"{path}: cell {number} holds half a character (a surrogate); no kernel takes it"
            )
    return notebook


def written(notebook: Any) -> str:
    """The notebook as its file has it."""
    text: str = _installed("nbformat").writes(notebook)
    return text


def one_line(problem: object) -> str:
    """The first line of an error's message, without colours; its kind where it has none."""
    lines = _COLOURS.sub("", str(problem)).strip().splitlines()
    return lines[0] if lines else type(problem).__name__


class Audience(Protocol):
    """Who is told of a run."""

    def started(self) -> None:
        """The kernel and the logger in it run; the first cell comes next."""

    def ended(self, record: CellRecord, source: str, report: str) -> None:
        """A cell has ended: its record, its text, its report as plain text, empty if it displayed none."""


class Run:
    """One execution of a notebook.

    Args:
        notebook: As `read` returns it; its outputs are filled in.
        path: Where it lies; it runs in that folder, as in Jupyter.
        kernel: The name of another kernel than the notebook's own.
        timeout_s: How long a cell may take; None for as long as it likes.
        audience: Who is told of the records.

    Raises:
        BadRequest: The kernel is not installed or not Python's, or nbclient is not installed.
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
        self.untold = 0  # cells without a record
        self._told: set[datetime] = set()  # when each began
        self._notebook = notebook
        self._timeout_s, self._audience = timeout_s, audience
        self._interrupted = self._late = False
        self._alarm: asyncio.TimerHandle | None = None
        self._codes = [i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
        self.has_code = any(notebook.cells[i].source.strip() for i in self._codes)
        self._progress = _Progress(len(self._codes))
        kernelspec = notebook.metadata.get("kernelspec", {})
        if kernel is None:
            language = str(kernelspec.get("language") or "")
            if language.lower() not in ("python", ""):
                raise BadRequest(f"{path} is written in {language}; only Python notebooks can be measured")
        name = kernel or kernelspec.get("name", "python3")
        self._client: Any = _installed("nbclient").NotebookClient(
            notebook,
            timeout=None,
            kernel_name=name,
            resources={"metadata": {"path": str(path.parent.resolve())}},
            on_cell_start=self._on_cell_start,
            on_cell_executed=self._on_cell_executed,
        )
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
        """Execute the cells in turn; without code in any of them no kernel is started.

        Returns:
            Why it ended early, in one sentence; None if it did not.

        Raises:
            BadRequest: The kernel did not start, or cannot load this package.
            KeyboardInterrupt: The user interrupted it.
        """
        for cell in self._notebook.cells:  # what is not executed now shall not be taken for it
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        if not self.has_code:  # no kernel is needed for that
            self._audience.started()
            self.started = True
            return None
        with tempfile.TemporaryDirectory(prefix="ipygpulogger-") as sockets:
            if os.name == "posix":  # over TCP, ipykernel 7 warns at each start
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
            doing = self._progress.doing or "no cell"
            if self._late:
                return f"stopped at {doing}, which ran longer than {self._timeout_s:g} s"
            if isinstance(error, CellExecutionError):
                return f"stopped at the cell that failed: {error.ename}: {one_line(error.evalue)}"
            return f"the kernel died while it ran {doing}"
        except RuntimeError as error:
            if self.started:
                raise
            raise BadRequest(f"the kernel {self._client.kernel_name!r} did not start: {error}") from error
        finally:
            self._disarm()
        return None

    async def _on_cell_start(self, cell: Any, cell_index: int) -> None:
        """Say which cell runs; nbclient calls this."""
        self._disarm()  # the cell before may have been skipped
        if self._interrupted:  # and the cell before took no notice
            raise KeyboardInterrupt
        if not self.started:
            await self._start()
        if cell.cell_type == "code" and cell.source.strip():
            self._progress.start(self._codes.index(cell_index) + 1, cell.source)
            if self._timeout_s is not None:
                self._arm(self._timeout_s, self._too_long)

    async def _on_cell_executed(self, cell: Any, **_: Any) -> None:
        """Tell of the cell that has just ended; nbclient calls this."""
        self._disarm()
        self._progress.pause()
        record, plain = displayed(cell)
        if record is None:
            record = await self._asked(cell)
        if record is None:
            self.untold += 1
        else:
            self._told.add(record.started_at)
            self._audience.ended(record, cell.source, plain)
        if self._late:
            raise _TooLong

    async def _asked(self, cell: Any) -> CellRecord | None:
        """The record of the cell that has just ended without a report; None if the logger has none."""
        try:
            content = await asyncio.wait_for(self._request("", user_expressions={"last": _LAST}), _GRACE_S)
            said = content["user_expressions"]["last"]["data"]["text/plain"]
            record = record_from(json.loads(ast.literal_eval(said)))
        except (asyncio.TimeoutError, KeyError, TypeError, ValueError, SyntaxError):
            return None
        first = cell.source.strip().splitlines()[0]
        if record.started_at in self._told or not first.startswith(record.source):
            return None  # of an earlier cell, or of one nested in this one
        return replace(record, cell_id=cell.id) if record.cell_id is None and "id" in cell else record

    async def _request(self, code: str, **more: Any) -> dict[str, Any]:
        """What the kernel answers to code that it runs outside the numbering."""
        for _ in range(3):
            identity = self._client.kc.execute(code, silent=True, store_history=False, **more)
            if asyncio.iscoroutine(identity):
                identity = await identity
            reply = await self._client.async_wait_for_reply(identity)
            content: dict[str, Any] = (
                reply["content"] if reply else {"status": "error", "evalue": "no answer"}
            )
            if content["status"] != "aborted":  # as all is that follows a failed cell at once
                break
        return content

    async def _start(self) -> None:
        """Start the logger in the kernel, before the first cell and outside its numbering."""
        client = self._client
        content = await self._request(_START)
        if content["status"] != "ok":
            raise BadRequest(
                f"the kernel {client.kernel_name!r} cannot load ipygpulogger"
                f" ({one_line(content.get('evalue'))}): install it there with pip install ipygpulogger"
            )
        self._audience.started()
        self.started = True
        with contextlib.suppress(NotImplementedError):  # Windows
            # In place of nbclient's own handler, which ends the kernel and does not say why.
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGINT, self._interrupt, asyncio.current_task()
            )

    def _interrupt(self, task: asyncio.Task[Any] | None) -> None:
        """Ctrl-C interrupts the cell, so that its figures are kept; a second one ends the kernel."""
        if self._interrupted and task is not None:
            task.cancel()
        else:
            self._doing = asyncio.ensure_future(self._manager.interrupt_kernel())
        self._interrupted = True

    def _too_long(self) -> None:
        """Interrupt the cell, so that its figures are kept; if it does not mind, end the kernel."""
        self._late = True
        self._doing = asyncio.ensure_future(self._manager.interrupt_kernel())
        self._arm(_GRACE_S, self._end_kernel)

    def _end_kernel(self) -> None:
        self._doing = asyncio.ensure_future(self._manager.shutdown_kernel(now=True))

    def _arm(self, delay_s: float, action: Callable[[], None]) -> None:
        self._alarm = asyncio.get_running_loop().call_later(delay_s, action)

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()


def displayed(cell: Any) -> tuple[CellRecord | None, str]:
    """The record in the cell's own report, and that as plain text; it names the cell now."""
    report: Any = own_report(cell)
    if report is None:
        return None, ""
    try:
        record = record_from(report[MIME])
        if record.cell_id is None and "id" in cell:  # nbclient does not tell the kernel; a front end would
            record = replace(record, cell_id=cell.id)
            report[MIME] = embedded(record, report[MIME].get("left_out", ()))
    except (TypeError, ValueError):  # a cell may make such an output itself
        return None, ""
    return record, report.get("text/plain", "")


class _Progress:
    """A line on a terminal: which cell runs, for how long, and how many are left; silent anywhere else."""

    def __init__(self, count: int) -> None:
        self.doing = ""  # "cell 3 of 12"
        self._count = count
        self._rich: Any = None
        if sys.stderr.isatty():
            with contextlib.suppress(ImportError):
                self._rich = _rich_progress()
                self._task = self._rich.add_task("", total=count, source="")

    def start(self, number: int, source: str) -> None:
        """This cell begins."""
        self.doing = f"cell {number} of {self._count}"
        if self._rich is not None:
            first = printable(source.strip().splitlines()[0])
            self._rich.reset(self._task, completed=number - 1, description=self.doing, source=first)
            self._rich.start()

    def pause(self) -> None:
        """Off the terminal, so that something else can be said."""
        if self._rich is not None:
            self._rich.stop()

    stop = pause


def _rich_progress() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    plain = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[source]}", markup=False, table_column=plain),
        console=Console(stderr=True),
        transient=True,
        expand=True,
    )


def _installed(name: str) -> Any:
    """An optional library of ours."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadRequest(f"run needs {error.name}: pip install 'ipygpulogger[run]'") from error
