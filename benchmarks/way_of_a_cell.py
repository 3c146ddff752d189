"""The way of a quiet cell: what its hooks call, from file to file, and where the microseconds go.

Claim: what the user has not imported is asked nothing. A quiet cell enters few files, and its way is short.

Counted with ``sys.setprofile`` within the hooks, in the thread that runs the cell; of several cells the shortest:

- calls: Python functions of the package that are called; a generator counts once, however often it goes on;
- all calls: these, and the Python functions of other packages that are called below them;
- C calls: functions written in C that are called by any of these;
- files: the files of the package that are entered;
- moves: calls from one file of the package, or from outside, into another.

Timed, in microseconds: the steps of the hooks, each with what it calls; and in *italics* parts of these steps.

    python benchmarks/way_of_a_cell.py                       each section
    python benchmarks/way_of_a_cell.py bare                  some of: bare, unused, torch
    python benchmarks/way_of_a_cell.py --files               and the files, with the calls into each
    python benchmarks/way_of_a_cell.py --beside ../other     and of the package in another checkout, taking turns

The section "unused" has two simulated unused devices. The torch section needs the CUDA build of torch and
runs on two devices of the simulated GPU of the tests; with ``SIMGPU=0`` in the environment it takes a real one.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench import TESTS, about, print_table, quiet_shell, start_gpu, turns

sys.path.insert(0, str(TESTS))
from way import way_of_a_cell

if TYPE_CHECKING:
    from collections.abc import Callable

CELL = "pass"
WARM_UP = 5  # cells before those that count: what is loaded or made once is no part of the way
TIMED = 200  # cells
ROUNDS = 5
_LIGHT = {"gc_collect": False, "clear_cache": False, "preload": False}
OPTIONS: dict[str, dict[str, Any]] = {
    "light, none": {**_LIGHT, "report": "none"},
    "light, rich": {**_LIGHT, "report": "rich"},
    "defaults": {},
}
TIMED_OPTIONS = ("light, none", "light, rich")
COUNTS = ["calls", "all calls", "C calls", "files", "moves"]
_LOGGER = "notebook.logger:IPyGPULogger"
PARTS = {  # by what the table calls them: where they are in the package
    "before the cell": "notebook.cell:CellEvents._pre_run_cell",
    "after the cell": "notebook.cell:CellEvents._post_run_cell",
    "_what changed since the last cell_": f"{_LOGGER}._preload",
    "_the scope opens_": "engine.scope:Scope.open",
    "_the scope closes_": "engine.scope:Scope.close",
    "_the record_": "notebook.measured_cell:MeasuredCell.record",
    "_the report_": "notebook.report:Reporter.show",
    "_RAM is read_": "sources.system.process:HighWaterMark.observe",
    "_torch's allocators are read_": "sources.torch.allocators:TorchCounter.observe",
    "_NVML is read_": "sources.nvidia.nvml:Nvml.memory",
}


class Timer:
    """Adds up the time within functions of the package, one cell at a time."""

    def __init__(self) -> None:
        """Wrap them."""
        self._cell_s: dict[str, float] = {}
        self._cells_s: dict[str, list[float]] = {}
        self.forget()
        for part, place in PARTS.items():
            module, _, path = place.partition(":")
            kind, name = path.split(".")
            owner = getattr(importlib.import_module(f"ipygpulogger.{module}"), kind)
            setattr(owner, name, self._timed(part, getattr(owner, name)))

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began_s = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._cell_s[part] += time.perf_counter() - began_s

        return timed

    def next_cell(self) -> None:
        """Keep the sums of a cell, and begin with the next."""
        for part, spent_s in self._cell_s.items():
            self._cells_s[part].append(spent_s)
            self._cell_s[part] = 0.0

    def take_us(self) -> dict[str, float]:
        """Return the median of each part over the cells so far, in microseconds, and forget them."""
        found = {part: median(cells) * 1e6 for part, cells in self._cells_s.items()}
        self.forget()
        return found

    def forget(self) -> None:
        """Forget what was added up so far."""
        self._cell_s = dict.fromkeys(PARTS, 0.0)
        self._cells_s = {part: [] for part in PARTS}


def counted(shell: Any, options: dict[str, Any]) -> tuple[list[int], dict[str, int]]:
    """Return the counts of a cell under a logger with these options, and the calls into each file."""
    import ipygpulogger

    logger = ipygpulogger.IPyGPULogger(**options).start()
    for _ in range(WARM_UP):
        shell.run_cell(CELL, store_history=True)
    way = way_of_a_cell(shell, Path(ipygpulogger.__file__).parent, CELL)
    logger.stop()
    counts = [sum(way.calls.values()), way.all_calls, way.c_calls, len(way.calls), way.moves]
    return counts, dict(way.calls.most_common())


def timed(shell: Any, timer: Timer, options: dict[str, Any]) -> dict[str, float]:
    """Return the microseconds of a cell by part, under a logger with these options."""
    import ipygpulogger

    logger = ipygpulogger.IPyGPULogger(**options).start()
    for _ in range(WARM_UP):
        shell.run_cell(CELL, store_history=True)
    timer.forget()
    for _ in range(TIMED):
        shell.run_cell(CELL, store_history=True)
        timer.next_cell()
    logger.stop()
    return timer.take_us()


def serve(section: str) -> None:
    """Be a fresh interpreter with one checkout's package: answer what is asked, a line of JSON each."""
    reason = None
    if section != "bare":
        which, reason = start_gpu(devices=2, torch=section == "torch")
        if section == "unused" and which != "simulated":
            reason = "it needs the simulated GPU"
    answers = sys.stdout
    if reason is None and section == "torch":
        import torch

        held = [torch.ones(1024, device=f"cuda:{i}") for i in range(torch.cuda.device_count())]
    print(json.dumps(reason), file=answers, flush=True)
    if reason is not None:
        return
    shell, timer = quiet_shell(), None
    for asked in sys.stdin:
        what, _, name = asked.strip().partition(" ")
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
            if what == "count":  # before anything is wrapped
                answer: Any = counted(shell, OPTIONS[name])
            else:
                timer = timer or Timer()
                answer = timed(shell, timer, OPTIONS[name])
        print(json.dumps(answer), file=answers, flush=True)
    if section == "torch":
        del held


