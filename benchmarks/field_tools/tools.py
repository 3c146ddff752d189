"""The tools that stand beside each other: what to install, how each is started, how it tells what a cell needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import outputs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .kernels import Ran

LIGHT = "gc_collect=False, clear_cache=False, preload=False"
START = "from ipygpulogger import IPyGPULogger\nil = IPyGPULogger({}).start()"


@dataclass(frozen=True)
class Tool:
    """One row of the tables.

    Attributes:
        key: How it is named on the command line.
        name: How it is named in the tables.
        environment: The virtual environment that it lives in.
        requirement: What is installed there; empty for what every environment has.
        setup: The cell that loads and starts it, as its own documentation says.
        magic: The line above each cell that is to be measured, where it does not measure by itself.
        told: Reads the rise in MB from what a cell put out and the kernel's folder; None for the bare kernel.
        digit_mb: The last digit of the figure it shows: it cannot be told wrong by less.
        is_ours: Whether it is the package under test.
    """

    key: str
    name: str
    environment: str
    requirement: str
    setup: str
    magic: str = ""
    told: Callable[[Ran, Path], float | None] | None = None
    digit_mb: float = 1.0
    is_ours: bool = False

    def cell(self, code: str) -> str:
        """The code as a user of this tool writes it."""
        return self.magic + code


BARE, OURS = "bare", "ours"
OUR_TEXT: Callable[[Ran, Path], float | None] = lambda ran, _: outputs.ipygpulogger(ran.text)  # noqa: E731

TOOLS = (
    Tool(BARE, "bare kernel", "bare", "", ""),
    Tool(
        "memory_usage",
        "ipython_memory_usage",
        "memory_usage",
        "ipython-memory-usage==1.8.3",
        "%load_ext ipython_memory_usage\n%imu_start",
        told=lambda ran, _: outputs.memory_usage(ran.text),
        digit_mb=0.1,
    ),
    Tool(
        "memit",
        "memory_profiler, %%memit",
        "memit",
        "memory-profiler==0.61.0",
        "%load_ext memory_profiler",
        magic="%%memit\n",
        told=lambda ran, _: outputs.memit(ran.text),
        digit_mb=0.01,
    ),
    Tool(
        "jumper",
        "jumper-extension",
        "jumper",
        "jumper-extension==0.4.1",
        "%load_ext jumper_extension\n%perfmonitor_start\n%perfmonitor_enable_perfreports",
        told=lambda ran, _: outputs.jumper(ran.html),
        digit_mb=10.24,
    ),
    Tool(
        "cell_logger",
        "ipyexperiments, CellLogger",
        "cell_logger",
        "ipyexperiments==0.1.29",
        "from ipyexperiments import IPyExperimentsCPU\nexp = IPyExperimentsCPU()",
        told=lambda ran, _: outputs.cell_logger(ran.text),
    ),
    Tool(
        "memray",
        "memray, %%memray_flamegraph",
        "memray",
        "memray==1.20.0",
        "%load_ext memray",
        magic="%%memray_flamegraph\n",
        told=lambda ran, folder: outputs.memray_told(ran.text, folder),
        digit_mb=0.1,
    ),
    Tool("defaults", "ipygpulogger, defaults", OURS, "", START.format(""), told=OUR_TEXT, is_ours=True),
    Tool("light", "ipygpulogger, light", OURS, "", START.format(LIGHT), told=OUR_TEXT, is_ours=True),
    Tool("rich", "ipygpulogger, rich", OURS, "", "%load_ext ipygpulogger", told=OUR_TEXT, is_ours=True),
)
MEANING = f"light: `{LIGHT}`. rich: all defaults, loaded with `%load_ext ipygpulogger`, with reports as HTML."


def chosen(keys: str | None) -> list[Tool]:
    """The tools of a list with commas; the bare kernel always comes along, as what the others stand beside.

    Raises:
        ValueError: There is no such tool.
    """
    if keys is None:
        return list(TOOLS)
    asked = {key.strip() for key in keys.split(",")}
    known = {tool.key for tool in TOOLS} | {OURS}
    if unknown := asked - known:
        raise ValueError(f"unknown tool {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    return [tool for tool in TOOLS if tool.key in asked | {BARE} or (tool.is_ours and OURS in asked)]
