"""A table of tools, and what it says about who comes first."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import TYPE_CHECKING

from bench import table

from .tools import BARE, Tool

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True)
class Figure:
    """A median between its quartiles; `shown` where it is written otherwise."""

    middle: float
    low: float
    high: float
    shown: str = ""

    def written(self, digits: int) -> str:
        if self.shown:
            return self.shown
        middle, low, high = (f"{value:.{digits}f}" for value in (self.middle, self.low, self.high))
        return middle if low == middle == high else f"{middle} ({low} to {high})"


def figure(values: Iterable[float], shown: str = "") -> Figure:
    """The figure of repeated measurements."""
    found = list(values)
    if len(found) == 1:
        return Figure(found[0], found[0], found[0], shown)
    low, _, high = quantiles(found, n=4, method="inclusive")
    return Figure(median(found), low, high, shown)


@dataclass
class Column:
    """What was measured of each tool.

    Attributes:
        name: With the unit.
        better: "lower" or "higher"; empty where there is no first.
        digits: Behind the point.
        figures: By the tool's key. Words where there is no figure.
    """

    name: str
    better: str = "lower"
    digits: int = 1
    figures: dict[str, Figure | str] = field(default_factory=dict)

    def cell(self, tool: Tool) -> str:
        found = self.figures.get(tool.key, "")
        return found if isinstance(found, str) else found.written(self.digits)

    def standing(self, tools: Sequence[Tool]) -> Standing | None:
        """How ours stand beside the best of the others; None where there is nothing to compare.

        Level are those whose quartiles overlap, or that read the same.
        """
        known = {tool: found for tool in tools if isinstance(found := self.figures.get(tool.key), Figure)}
        others = {tool: found for tool, found in known.items() if not tool.is_ours and tool.key != BARE}
        if not self.better or not others:
            return None
        sign = 1 if self.better == "lower" else -1
        best = min(others.values(), key=lambda found: sign * found.middle)
        standing = Standing(
            [tool for tool, found in others.items() if self._equal(found, best)], self._short(best)
        )
        for tool, mine in known.items():
            if tool.is_ours:
                overlap = mine.low <= best.high and best.low <= mine.high
                is_first = sign * (best.middle - mine.middle) > 0
                level = overlap or self._equal(mine, best)
                place = standing.level if level else standing.first if is_first else standing.behind
                place.append(f"{tool.name.partition(', ')[2]} {self._short(mine)}")
        return standing if standing.first or standing.level or standing.behind else None

    def _equal(self, one: Figure, other: Figure) -> bool:
        return round(one.middle, self.digits) == round(other.middle, self.digits)

    def _short(self, found: Figure) -> str:
        return found.shown or f"{found.middle:.{self.digits}f}"


@dataclass
class Standing:
    """Which of ours come before, beside and after the best of the others, each with its figure.

    Attributes:
        best: The best of the others, more than one where they read the same.
        figure: Theirs.
    """

    best: list[Tool]
    figure: str
    first: list[str] = field(default_factory=list)
    level: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)

    @property
    def beside(self) -> str:
        """The best of the others, by the distribution's name."""
        return " and ".join(tool.name.partition(", ")[0] for tool in self.best)


@dataclass
class Table:
    """One table of the page.

    Attributes:
        key: How it is named on the command line.
        title: What was measured.
        tools: Its rows.
        columns: Its columns.
        remarks: Sentences below it.
    """

    key: str
    title: str
    tools: Sequence[Tool]
    columns: list[Column] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The table in Markdown, then who comes first, then the remarks."""
        head = ["", *(column.name for column in self.columns)]
        rows = [[tool.name, *self._cells(tool)] for tool in self.tools]
        below = [*self._standings(), *self.remarks]
        return [
            f"### {self.title}",
            "",
            *table(head, rows),
            *(line for words in below for line in ("", words)),
        ]

    def _cells(self, tool: Tool) -> list[str]:
        """What stands in its row; why a tool failed stands there once."""
        cells = [column.cell(tool) for column in self.columns]
        why = [
            isinstance(column.figures.get(tool.key), str) and cell in cells[:i]
            for i, (column, cell) in enumerate(zip(self.columns, cells, strict=True))
        ]
        return ["" if again else cell for again, cell in zip(why, cells, strict=True)]

    def _standings(self) -> list[str]:
        first, level, behind = [], [], []
        for column in self.columns:
            standing = column.standing(self.tools)
            if standing is None:
                continue
            name = f"`{column.name}`"
            if standing.behind:
                ours = _and([*standing.behind, *standing.level, *standing.first])
                behind.append(
                    f"**Not first** in {name}: {standing.beside} {standing.figure}, ipygpulogger {ours}."
                )
            elif standing.level:
                level.append(f"{name} ({standing.beside})")
            else:
                first.append(name)
        return [
            *([f"ipygpulogger is first in {_and(first)}."] if first else []),
            *([f"Level with the best other tool in {_and(level)}."] if level else []),
            *behind,
        ]


def _and(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else words[0]