class Interpreter:
    """A fresh interpreter that serves one section, with the package of one checkout."""

    def __init__(self, section: str, package: Path) -> None:
        command = [sys.executable, __file__, "--serve", section, "--package", str(package)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.reason = self._answer()

    def ask(self, what: str, name: str) -> Any:
        """Return what it counts, or measures, under the options of this name."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what} {name}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # or somebody else's line
                return json.loads(line)
        raise RuntimeError("the interpreter died")

    def close(self) -> None:
        """End it."""
        self._process.communicate()


TITLES = {
    "bare": "no framework imported",
    "unused": "two unused devices, no framework imported",
    "torch": "torch imported, a context on two devices",
}


def show(section: str, checkouts: dict[str, Path], *, files: bool) -> None:
    """Print the tables of a section."""
    interpreters = {name: Interpreter(section, package) for name, package in checkouts.items()}
    reason = next((one.reason for one in interpreters.values() if one.reason), None)
    if reason:
        print(f"\n### {TITLES[section]}\n\nNot run: {reason}.")
        return
    show_counts(section, interpreters, files=files)
    show_times(section, interpreters)
    for one in interpreters.values():
        one.close()


def show_counts(section: str, interpreters: dict[str, Interpreter], *, files: bool) -> None:
    """Print what a cell calls."""
    rows, into = [], {}
    for options in OPTIONS:
        for name, one in interpreters.items():
            counts, into[name, options] = one.ask("count", options)
            rows.append([options, name, *map(str, counts)])
    packages = ("ipython", "torch") if section == "torch" else ("ipython",)
    print_table(f"What a cell calls: {TITLES[section]}", ["", "", *COUNTS], rows, about(*packages))
    for (name, options), calls in into.items() if files else ():
        print(f"\n{name}, {options}:\n")
        print("\n".join(f"    {count:5d}  {file}" for file, count in calls.items()))


def show_times(section: str, interpreters: dict[str, Interpreter]) -> None:
    """Print where the time goes."""
    columns = [(options, name) for options in TIMED_OPTIONS for name in interpreters]
    spent: dict[tuple[str, str], list[dict[str, float]]] = {column: [] for column in columns}
    for name in turns(list(interpreters), ROUNDS):
        for options in TIMED_OPTIONS:
            spent[options, name].append(interpreters[name].ask("time", options))
    rows = []
    for part in PARTS:
        least_us = [min(one[part] for one in spent[column]) for column in columns]
        if any(least_us):
            rows.append([part, *(f"{us:.0f}" for us in least_us)])
    header = ["", *map(": ".join, columns)]
    remark = (
        f"Microseconds of a cell: the median of {TIMED} cells, the least of {ROUNDS} rounds that took turns."
    )
    print_table(f"Where the time goes: {TITLES[section]}", header, rows, remark)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Count and time what the hooks of a quiet cell call.")
    parser.add_argument("sections", nargs="*", choices=[*TITLES, []], help="by default all")
    parser.add_argument("--files", action="store_true", help="list the files, with the calls into each")
    parser.add_argument("--beside", metavar="FOLDER", type=Path, help="another checkout, to take turns with")
    parser.add_argument("--package", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.package:
        sys.path.insert(0, str(given.package.resolve()))
    if given.serve:
        serve(given.serve)
    else:
        found = {"now": Path(__file__).resolve().parent.parent}
        if given.beside:
            found = {"before": given.beside, **found}
        for name in given.sections or TITLES:
            show(name, found, files=given.files)
