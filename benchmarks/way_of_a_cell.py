"""The way of a quiet cell: which of the package's files its hooks enter, and how often they pass from one to another.

Claim: what the user has not imported is asked nothing. An empty cell under a logger with default options enters
few files, and its way is short.

Counted with ``sys.setprofile`` between the beginning of ``pre_run_cell`` and the end of ``post_run_cell``, in the
thread that runs the cell:

- calls: Python functions of the package that are called; a generator counts once, however often it goes on;
- all calls: these, and the Python functions of other packages that are called below them;
- files: the files of the package that are entered;
- moves: calls from one file of the package, or from outside, into another.

    python benchmarks/way_of_a_cell.py                       each section
    python benchmarks/way_of_a_cell.py bare                  some of: bare, torch
    python benchmarks/way_of_a_cell.py --files               and the files, with the calls into each
    python benchmarks/way_of_a_cell.py --package ../other    of the package in another checkout

The torch section needs the CUDA build of torch and runs on the simulated GPU of the tests; with ``SIMGPU=0`` in the
environment it takes a real one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections import Counter
from inspect import CO_GENERATOR
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import about, print_table, quiet_shell, start_gpu

if TYPE_CHECKING:
    from types import FrameType

CELL = "pass"
WARM_UP = 5  # cells before the one that counts: what is loaded or made once is no part of the way
HEADER = ["cell", "calls", "all calls", "files", "moves"]


class Way:
    """Counts calls by file of a package, and the moves between its files."""

    def __init__(self, package: Path) -> None:
        """Prepare.

        Args:
            package: Its folder.
        """
        self._package = str(package) + os.sep
        self._stack: list[
            str
        ] = []  # for each frame that began here, the file of the package that it is in or below
        self._depths: dict[int, int] = {}  # by frame: how many were open when it began
        self._generators: list[FrameType] = []  # that have begun
        self.calls: Counter[str] = Counter()
        self.all_calls = self.moves = 0

    def event(self, frame: FrameType, event: str, _: Any) -> None:
        """Take in an event of `sys.setprofile`."""
        if event == "call":
            file, here = frame.f_code.co_filename, self._stack[-1] if self._stack else ""
            goes_on = self._goes_on(frame)
            if file.startswith(self._package):
                self.calls[file.removeprefix(self._package)] += not goes_on
                self.moves += file != here and not goes_on
                here = file
            self._stack.append(here)
            self.all_calls += bool(here) and not goes_on
        elif event == "return" and self._stack:
            self._stack.pop()

    def _goes_on(self, frame: FrameType) -> bool:
        """Return whether this is a generator that began earlier."""
        if not frame.f_code.co_flags & CO_GENERATOR:
            return False
        known = any(frame is one for one in self._generators)
        if not known:
            self._generators.append(frame)
        return known


def measure_way(shell: Any) -> Way:
    """Run cells under a logger with default options; the way of the last."""
    import ipygpulogger

    logger = ipygpulogger.IPyGPULogger().start()
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        for _ in range(WARM_UP):
            shell.run_cell(CELL, store_history=True)
        way = Way(Path(ipygpulogger.__file__).parent)
        sys.setprofile(way.event)
        shell.run_cell(CELL, store_history=True)
        sys.setprofile(None)
        logger.stop()
    return way


def print_way(title: str, way: Way, *, files: bool) -> None:
    """Print the counts, and on request the calls into each file."""
    row = [f"`{CELL}`", str(sum(way.calls.values())), str(way.all_calls), str(len(way.calls)), str(way.moves)]
    print_table(title, HEADER, [row], about("ipython"))
    if files:
        print()
        for file, calls in way.calls.most_common():
            print(f"    {calls:5d}  {file}")


def bare_section(*, files: bool) -> None:
    """Count with no framework imported."""
    print_way("No framework imported", measure_way(quiet_shell()), files=files)


def torch_section(*, files: bool) -> None:
    """Count with torch imported and its context made on a GPU."""
    which, reason = start_gpu()
    if reason:
        print(f"\n### torch imported\n\nNot run: {reason}.")
        return
    import torch

    shell = quiet_shell()
    shell.user_ns["held"] = torch.ones(1024, device="cuda")
    print_way(f"torch imported, a context on a GPU ({which})", measure_way(shell), files=files)


SECTIONS = {"bare": bare_section, "torch": torch_section}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Count what the hooks of a quiet cell call.")
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], help="by default all")
    parser.add_argument("--files", action="store_true", help="list the files, with the calls into each")
    parser.add_argument("--package", metavar="FOLDER", help="the checkout that holds the package")
    options = parser.parse_args()
    if options.package:
        sys.path.insert(0, str(Path(options.package).resolve()))
    if len(options.sections) == 1:
        SECTIONS[options.sections[0]](files=options.files)
    else:  # each in a fresh interpreter, so that none meets what another left
        flags = [argument for argument in sys.argv[1:] if argument not in SECTIONS]
        for name in options.sections or SECTIONS:
            subprocess.run([sys.executable, sys.argv[0], name, *flags], check=True)
