"""What lines cost: a cell or function with every line measured, beside its bare time.

Claim: a library-heavy cell under ``%%gpulog --lines`` takes at most 1.1 times its bare time on Python 3.12 and
later; a loop of 200,000 is counted rather than crawled through. Before Python 3.12 there is no
``sys.monitoring``: each call of a library's Python function costs a look into a table.

    python benchmarks/lines_cost.py                   every section
    python benchmarks/lines_cost.py library loop      some of: library, loop, line, torch

The torch section needs the CUDA build of torch and runs on the simulated GPU of the tests; with
``SIMGPU=0`` in the environment it takes a real one. line_profiler and pytorch_memlab stand beside us
where they are installed.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
import warnings
from functools import partial
from statistics import median
from types import FunctionType
from typing import TYPE_CHECKING, Any

from bench import COMPARED, about, compare, print_table, quiet_shell, run_sections, start_gpu, turns

from ipygpulogger import measure_lines

if TYPE_CHECKING:
    from collections.abc import Callable

CLOCK = "Seconds of the processor, which other work does not lengthen."
BARE, OURS = "bare", "measure_lines"
CELL, REPORTED, OUR_CELL = "bare cell", "%%gpulog", "%%gpulog --lines"

data = {f"key{i}": [i, i / 7, str(i), {"nested": [True, None, "x" * 20]}] for i in range(5_000)}


def library() -> int:
    """The work is done within the library, in C: some milliseconds a call."""
    size = 0
    for _ in range(40):
        text = json.dumps(data)
        size += len(json.loads(text))
    return size


def python_library() -> int:
    """The same where the library's own work is written in Python: an indented text."""
    size = 0
    for _ in range(4):
        text = json.dumps(data, indent=1)
        size += len(text)
    return size


def loop() -> int:
    total = 0
    for i in range(200_000):
        total += i * i
    return total


def few_lines() -> int:
    total = 0
    for i in range(500):
        total += i * i
    return total


def profiled(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """The function under line_profiler, a new one each time; None where that is not installed."""
    try:
        from line_profiler import LineProfiler
    except ImportError:
        return None

    def run(*args: Any) -> Any:
        return LineProfiler()(function)(*args)

    return run


def naively(function: Callable[..., Any]) -> Callable[..., Any]:
    """A trace function that looks at every line of everything, as simple profilers have."""

    def run(*args: Any) -> Any:
        seen = 0

        def trace(_frame: Any, _event: str, _arg: Any) -> Any:
            nonlocal seen
            seen += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return function(*args)
        finally:
            sys.settrace(before)

    return run


def copy_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same with code of its own: line_profiler changes what it is given."""
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


def beside(function: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The function bare, under our lines, and under others'."""
    found: dict[str, Any] = {
        BARE: function,
        OURS: measure_lines(report=False)(copy_of(function)),
        "line_profiler": profiled(copy_of(function)),
        "a naive sys.settrace": naively(copy_of(function)),
    }
    return {name: runner for name, runner in found.items() if runner}


def timed(runners: dict[str, Callable[..., Any]], rounds: int, *args: Any) -> dict[str, list[list[float]]]:
    """Seconds of the processor that each took, in turns."""
    costs_s: dict[str, list[list[float]]] = {name: [] for name in runners}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is only counted
        for runner in runners.values():
            runner(*args)
        for name in turns(list(runners), rounds):
            began_s = time.process_time()
            runners[name](*args)
            costs_s[name].append([time.process_time() - began_s])
    return costs_s


def fine(rows: list[list[str]], costs_s: dict[str, list[list[float]]], base: str) -> list[list[str]]:
    """`compare`'s rows with two digits to the ratios, since these are near one."""
    for row in rows:
        pairs = zip(costs_s[row[0]], costs_s[base], strict=True)
        row[-1] = f"{median(mine[0] / bare[0] for mine, bare in pairs):.2f}"
    return rows


def table(title: str, costs_s: dict[str, list[list[float]]], base: str, *remarks: str) -> None:
    rows = fine(compare(costs_s, base), costs_s, base)
    print_table(title, COMPARED, rows, *remarks, CLOCK, about("line_profiler"))


def cells(source: str, rounds: int) -> dict[str, list[list[float]]]:
    """Seconds of a cell in a shell, bare and with ``%%gpulog --lines`` above it."""
    shell = quiet_shell()
    shell.user_ns.update(json=json, data=data)
    shell.run_line_magic("load_ext", "ipygpulogger")
    shell.run_line_magic("gpulog", "stop")

    def run(text: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            shell.run_cell(text, store_history=True).raise_error()

    heads = {CELL: "", REPORTED: f"{REPORTED}\n", OUR_CELL: f"{OUR_CELL}\n"}
    runners = {name: partial(run, head + source) for name, head in heads.items()}
    costs_s = timed(runners, rounds)
    shell.run_line_magic("unload_ext", "ipygpulogger")
    return costs_s


def library_section() -> None:
    table("A function that calls `json` 80 times", timed(beside(library), 9), BARE)
    table("`json` with `indent=1`, whose work is Python", timed(beside(python_library), 7), BARE)
    source = "size = 0\nfor _ in range(200):\n    text = json.dumps(data)\n    size += len(json.loads(text))\nsize = 0\n"
    table("A cell in a shell that calls `json` 400 times", cells(source, 7), CELL)


def loop_section() -> None:
    table("A loop of 200,000 in pure Python", timed(beside(loop), 9), BARE)


def added_us(function: Callable[..., Any], rounds: int) -> dict[str, float]:
    """Microseconds added to each line that ran."""
    runners = beside(function)
    costs_s = timed(runners, rounds)
    hits = sum(line.hits for line in runners[OURS].lines)  # type: ignore[attr-defined]
    return {
        name: median(mine[0] - bare[0] for mine, bare in zip(costs, costs_s[BARE], strict=True)) / hits * 1e6
        for name, costs in costs_s.items()
        if name != BARE
    }


def line_section() -> None:
    rows = [[name, f"{cost_us:.1f}"] for name, cost_us in added_us(few_lines, 25).items()]
    print_table("Added to each line while its memory is measured", ["", "us"], rows, about("line_profiler"))


def torch_section() -> None:
    title = "50 steps of a training, 7 lines each"
    which, reason = start_gpu()
    if reason:
        print(f"\n### {title}\n\nNot run: {reason}.")
        return
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch = torch.randn(32, 64, device="cuda")

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            out = model(batch)
            loss = out.square().mean()
            loss.backward()
            optimizer.step()

    runners = {BARE: train, OURS: measure_lines(report=False)(train)}
    try:
        from pytorch_memlab import LineProfiler
    except ImportError:
        pass
    else:

        def memlab(steps: int) -> None:
            with LineProfiler(train) as profiler:
                train(steps)
            profiler.disable()

        runners["pytorch_memlab"] = memlab
    costs_s = timed(runners, 9, 50)
    rows = fine(compare(costs_s, BARE), costs_s, BARE)
    note = "A simulated driver answers at once and its kernels take no time." if which == "simulated" else ""
    print_table(
        f"{title} ({which} GPU)",
        COMPARED,
        rows,
        *filter(None, [note]),
        CLOCK,
        about("torch", "pytorch_memlab"),
    )


if __name__ == "__main__":
    run_sections(
        {"library": library_section, "loop": loop_section, "line": line_section, "torch": torch_section}
    )
