"""A real Jupyter kernel, and what its cells put out."""

import json
import queue
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field

from jupyter_client.manager import KernelManager

TIMEOUT_S = 60  # of a kernel that hangs; nothing waits so long
WAIT_FOR = """
import os, time
def wait_for(path):
    while not os.path.exists(path): time.sleep(0.01)
"""  # in a kernel: a cell lasts until a test lets it go on
SOON = f"""
import asyncio, logging, subprocess, sys, threading, warnings
from IPython.display import HTML, clear_output, display, update_display
from ipygpulogger import IPyGPULogger
from ipygpulogger.notebook import live
live.AFTER_S, live.EVERY_S = 0.1, 0.02
{WAIT_FOR}"""  # a cell is long after a tenth of a second
SERVANTS = (
    "import threading, time, os, asyncio, gc\n"
    "from ipygpulogger.notebook import cell as cell_module; from ipygpulogger.engine import machine"
)  # what the next line asks
LEFT = (
    "[[t.name for t in threading.enumerate() if 'ipygpulogger' in t.name],"
    " [len(machine.machine().scopes), len(machine.machine().scopes.loggers)],"
    " [repr(c) for cs in get_ipython().events.callbacks.values() for c in cs if 'CellEvents' in repr(c)],"
    " len(cell_module.CellEvents.of(get_ipython())._running)]"
)
NOTHING_LEFT = [[], [0, 0], [], 0]
OURS = "[t.name for t in threading.enumerate() if 'ipygpulogger' in t.name]"


@dataclass
class Ran:
    """One cell that has run: the kernel's reply, and the outputs in their order."""

    reply: dict
    messages: list = field(repr=False)

    @property
    def status(self):
        return self.reply["status"]

    def texts(self, name):
        return "".join(
            m["content"]["text"]
            for m in self.messages
            if m["msg_type"] == "stream" and m["content"]["name"] == name
        )

    @property
    def stdout(self):
        return self.texts("stdout")

    @property
    def stderr(self):
        return self.texts("stderr")

    @property
    def displays(self):
        return [m["content"] for m in self.messages if m["msg_type"] == "display_data"]

    @property
    def result(self):
        return next(
            (m["content"]["data"]["text/plain"] for m in self.messages if m["msg_type"] == "execute_result"),
            None,
        )

    @property
    def kinds(self):
        """The kinds of output in their order."""
        return [m["msg_type"] for m in self.messages if m["msg_type"] not in ("status", "execute_input")]


class Kernel:
    """A kernel of this environment; `with` it."""

    def __init__(self, env, ipython_dir):
        self.manager = KernelManager(kernel_name="python3", transport="ipc", ip=str(ipython_dir / "socket"))
        self._env = {**env, "IPYTHONDIR": str(ipython_dir)}

    def __enter__(self):
        self.manager.start_kernel(env=self._env, extra_arguments=["--HistoryManager.enabled=False"])
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=TIMEOUT_S)
        self._published, self._replies = defaultdict(list), {}
        return self

    def __exit__(self, *_):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def send(self, code, *, subshell=None, silent=False, store_history=True, cell_id=None):
        """Ask for a cell; `wait` for it with what this returns."""
        content = {
            "code": code,
            "silent": silent,
            "store_history": store_history and not silent,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        message = self.client.session.msg("execute_request", content)
        message["header"]["subshell_id"] = subshell
        message["metadata"]["cellId"] = cell_id  # as JupyterLab does
        self.client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def wait(self, asked):
        """The cell asked for, once it has ended."""
        while not any(_idle(m) for m in self._published[asked]):
            self._publish()
        while asked not in self._replies:
            message = self.client.get_shell_msg(timeout=TIMEOUT_S)
            self._replies[message["parent_header"].get("msg_id")] = message["content"]
        return Ran(self._replies.pop(asked), self._published.pop(asked))

    def wait_for_print(self, asked, text):
        """Until the cell, which goes on, has printed this."""
        self.wait_until(asked, lambda ran: text in ran.stdout)

    def so_far(self, asked):
        """What the cell, which goes on, has put out."""
        return Ran({}, self._published[asked])

    def wait_until(self, asked, happened):
        """Until what the cell, which goes on, has put out is so; returns that."""
        while not happened(self.so_far(asked)):
            self._publish()
        return self.so_far(asked)

    def wait_for(self, happened):
        """Until something that shows outside the kernel has happened."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while not happened():
            if time.monotonic() > deadline_s:
                raise TimeoutError("it does not happen")
            time.sleep(0.01)

    def run(self, code, **how):
        """Run a cell to its end."""
        return self.wait(self.send(code, **how))

    def value(self, expression):
        """What an expression is worth in the kernel, asked without a trace."""
        ask = f"import json as _json; print(_json.dumps({expression}))"
        ran = self.run(f"{ask}; del _json", silent=True)
        assert ran.status == "ok", ran.reply
        return json.loads(ran.stdout)

    def begin(self, cells):
        """Run cells that leave no trace and must succeed."""
        for code in cells:
            ran = self.run(code, silent=True)
            assert ran.status == "ok", ran.reply

    @property
    def pid(self):
        """Its process identifier, as text."""
        return str(self.manager.provisioner.pid)

    def subshell(self):
        """A new subshell's id."""
        message = self.client.session.msg("create_subshell_request")
        self.client.control_channel.send(message)
        while True:
            reply = self.client.get_control_msg(timeout=TIMEOUT_S)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                return reply["content"]["subshell_id"]

    def _publish(self):
        try:
            message = self.client.get_iopub_msg(timeout=TIMEOUT_S)
        except queue.Empty:
            raise TimeoutError("the kernel says nothing") from None
        self._published[message["parent_header"].get("msg_id")].append(message)


def _idle(message):
    return message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"


@contextmanager
def rich(kernel):
    """A rich logger runs; a cell that waits for the file `go` is long. Afterwards nothing is tapped."""
    kernel.go = kernel.folder / "go"
    kernel.begin([f"go = {str(kernel.go)!r}\nil = IPyGPULogger(report='rich').start()"])
    yield
    for name in ("go", "go1", "go2"):  # where the test failed
        (kernel.folder / name).touch()
    kernel.begin(["il.stop()"])
    assert kernel.value(OURS) == []
    assert kernel.value("'send' in vars(get_ipython().display_pub.session)") is False
