"""What a cell costs: milliseconds that the logger adds to an empty one.

Claim: with ``gc_collect=False, clear_cache=False, preload=False`` an empty cell costs 0.2 to 0.3 ms more than in a
bare shell, however many objects live and whatever other threads do: our hooks keep the GIL. In a kernel the
sending of the report comes on top, as it does for any cell that prints or displays.

    python benchmarks/cell_cost.py                    every section
    python benchmarks/cell_cost.py shell busy         some of: shell, busy, objects, kernel, torch
    python benchmarks/cell_cost.py shell --package ../before --package .
                                                      of the package in other checkouts, one after the other

The kernel's section needs ``ipykernel``. The torch section needs the CUDA build of torch and runs on
the simulated GPU of the tests; with ``SIMGPU=0`` in the environment it takes a real one.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from bench import COMPARED, TESTS, about, compare, print_table, quiet_shell, start_gpu, turns

if TYPE_CHECKING:
    from collections.abc import Callable

BARE, LIGHT, RICH, DEFAULT, SAMPLER = "bare", "light, none", "light, rich", "defaults", "1 ms sampling thread"
_LIGHT = {"gc_collect": False, "clear_cache": False, "preload": False}
LOGGERS: dict[str, dict[str, Any]] = {
    LIGHT: {**_LIGHT, "report": "none"},
    "light, text": {**_LIGHT, "report": "text"},
    RICH: {**_LIGHT, "report": "rich"},
    DEFAULT: {},
}
MEANING = "light: `gc_collect=False, clear_cache=False, preload=False`; then the report."
CELL = "pass"
WARM_UP = 3  # cells after each switch that do not count
PAUSE_S = 0.005  # before each cell; in it, and for as long as that takes, IPython's history is written

KERNEL_SETUP = """
from IPython.display import display as _display
from ipygpulogger import IPyGPULogger as _Logger, measure as _measure
from ipygpulogger.records import MIME as _MIME
from ipygpulogger.render import html as _html, text as _plain
with _measure() as _measured:
    pass
_text = _plain.report(_measured.last)
_rich = {"text/plain": _text, "text/html": _html.report(_measured.last), _MIME: _measured.last.to_dict()}
_il = None
"""


class Sampler:
    """The peer: a thread that looks at resident memory each millisecond of a cell, as others do."""

    def __init__(self, shell: Any) -> None:
        import psutil

        self._shell, self._process = shell, psutil.Process()

    def start(self) -> Sampler:
        self._shell.events.register("pre_run_cell", self._pre)
        self._shell.events.register("post_run_cell", self._post)
        return self

    def stop(self) -> None:
        self._shell.events.unregister("pre_run_cell", self._pre)
        self._shell.events.unregister("post_run_cell", self._post)

    def _pre(self, _: Any) -> None:
        self._highest, self._done = self._process.memory_info().rss, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _post(self, _: Any) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(0.001):
            self._highest = max(self._highest, self._process.memory_info().rss)


def in_shell(
    shell: Any,
    loggers: dict[str, dict[str, Any]],
    rounds: int,
    cells: int,
    *,
    pause_s: float = 0.0,
    of: Callable[[list[float]], float] = median,
) -> list[list[str]]:
    """The rows of one comparison in this process.

    Args:
        shell: Runs the cells.
        loggers: The options of each, by the name of its row.
        rounds: How often each has its turn.
        cells: In one turn.
        pause_s: Before each cell.
        of: What stands for the cells of one turn.
    """
    from ipygpulogger import IPyGPULogger

    def run(count: int) -> list[float]:
        costs_s = []
        for _ in range(count):
            if pause_s:
                _pause(shell, pause_s)
            began_s = time.perf_counter()
            shell.run_cell(CELL, store_history=True)
            costs_s.append(time.perf_counter() - began_s)
        return costs_s

    costs_s: dict[str, list[list[float]]] = {name: [] for name in (BARE, SAMPLER, *loggers)}
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        run(WARM_UP if pause_s else 50)
        for name in turns(list(costs_s), rounds):
            logger: Any = None
            if name == SAMPLER:
                logger = Sampler(shell).start()
            elif name != BARE:
                logger = IPyGPULogger(**loggers[name]).start()
            run(WARM_UP)
            costs_s[name].append(run(cells))
            if logger is not None:
                logger.stop()
    return compare(costs_s, BARE, of)


def _pause(shell: Any, pause_s: float) -> None:
    """Wait as long as somebody who types would, for IPython's thread to write the history."""
    history, latest_s = shell.history_manager, time.perf_counter() + 1
    time.sleep(pause_s)
    while history.db_input_cache or history.db_input_cache_lock.locked():
        if time.perf_counter() > latest_s:  # there is no such thread
            break
        time.sleep(0.001)


def shell_section() -> None:
    rows = in_shell(quiet_shell(history=True), LOGGERS, rounds=20, cells=10, pause_s=PAUSE_S)
    remark = "IPython's history is on, in a temporary folder; it is written before the next cell."
    print_table(f"`{CELL}` in a shell as people run it", COMPARED, rows, remark, MEANING, about("ipython"))


