"""The command line: ``ipygpulogger run NOTEBOOK`` and ``ipygpulogger doctor``.

Exit status: 0 when all went well, 1 when a cell failed, 2 for a request that makes no sense (one
sentence on stderr, nothing written), 130 when interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from .machine import machine
from .records import MIME
from .render import text

if TYPE_CHECKING:
    from collections.abc import Sequence

# The records travel in the rich report, whatever report the user's own configuration wishes.
_START = "import ipygpulogger.magics as _magics; _magics.load(get_ipython(), report='rich'); del _magics"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class _BadRequest(Exception):  # noqa: N818 - the user's mistake, told in one sentence
    """What is wrong with the request."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        status: int = options.command(options)
    except _BadRequest as problem:
        print(f"ipygpulogger: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ipygpulogger", description="What each cell of a notebook costs in RAM, GPU RAM and time."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="execute a notebook and report every cell")
    run.add_argument("notebook", type=Path, help="the notebook; it is not changed")
    run.add_argument(
        "--output", type=Path, help="the executed notebook (default: NAME.executed.ipynb beside it)"
    )
    run.add_argument("--log", type=Path, help="also write one JSON record a cell to this file")
    run.set_defaults(command=_run)
    doctor = commands.add_parser(
        "doctor", help="say what can be measured here, and what to do about each lack"
    )
    doctor.set_defaults(command=_doctor)
    return parser


# -- doctor ----------------------------------------------------------------------------------------


def _doctor(_options: argparse.Namespace) -> int:
    # This process exists for the question alone, so it may import and initialise what a cell would.
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")
        machine().preload()
    print(text.diagnoses(machine().diagnose()))
    return 0


# -- run -------------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    try:
        import nbclient
        import nbformat
    except ImportError as error:
        raise _BadRequest(f"run needs {error.name}: pip install 'ipygpulogger[run]'") from error
    path: Path = options.notebook
    output: Path = options.output or path.with_name(f"{path.stem}.executed.ipynb")
    notebook = _read(path, nbformat)
    for target in filter(None, (output, options.log)):
        _check_target(target, path)
    if options.log and options.log.resolve() == output.resolve():
        raise _BadRequest(f"{output} cannot be both the executed notebook and the log")
    kernel = notebook.metadata.get("kernelspec", {}).get("name", "python3")
    folder = str(path.parent.resolve())
    client = nbclient.NotebookClient(
        notebook, timeout=None, kernel_name=kernel, resources={"metadata": {"path": folder}}
    )
    manager = client.create_kernel_manager()
    if kernel not in manager.kernel_spec_manager.find_kernel_specs():
        raise _BadRequest(f"{path} asks for the kernel {kernel!r}, which is not installed here")
    with tempfile.TemporaryDirectory(prefix="ipygpulogger-") as sockets, contextlib.ExitStack() as files:
        if os.name == "posix":  # over TCP, ipykernel 7 warns at each start
            manager.transport, manager.ip = "ipc", str(Path(sockets) / "kernel")
        run = _Run(notebook, options.log, files)
        for hook in ("on_cell_start", "on_cell_executed"):
            setattr(client, hook, getattr(run, hook))
        run.client = client
        try:
            problem = asyncio.run(run.execute())
        finally:
            if run.started:
                _write(output, nbformat.writes(notebook))  # type: ignore[no-untyped-call, unused-ignore]
    if problem:
        print(f"ipygpulogger: {problem}", file=sys.stderr)
    print(f"executed notebook: {output}", file=sys.stderr)
    return 1 if problem else 0


