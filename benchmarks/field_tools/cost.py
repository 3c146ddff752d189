"""What the tools cost: an empty cell, busy cells, a cell that sleeps, loading."""

from __future__ import annotations

import time
from functools import partial
from operator import methodcaller
from statistics import median

from .kernels import Kernel
from .running import Field, Setting, added_ms, compared, times
from .tables import Column, Figure, Table, figure
from .tools import MEANING

CLOCK = "From the request until the kernel is idle, with IPython's history on. Tools with a cell magic have it above each cell."

# About 0.3 s each, bare.
CPU = """
_total = 0
for _i in range(4_000_000):
    _total += _i * _i % 7
"""
ALLOCATING = """
for _ in range(4):
    _made = [{"key": _i, "value": (_i, str(_i))} for _i in range(70_000)]
del _made
"""
NUMPY_SETUP = "import numpy as _np\n_small = _np.ones((400, 400))\n_long = _np.ones(200_000)"
NUMPY = """
for _ in range(60):
    _product = _small @ _small
    _sums = (_long * 2 + 1).sum(), _np.sort(_long)[0]
"""
TORCH_SETUP = """
import torch as _torch
_torch.set_num_threads(1)
_net = _torch.nn.Sequential(*[_torch.nn.Linear(128, 128) for _ in range(4)])
_descent = _torch.optim.SGD(_net.parameters(), lr=0.01)
_batch = _torch.ones(64, 128)
"""
TORCH = """
for _ in range(600):
    _descent.zero_grad()
    _loss = _net(_batch).square().mean()
    _loss.backward()
    _descent.step()
"""


def empty(setting: Setting) -> Table:
    """Milliseconds that a tool adds to ``pass``, before and after torch is imported."""
    table = Table("empty", "An empty cell in a real kernel", setting.tools, remarks=[CLOCK, MEANING])
    rounds, cells = setting.few(15, 3), setting.few(4, 3)
    with setting.field() as field:
        plain = field.timed("pass", rounds, cells)
        table.columns += [
            field.column("ms", _milliseconds(plain), better=""),
            field.column("added ms", compared(plain, added_ms)),
        ]
        if reason := setting.environments.failed.get("torch"):
            table.remarks.append(f"No column with torch imported: {reason}.")
        else:
            field.silently("import torch")
            with_torch = field.timed("pass", setting.few(8, 2), setting.few(3, 2))
            table.columns.append(field.column("added ms, torch imported", compared(with_torch, added_ms)))
    return table


def _milliseconds(costs_s: dict[str, dict[int, float]]) -> dict[str, Figure]:
    return {
        key: figure(1000 * took_s for took_s in found.values()) for key, found in costs_s.items() if found
    }


def busy(setting: Setting) -> Table:
    """How many times as long cells take that work."""
    table = Table("busy", "Cells that work, times the bare kernel's time", setting.tools)
    works = {
        "CPU-bound": ("pass", CPU),
        "allocating": ("pass", ALLOCATING),
        "numpy": (NUMPY_SETUP, NUMPY),
        "torch": (TORCH_SETUP, TORCH),
    }
    if reason := setting.environments.failed.get("torch"):
        del works["torch"]
        table.remarks.append(f"No column for torch: {reason}.")
    costs_s: dict[str, dict[str, dict[int, float]]] = {
        name: {tool.key: {} for tool in setting.tools} for name in works
    }
    failed: dict[str, str] = {}
    rounds = 2
    for lot in range(setting.few(3, 1)):
        with setting.field() as field:
            for name, (setup, work) in works.items():
                field.silently(setup)
                field.silently(work)  # what comes only once: threads, caches
                for key, mine in field.timed(work, rounds, 1, warm=0).items():
                    costs_s[name][key].update({lot * rounds + i: took_s for i, took_s in mine.items()})
            failed |= field.failed
    for name, found in costs_s.items():
        table.columns.append(Column(name, "lower", 2, {**compared(found, times), **failed}))
    bare_s = {name: median(found["bare"].values()) for name, found in costs_s.items()}
    lasts = ", ".join(f"{name} {1000 * took_s:.0f}" for name, took_s in bare_s.items())
    table.remarks += [
        (
            f"Times in the bare kernel, in ms: {lasts}. The same loop takes some percent more or less in another process, so "
            "every cell ran in several kernels. torch used one thread."
        ),
    ]
    return table


def sleeping(setting: Setting) -> Table:
    """Processor time while a cell sleeps."""
    sleep_s, rounds = 10, setting.few(3, 1)
    title = f"Processor time while a cell sleeps for {sleep_s} s, in ms"
    table = Table("sleeping", title, setting.tools)
    used_ms: dict[str, list[float]] = {tool.key: [] for tool in setting.tools}
    with setting.field() as field:
        field.silently("import time")
        for _ in range(rounds):
            _sleep_together(field, sleep_s, used_ms)
        found = {key: figure(values) for key, values in used_ms.items() if values}
        table.columns.append(field.column("processor ms", found, digits=1))
    table.remarks.append(
        "All threads of the kernel and of the processes that the tool started. "
        f"{sleep_s * 1000:,} ms would be a whole core."
    )
    return table


def _sleep_together(field: Field, sleep_s: int, used_ms: dict[str, list[float]]) -> None:
    code = f"time.sleep({sleep_s})"
    before_s = {tool.key: field.ask(tool, Kernel.cpu_s) for tool in field.tools}
    asked = {tool.key: field.ask(tool, methodcaller("send", tool.cell(code))) for tool in field.tools}
    for tool in field.tools:
        field.ask(tool, methodcaller("wait", asked[tool.key]))
        after_s, began_s = field.ask(tool, Kernel.cpu_s), before_s[tool.key]
        if after_s is not None and began_s is not None:
            used_ms[tool.key].append(1000 * (after_s - began_s))


def loading(setting: Setting) -> Table:
    """What it takes to load and start each tool in a running kernel."""
    table = Table("loading", "Loading and starting in a running kernel", setting.tools)
    took_ms: dict[str, list[float]] = {tool.key: [] for tool in setting.tools}
    grew_mb: dict[str, list[float]] = {tool.key: [] for tool in setting.tools}
    failed: dict[str, str] = {}
    for _ in range(setting.few(7, 2)):
        with setting.field(start=False) as field:
            time.sleep(1)  # until the kernels have done what they do after their start
            for _, tool in field.turns(1):
                if tool.setup:
                    loaded = field.ask(tool, partial(_load, tool.setup))
                    if loaded:
                        took_ms[tool.key].append(loaded[0])
                        grew_mb[tool.key].append(loaded[1])
            failed |= field.failed
    columns = {"ms": (took_ms, 0), "memory MB": (grew_mb, 1)}
    for name, (values, digits) in columns.items():
        found = {key: figure(got) for key, got in values.items() if got}
        table.columns.append(Column(name, "lower", digits, {**found, **failed}))
    disk = {
        tool.key: f"{setting.environments.size_mb(tool.environment)}" for tool in setting.tools if tool.setup
    }
    table.columns.append(Column("on disk MB", "", 0, {**disk, **failed}))
    table.remarks.append(
        "Without the time of an empty cell. Memory is that of the kernel and of the processes that the tool starts. On disk "
        "is what pip installs beside IPython, ipykernel, psutil, numpy and torch."
    )
    return table


def _load(setup: str, kernel: Kernel) -> tuple[float, float]:
    bare_s = median(kernel.run("pass").took_s for _ in range(5))
    before_bytes = kernel.resident_bytes()
    took_s = kernel.run(setup).took_s
    return added_ms(took_s, bare_s), (kernel.resident_bytes() - before_bytes) / 2**20