def at_once_section() -> None:
    rows = in_shell(quiet_shell(), LOGGERS, rounds=40, cells=20)
    title = f"`{CELL}` again and again, without history or pauses"
    print_table(title, COMPARED, rows, MEANING, about("ipython"))


def busy_section() -> None:
    if find_spec("torch"):
        import torch  # noqa: F401 - as people have it

    shell, rows, done = quiet_shell(history=True), [], threading.Event()
    loggers = {name: LOGGERS[name] for name in (LIGHT, RICH, DEFAULT)}
    running = 0
    for count, rounds in ((1, 10), (16, 3)):
        for _ in range(count - running):
            threading.Thread(target=_count, args=[done], daemon=True).start()
        running = count
        found = in_shell(shell, loggers, rounds, cells=8, pause_s=PAUSE_S, of=mean)
        rows += [[str(count), *row] for row in found]
    done.set()
    title = f"`{CELL}` beside busy Python threads, history on"
    header = ["threads", "logger", "mean ms", *COMPARED[2:]]
    print_table(title, header, rows, MEANING, about("ipython", "torch"))


def _count(done: threading.Event) -> None:
    """Keep the GIL busy."""
    while not done.is_set():
        for _ in range(1000):
            pass


def objects_section() -> None:
    shell, rows = quiet_shell(), []
    loggers = {LIGHT: LOGGERS[LIGHT], DEFAULT: {}}
    for count in (0, 10**5, 10**6):
        shell.user_ns["held"] = [[i] for i in range(count)]
        gc.collect()  # they have lived for long
        rounds, cells = (20, 20) if count < 10**6 else (10, 8)
        found = in_shell(shell, loggers, rounds, cells)
        rows += [[f"{count:,}", *row] for row in found]
    title = f"`{CELL}` while many objects live (lists of one number)"
    print_table(title, ["objects", "logger", *COMPARED[1:]], rows, MEANING, about("ipython"))


def kernel_section() -> None:
    try:
        import ipykernel
    except ImportError:
        print(f"\n### `{CELL}` in a kernel\n\nNot run: ipykernel is not installed.")
        return
    del ipykernel
    sys.path.insert(0, str(TESTS))
    from kernels import Kernel

    printing, displaying = "bare, the cell prints a report", "bare, the cell displays one"
    cells = dict.fromkeys((BARE, printing, displaying, *LOGGERS), CELL)
    cells |= {printing: "print(_text)", displaying: "_display(_rich, raw=True)"}
    costs_s: dict[str, list[list[float]]] = {name: [] for name in cells}
    with (
        tempfile.TemporaryDirectory() as folder,
        Kernel(dict(os.environ), Path(folder)) as kernel,
    ):
        kernel.run(KERNEL_SETUP, silent=True)
        for name in turns(list(cells), 20):
            options = LOGGERS.get(name)
            started = "None" if options is None else f"_Logger(**{options!r}).start()"
            kernel.run(f"_il and _il.stop(); _il = {started}", silent=True)
            round_s = []
            for i in range(WARM_UP + 15):
                began_s = time.perf_counter()
                kernel.run(cells[name])
                if i >= WARM_UP:
                    round_s.append(time.perf_counter() - began_s)
            costs_s[name].append(round_s)
    title = f"`{CELL}` in a real kernel, from request to idle (sockets of the file system)"
    print_table(title, COMPARED, compare(costs_s, BARE), MEANING, about("ipython", "ipykernel"))


def torch_section() -> None:
    title = f"`{CELL}` in a shell, torch imported and a context on a GPU"
    which, reason = start_gpu()
    if reason:
        print(f"\n### {title}\n\nNot run: {reason}.")
        return
    import torch

    shell = quiet_shell(history=True)
    shell.user_ns["held"] = torch.ones(1024, device="cuda")
    only = {
        f"light, none, but {option}=True": {**LOGGERS[LIGHT], option: True}
        for option in ("gc_collect", "clear_cache", "preload")
    }
    rows = in_shell(shell, LOGGERS | only, rounds=15, cells=10, pause_s=PAUSE_S)
    driver = "A simulated driver answers at once; a real one takes longer." if which == "simulated" else ""
    print_table(
        f"{title} ({which})", COMPARED, rows, MEANING, *filter(None, [driver]), about("ipython", "torch")
    )


SECTIONS = {
    "shell": shell_section,
    "at_once": at_once_section,
    "busy": busy_section,
    "objects": objects_section,
    "kernel": kernel_section,
    "torch": torch_section,
}


def main() -> None:
    """Run each section in a fresh interpreter, so that none meets what another left."""
    parser = argparse.ArgumentParser(description="Measure what a cell costs.")
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], help="by default all")
    parser.add_argument("--package", action="append", metavar="FOLDER", help="a checkout with the package")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        SECTIONS[options.sections[0]]()
        return
    for name in options.sections or SECTIONS:
        for folder in options.package or [None]:
            env = dict(os.environ)
            if folder:
                env["PYTHONPATH"] = os.pathsep.join(
                    filter(None, [str(Path(folder).resolve()), env.get("PYTHONPATH")])
                )
                print(f"\nThe package in {folder}:", flush=True)
            subprocess.run([sys.executable, __file__, name, "--here"], check=True, env=env)


if __name__ == "__main__":
    main()
