"""The kernels of all tools, alive at the same time and asked in turns."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, TypeVar

from bench import turns

from .kernels import CellError, Kernel, Ran
from .tables import Column, Figure, figure
from .tools import BARE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from .environments import Environments
    from .tools import Tool

T = TypeVar("T")


class Field:
    """A kernel for each tool, with the tool started in it; `with` it.

    A tool that cannot be installed, does not start or fails in a cell leaves the field: `failed` says why.

    Attributes:
        tools: All that were asked for.
        failed: By the tool's key, the reason in words.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        environments: Environments,
        folder: Path,
        *,
        start: bool = True,
        env: dict[str, str] | None = None,
    ) -> None:
        self.tools = tools
        self.failed: dict[str, str] = {}
        self._environments, self._folder, self._start = environments, folder, start
        self._env = env
        self._kernels: dict[str, Kernel] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Field:  # noqa: PYI034 - typing.Self is of Python 3.11
        starting = {}
        for tool in self.tools:
            if reason := self._environments.failed.get(tool.environment):
                self.failed[tool.key] = reason
            else:
                kernel = Kernel(
                    self._environments.python(tool.environment), self._folder / tool.key, self._env
                )
                starting[tool] = self._stack.enter_context(kernel)
        for tool, kernel in starting.items():
            self._kernels[tool.key] = kernel
            self.ask(tool, partial(self._begin, tool))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _begin(self, tool: Tool, kernel: Kernel) -> None:
        kernel.wait_until_ready()
        kernel.run("pass")
        if self._start and tool.setup:
            kernel.run(tool.setup)

    def ask(self, tool: Tool, question: Callable[[Kernel], T]) -> T | None:
        """Put a question to the tool's kernel; None where the tool fails at it, which ends its part."""
        if tool.key in self.failed:
            return None
        try:
            return question(self._kernels[tool.key])
        except (CellError, OSError, RuntimeError, ValueError) as error:
            self.failed[tool.key] = f"failed: {str(error).splitlines()[0][:80]}"
            print(f"{tool.name} {self.failed[tool.key]}", file=sys.stderr)
            if tool.key == BARE:
                raise  # nothing to stand beside
            return None

    def run(self, tool: Tool, code: str) -> Ran | None:
        """A cell as the tool's user writes it."""
        return self.ask(tool, lambda kernel: kernel.run(tool.cell(code)))

    def silently(self, code: str) -> None:
        """The same preparation in every kernel; no tool measures it."""
        for tool in self.tools:
            self.ask(tool, lambda kernel: kernel.run(code, silent=True))

    def turns(self, rounds: int) -> Iterator[tuple[int, Tool]]:
        """The number of the round, and every tool that is still there; none is always first."""
        by_key = {tool.key: tool for tool in self.tools}
        for i, key in enumerate(turns(list(by_key), rounds)):
            if key not in self.failed:
                yield i // len(by_key), by_key[key]

    def timed(self, code: str, rounds: int, cells: int, warm: int = 2) -> dict[str, dict[int, float]]:
        """Seconds from request to idle: for each tool the median cell of each round."""
        costs_s: dict[str, dict[int, float]] = {tool.key: {} for tool in self.tools}
        for i, tool in self.turns(rounds):
            ran = [self.run(tool, code) for _ in range(warm + cells)]
            took_s = [one.took_s for one in ran[warm:] if one]
            if len(took_s) == cells:
                costs_s[tool.key][i] = median(took_s)
        return costs_s

    def column(
        self, name: str, figures: Mapping[str, Figure | str], better: str = "lower", digits: int = 1
    ) -> Column:
        """A column with words for those that have left the field."""
        return Column(name, better, digits, {**figures, **self.failed})


@dataclass(frozen=True)
class Setting:
    """What every table needs to know: the tools, where they live, a folder, and whether this is a smoke run."""

    tools: Sequence[Tool]
    environments: Environments
    folder: Path
    quick: bool

    def field(
        self, *, tools: Sequence[Tool] | None = None, start: bool = True, env: dict[str, str] | None = None
    ) -> Field:
        """Fresh kernels of all tools or of these, in folders of their own."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        return Field(tools or self.tools, self.environments, folder, start=start, env=env)

    def few(self, many: int, quick: int) -> int:
        """How often, in a full run and in a smoke run."""
        return quick if self.quick else many


def compared(costs_s: dict[str, dict[int, float]], how: Callable[[float, float], float]) -> dict[str, Figure]:
    """Each tool beside the bare kernel of the same round."""
    bare_s = costs_s[BARE]
    return {
        key: figure(how(mine_s, bare_s[i]) for i, mine_s in found.items() if i in bare_s)
        for key, found in costs_s.items()
        if found and key != BARE
    }


def added_ms(mine_s: float, bare_s: float) -> float:
    """What came on top, in milliseconds."""
    return 1000 * (mine_s - bare_s)


def times(mine_s: float, bare_s: float) -> float:
    """How many times as long."""
    return mine_s / bare_s
