"""The file of results, and what is made from it: the page "Compared" of the documentation, and lines of the README.

Each table stands between two comments, `<!-- field: KEY -->` and `<!-- /field -->`, in the file of results and on the page.
No number is written by hand.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .environments import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

RESULTS = ROOT / "benchmarks" / "results" / "2026-11-field.md"
PAGE, README = ROOT / "docs" / "compared.md", ROOT / "README.md"
BLOCK = re.compile(r"<!-- field: (\w+) -->\n(.*?)<!-- /field -->", re.DOTALL)
HEAD = """# November 2026: the field beside us

Written by `python benchmarks/field.py --write`. Each tool ran in a real kernel and an environment of its own, all alive at the
same time and asked in turns. Figures are medians, with the quartiles behind them where they differ. Below each table stands in
what our rows are first, and in what they are not. "Level" are figures whose quartiles overlap.
"""
OURS = ("ipygpulogger, defaults", "ipygpulogger, light", "ipygpulogger, rich")


def blocks(text: str) -> dict[str, str]:
    """What stands between the comments, by key."""
    return dict(BLOCK.findall(text))


def block(key: str, body: str) -> str:
    """The comments, and what stands between them."""
    return f"<!-- field: {key} -->\n{body}<!-- /field -->"


def write(lines: dict[str, list[str]], order: Iterable[str], about: str) -> None:
    """Put these tables into the file of results, in place of older ones; others stay, with their own date."""
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    known = blocks(text)
    known |= {key: "\n".join(["", *found, "", about, "", ""]) for key, found in lines.items()}
    RESULTS.write_text(
        "\n\n".join([HEAD.rstrip(), *(block(key, known[key]) for key in order if key in known)]) + "\n",
        encoding="utf-8",
    )


def published(results: str, page: str) -> str:
    """The page with each block as the results have it; `summary` is made from them."""
    known = blocks(results)
    known["summary"] = "\n" + "\n".join(f"* {line}" for line in summary(known)) + "\n\n"
    return BLOCK.sub(lambda found: block(found[1], known.get(found[1], "\nNot measured yet.\n\n")), page)


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


def summary(known: dict[str, str]) -> list[str]:
    """Five lines, one for each thing that people ask; where we are not first, the figures show it."""
    lines = {
        "empty": lambda table: _line("Added to an empty cell, in ms", _figures(table, ["added ms"], max), 1),
        "busy": lambda table: _line(
            "Times as long takes the work that it slows down most", _figures(table, None, max), 2
        ),
        "transients": lambda table: _line(
            "Transients of 0.5 to 50 ms told right, in %",
            _figures(table, ["sleeping", "Python busy", "GIL held", "GIL free"], _mean),
            0,
            higher=True,
        ),
        "sleeping": lambda table: _line(
            "Processor time while a cell sleeps 10 s, in ms", _figures(table, None, max), 0
        ),
        "loading": lambda table: _line("Loading in a running kernel, in ms", _figures(table, ["ms"], max), 0),
    }
    return [make(rows(known[key])) for key, make in lines.items() if key in known]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _figures(
    table: dict[str, dict[str, str]], columns: list[str] | None, how: Callable[[list[float]], float]
) -> dict[str, float]:
    found = {}
    for name, cells in table.items():
        values = [number(cell) for column, cell in cells.items() if columns is None or column in columns]
        known = [value for value in values if value is not None]
        if known and name != "bare kernel":
            found[name] = how(known)
    return found


def _line(what: str, figures: dict[str, float], digits: int, *, higher: bool = False) -> str:
    ours = [f"{name.partition(', ')[2]} {figures[name]:.{digits}f}" for name in OURS if name in figures]
    others = sorted(((value, name) for name, value in figures.items() if name not in OURS), reverse=higher)
    beside = ", ".join(f"{name.partition(', ')[0]} {value:.{digits}f}" for value, name in others)
    return f"{what}: **{', '.join(ours)}**; {beside}."