def _read(path: Path, nbformat: Any) -> Any:
    try:
        source = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise _BadRequest(f"there is no notebook {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise _BadRequest(f"{path} cannot be read: {_one_line(error)}") from error
    try:
        raw = json.loads(source)
    except json.JSONDecodeError as error:
        raise _BadRequest(f"{path} is not a notebook: no JSON ({error})") from error
    if not isinstance(raw, dict) or "nbformat" not in raw:
        raise _BadRequest(f"{path} is not a notebook: it names no nbformat")
    try:
        notebook = nbformat.reads(source, as_version=4)
        nbformat.validate(notebook)
    except Exception as error:  # nbformat raises many kinds for a broken notebook
        raise _BadRequest(f"{path} is a broken notebook: {_one_line(error)}") from error
    language = notebook.metadata.get("kernelspec", {}).get("language", "python")
    if language != "python":
        raise _BadRequest(f"{path} is written in {language}; only Python notebooks can be measured")
    return notebook


def _check_target(target: Path, notebook: Path) -> None:
    if target.resolve() == notebook.resolve():
        raise _BadRequest(f"{target} is the notebook itself; name another file")
    if target.is_dir():
        raise _BadRequest(f"{target} is a folder; name a file")
    if not target.parent.is_dir():
        raise _BadRequest(f"there is no folder {target.parent} to write {target.name} into")
    places = [target, target.resolve().parent] if target.exists() else [target.parent]
    if not all(os.access(place, os.W_OK) for place in places):
        raise _BadRequest(f"{target} may not be written")


def _write(path: Path, source: str) -> None:
    """Write a file whole or not at all; what is no ordinary file (/dev/stdout, a pipe) is written into."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_text(source, encoding="utf-8")
        return
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(source)
    umask = os.umask(0)
    os.umask(umask)
    Path(temporary).chmod(0o666 & ~umask)
    Path(temporary).replace(path)


class _Run:
    """One execution of a notebook: the progress line, the reports, the log."""

    def __init__(self, notebook: Any, log_path: Path | None, files: contextlib.ExitStack) -> None:
        self.client: Any = None
        self.started = self._interrupted = False
        self._log: TextIO | None = None
        self._log_path, self._files = log_path, files
        self._codes = [i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
        self._progress = _Progress(sys.stderr)

    async def execute(self) -> str | None:
        """Execute the cells in turn.

        Returns:
            Why it ended early, in one sentence; None if it did not.
        """
        from nbclient.exceptions import CellExecutionError, DeadKernelError

        ticking = asyncio.ensure_future(self._progress.tick())
        try:
            await self.client.async_execute()
        except CellExecutionError as error:
            if self._interrupted:
                raise KeyboardInterrupt from None
            return f"stopped at the cell that failed: {error.ename}: {_one_line(error.evalue)}"
        except DeadKernelError:
            if self._interrupted:
                raise KeyboardInterrupt from None
            return f"the kernel died while it ran {self._progress.doing or 'no cell'}"
        except RuntimeError as error:
            if self.started:
                raise
            raise _BadRequest(f"the kernel {self.client.kernel_name!r} did not start: {error}") from error
        finally:
            ticking.cancel()
            self._progress.clear()
        return None

    async def on_cell_start(self, cell: Any, cell_index: int) -> None:
        """Say which cell runs; nbclient calls this."""
        if self._interrupted:  # and the cell before took no notice
            raise KeyboardInterrupt
        if not self.started:
            await self._start()
        if cell.cell_type == "code" and cell.source.strip():
            self._progress.start(f"cell {self._codes.index(cell_index) + 1} of {len(self._codes)}")

    async def on_cell_executed(self, cell: Any, **_: Any) -> None:
        """Report the cell that has just ended; nbclient calls this."""
        self._progress.clear()
        count = cell.get("execution_count")
        bundles = (output.get("data", {}) for output in cell.outputs)
        # A cell may also show the records of cells nested in it, or captured earlier: those are not its own.
        own = [bundle for bundle in bundles if bundle.get(MIME, {}).get("execution_count", "") == count]
        if not own:
            return
        first, *more = cell.source.strip().splitlines()
        print(f"In [{count}]: {first}{' ...' if more else ''}\n{own[-1]['text/plain']}\n", flush=True)
        if self._log is not None:
            self._log.write(json.dumps(own[-1][MIME]) + "\n")
            self._log.flush()

    async def _start(self) -> None:
        """Start the logger in the kernel, before the first cell and outside its numbering."""
        client = self.client
        identity = client.kc.execute(_START, silent=True, store_history=False)
        if asyncio.iscoroutine(identity):
            identity = await identity
        reply = await client.async_wait_for_reply(identity)
        content = reply["content"] if reply else {"status": "error", "evalue": "no answer"}
        if content["status"] != "ok":
            raise _BadRequest(
                f"the kernel {client.kernel_name!r} cannot load ipygpulogger"
                f" ({_one_line(content.get('evalue'))}): install it there with pip install ipygpulogger"
            )
        self.started = True
        if self._log_path is not None:  # only now: an older log outlives a request that is refused
            self._log = self._files.enter_context(self._log_path.open("w", encoding="utf-8"))
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
            self._interrupting = asyncio.ensure_future(self.client.km.interrupt_kernel())
        self._interrupted = True


class _Progress:
    """One line on a terminal that says which cell runs and for how long; silent anywhere else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._live = stream, stream.isatty()
        self.doing = ""
        self._since_s = 0.0

    def start(self, doing: str) -> None:
        self.doing, self._since_s = doing, time.perf_counter()
        self._draw()

    def clear(self) -> None:
        if self._live:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(1)
            self._draw()

    def _draw(self) -> None:
        if self._live and self.doing:
            self._stream.write(f"\r\x1b[K{self.doing} runs, {time.perf_counter() - self._since_s:.0f} s")
            self._stream.flush()


def _one_line(problem: object) -> str:
    lines = _COLOURS.sub("", str(problem)).strip().splitlines()
    return lines[0] if lines else type(problem).__name__


if __name__ == "__main__":
    sys.exit(main())
