"""The file of results, and what is made from it: the page "Compared" of the documentation, and lines of the README.

Each table stands between two comments, `<!-- field: KEY -->` and `<!-- /field -->`, in the file of results and on the page.
The page has most of the tables, with the medians alone, and the machine once. No number is written by hand.
"""

from __future__ import annotations

import re
from statistics import mean
from typing import TYPE_CHECKING, NamedTuple

from bench import table

from .environments import ROOT
from .peaks import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

RESULTS = ROOT / "benchmarks" / "results" / "2026-11-field.md"
PAGE, README = ROOT / "docs" / "compared.md", ROOT / "README.md"
BLOCK = re.compile(r"<!-- field: (\w+) -->\n(.*?)<!-- /field -->", re.DOTALL)
HEAD = """# November 2026: the field beside us

Written by `python benchmarks/field.py --write`. Each tool ran in a real kernel and an environment of its own, all alive at the
same time and asked in turns. Figures are medians, with the quartiles behind them where they differ. Below each table is in
which columns ipygpulogger is first, and in which it is not. "Level" are figures whose quartiles overlap.
"""
OURS = ("ipygpulogger, defaults", "ipygpulogger, light", "ipygpulogger, rich")


def blocks(text: str) -> dict[str, str]:
    """What stands between the comments, by key."""
    return dict(BLOCK.findall(text))


def block(key: str, body: str) -> str:
    """The comments, and what stands between them."""
    return f"<!-- field: {key} -->\n{body}<!-- /field -->"


def write(key: str, lines: list[str], order: Iterable[str], about: str) -> None:
    """Put a table into the file of results, in place of an older one; the others stay, with their own date."""
    known = blocks(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    known[key] = "\n".join(["", *lines, "", about, "", ""])
    parts = [HEAD.rstrip(), *(block(one, known[one]) for one in order if one in known)]
    RESULTS.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def published(results: str, page: str) -> str:
    """The page with each block as the results have it; `summary` is made from them."""
    known = blocks(results)
    shown = {key: shortened(body) for key, body in known.items()}
    shown["summary"] = "\n" + "\n".join(f"* {line}" for line in summary(known)) + "\n\n"
    shown["others"] = others({key: body for key, body in known.items() if key not in blocks(page)})
    shown["machine"] = f"\n{machine(known)}\n\n"
    return BLOCK.sub(lambda found: block(found[1], shown.get(found[1], "\nNot measured yet.\n\n")), page)


def shortened(body: str) -> str:
    """A block without its quartiles, rows without a figure, what is level, and its line of versions."""
    *parts, _ = (part for part in body.rstrip().split("\n\n") if not part.startswith("Level with"))
    for i, part in enumerate(parts):
        if part.startswith("|"):
            lines = [line.strip("|").split("|") for line in part.splitlines()]
            cells = [[_middle(cell) for cell in line] for line in lines]
            parts[i] = "\n".join(table(cells[0], [row for row in cells[2:] if any(row[1:])]))
    return "\n\n".join(parts) + "\n\n"


def others(known: dict[str, str]) -> str:
    """The titles of tables that the page leaves out, and in what ours is not first there."""
    lines = ["\n"]
    for body in known.values():
        title, behind = re.findall(r"(?m)^### (.*)", body), re.findall(r"(?m)^\*\*Not first\*\* .*", body)
        lines.append(f"* {' '.join([f'{title[0]}.', *behind])}\n")
    return "".join(lines) + "\n"


def _middle(cell: str) -> str:
    return re.sub(r" \([\d.]+ to [\d.]+\)", "", cell).strip().replace(" / ", "/")


def machine(known: dict[str, str]) -> str:
    """The day, the machine and Python, and the day of tables that are older."""
    lines = {body.rstrip().rpartition("\n")[2] for body in known.values()}
    newest = max(lines)
    older = sorted({line.partition(",")[0] for line in lines} - {newest.partition(",")[0]})
    told = ", ".join(newest.split(", ")[:4]) + "."
    return told + (f" Some tables are of {', '.join(older)}." if older else "")


def publish() -> None:
    """Make the page and the README's lines from the results."""
    results = RESULTS.read_text(encoding="utf-8")
    for path in (PAGE, README):
        path.write_text(published(results, path.read_text(encoding="utf-8")), encoding="utf-8")


def rows(body: str) -> dict[str, dict[str, str]]:
    """The table in a block: by row and by column."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in body.splitlines()
        if line.startswith("|")
    ]
    head, _, *found = cells
    return {name: dict(zip(head[1:], rest, strict=True)) for name, *rest in found}


def number(cell: str) -> float | None:
    """The median in a cell, or the mean of shares; None for words."""
    shares = [float(share) for share in re.findall(r"[\d.]+", cell)] if " / " in cell else []
    if shares:
        return sum(shares) / len(shares)
    found = re.match(r"-?[\d.]+", cell)
    return float(found[0]) if found else None


class Line(NamedTuple):
    """One of the README's lines: a table, what it says, from which columns (all if empty), and how."""

    key: str
    says: str
    columns: tuple[str, ...] = ()
    of: Callable[[list[float]], float] = max
    digits: int = 0
    higher: bool = False


LINES = (
    Line("empty", "Added to an empty cell, in ms", ("added ms",), digits=1),
    Line(
        "busy",
        "The kind of work that is slowed down most, as a multiple of its time without a tool",
        digits=2,
    ),
    Line(
        "transients",
        "Rises for 0.5 to 50 ms that are measured right, in %",
        tuple(KINDS),
        mean,
        higher=True,
    ),
    Line("sleeping", "Processor time while a cell sleeps for ten seconds, in ms"),
    Line("loading", "Loading and starting in a running kernel, in ms", ("ms",)),
)


def summary(known: dict[str, str]) -> list[str]:
    """The README's lines, ours before the others; where one of ours is not first, the line says so."""
    return [_worded(line, rows(known[line.key])) for line in LINES if line.key in known]


def _worded(line: Line, table: dict[str, dict[str, str]]) -> str:
    figures = {}
    for name, cells in table.items():
        values = [
            number(cell) for column, cell in cells.items() if not line.columns or column in line.columns
        ]
        known = [value for value in values if value is not None]
        if known and name != "bare kernel":
            figures[name] = round(line.of(known), line.digits)
    others = sorted(
        ((value, name) for name, value in figures.items() if name not in OURS), reverse=line.higher
    )
    ours = [(figures[name], name) for name in OURS if name in figures]
    worst = min(ours)[0] < others[0][0] if line.higher else max(ours)[0] > others[0][0]
    told = ", ".join(f"{name.partition(', ')[2]} {value:.{line.digits}f}" for value, name in ours)
    beside = ", ".join(f"{name.partition(', ')[0]} {value:.{line.digits}f}" for value, name in others)
    return f"{line.says}: **{told}**{' (not all first)' if worst else ''}; {beside}."
