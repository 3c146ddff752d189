"""A real Jupyter kernel in an environment of its own, as people run it: with IPython's history on."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import write_connection_file

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

START_S = 60  # until a kernel answers
CELL_S = 300  # until a cell has ended; a tool that hangs gets no longer


class CellError(Exception):
    """A cell did not succeed, or the kernel died in it."""


@dataclass
class Ran:
    """What one cell put out, and how long it took from the request until the kernel was idle again."""

    took_s: float
    messages: list[dict[str, Any]]

    @property
    def text(self) -> str:
        """All that a reader of plain text sees of it: streams and displays, in their order."""
        parts = []
        for message in self.messages:
            content = message["content"]
            if message["msg_type"] == "stream":
                parts.append(content["text"])
            elif message["msg_type"] in {"display_data", "execute_result"}:
                parts.append(content["data"].get("text/plain", "") + "\n")
        return "".join(parts)

    @property
    def html(self) -> str:
        """The HTML that it displayed."""
        return "\n".join(
            message["content"]["data"].get("text/html", "")
            for message in self.messages
            if message["msg_type"] in {"display_data", "execute_result"}
        )


class Kernel:
    """One kernel; `with` it. It lives in a folder of its own: home, history, sockets, working directory."""

    def __init__(self, python: Path, folder: Path, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        home = {
            "HOME": str(folder),
            "IPYTHONDIR": str(folder / "ipython"),
            "JPY_PARENT_PID": str(os.getpid()),
        }
        self._env = {**os.environ, **home, **(env or {})}
        self._env.pop("PYTHONPATH", None)  # each tool comes from its environment, ours too
        self._python = python

    def __enter__(self) -> Kernel:  # noqa: PYI034 - typing.Self is of Python 3.11
        connection, _ = write_connection_file(
            str(self.folder / "connection.json"), transport="ipc", ip=str(self.folder / "socket")
        )
        with (self.folder / "said").open("wb") as said:
            self._process = subprocess.Popen(
                [self._python, "-m", "ipykernel_launcher", "-f", connection],
                cwd=self.folder,
                env=self._env,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        self.process = psutil.Process(self._process.pid)
        self.client = BlockingKernelClient(connection_file=connection)
        self.client.load_connection_file()
        self.client.start_channels()
        return self

    def wait_until_ready(self) -> None:
        """Until it answers.

        Raises:
            CellError: It does not.
        """
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                return self.client.wait_for_ready(timeout=START_S)
            except (
                RuntimeError
            ):  # also where the heart does not beat yet, as when many kernels start at a time
                if self._process.poll() is not None or time.monotonic() > deadline_s:
                    said = (self.folder / "said").read_text(errors="replace").strip().splitlines()
                    raise CellError(f"the kernel does not start: {said[-1] if said else ''}") from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.stop_channels()
        left = [self.process, *self._children()]
        for process in left:  # some tools leave a process behind that outlives its kernel
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        self._process.wait()

    def run(self, code: str, *, silent: bool = False) -> Ran:
        """Run a cell to its end.

        Raises:
            CellError: The cell failed, took too long, or the kernel is gone.
        """
        return self.wait(self.send(code, silent=silent))

    def send(self, code: str, *, silent: bool = False) -> tuple[str, float]:
        """Ask for a cell; `wait` for it with what this returns."""
        began_s = time.perf_counter()
        return self.client.execute(code, silent=silent, store_history=not silent, allow_stdin=False), began_s

    def wait(self, asked: tuple[str, float]) -> Ran:
        """The cell asked for, once it has ended; other cells are not looked at.

        Raises:
            CellError: The cell failed, took too long, or the kernel is gone.
        """
        identifier, began_s = asked
        messages: list[dict[str, Any]] = []
        while True:
            message = self._next(began_s)
            if message["parent_header"].get("msg_id") != identifier:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
            messages.append(message)
        ran = Ran(time.perf_counter() - began_s, messages)
        reply: dict[str, Any] = {}
        while reply.get("parent_header", {}).get("msg_id") != identifier:
            reply = self.client.get_shell_msg(timeout=CELL_S)
        if reply["content"]["status"] != "ok":  # also for a magic that is not there, which only prints
            raise CellError(f"{reply['content'].get('ename')}: {reply['content'].get('evalue')}")
        return ran

    def wait_all(self, identifiers: list[str]) -> None:
        """Until all of these cells have ended; what they put out is not kept.

        Raises:
            CellError: They take too long, or the kernel is gone.
        """
        left, began_s = set(identifiers), time.perf_counter()
        while left:
            message = self._next(began_s)
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                left.discard(message["parent_header"].get("msg_id"))
        for _ in identifiers:
            self.client.get_shell_msg(timeout=CELL_S)

    def value(self, expression: str) -> Any:
        """What an expression is worth in the kernel, asked for without a cell."""
        ask = f"import json as _json\nprint(_json.dumps({expression}))\ndel _json"
        return json.loads(self.run(ask, silent=True).text)

    def cpu_s(self) -> float:
        """Processor time that the kernel and all its processes have used, those that ended included."""
        total_s = 0.0
        for process in [self.process, *self._children()]:
            try:
                ended = process.cpu_times()
                # The clock of another process, clock_getcpuclockid(3): finer than the hundredths in /proc.
                total_s += time.clock_gettime((~process.pid << 3) | 2)
            except (OSError, psutil.NoSuchProcess):
                continue
            total_s += ended.children_user + ended.children_system
        return total_s

    def resident_bytes(self) -> int:
        """Resident memory of the kernel and its processes."""
        total_bytes = 0
        for process in [self.process, *self._children()]:
            try:
                total_bytes += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total_bytes

    def _children(self) -> list[psutil.Process]:
        try:
            return self.process.children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _next(self, began_s: float) -> dict[str, Any]:
        while True:
            try:
                return self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                if self._process.poll() is not None:
                    raise CellError("the kernel died") from None
                if time.perf_counter() - began_s > CELL_S:
                    raise CellError(f"the cell did not end within {CELL_S} s") from None
