"""The plot of a page: SVG that fits any width with letters of one size, a picture also without a script.

It draws what `plot.figure` draws, and over it a link for each cell of the page, whose `<title>` has its
figures. The script of the page (page.js) shows them at the pointer, moves with the keys, and zooms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from html import escape
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from ..analysis.notable import is_inexact
from ..analysis.ranking import SIZES as FIGURES
from ..records.units import cells_text, clipped, rounded_mb, shortened, time_text
from .plot_data import OWN, SIZES, TIMES, WHOLE, Axis, Panel, panels, ticks
from .table import least_sign

if TYPE_CHECKING:
    from .plot_data import Points

_TEMPLATE = Path(__file__).with_name("plot.html")
_WIDE, _HIGH = 10_000, 140  # of the coordinates in a panel, as in the files; the first is stretched
_LETTER = 0.025  # of a panel's width, on a phone; with more room the script writes more numbers
_LETTERS = 48  # of a title
# So many cells have their figures in words, and curves of so many columns; more have coarser ones.
_WORDY, _COLUMNS, _COARSE = 100, 300, 200


def plot(axis: Axis, links: Mapping[int, str]) -> str:
    """Return the plot as markup, with a link to each cell whose `id()` has one."""
    wordy = len(axis.cells) <= _WORDY
    shown = panels(axis, _COLUMNS if wordy else _COARSE)
    about = f"{clipped(axis.process, _LETTERS)}: {axis.caption}" if axis.process else axis.caption
    sentence = f"Memory over the time in {cells_text(len(axis.cells), 0)}, {time_text(axis.width)}: "
    sentence += "; ".join(f"{panel.title}{panel.highest}" for panel in shown)
    parts = {"about": escape(about), "sentence": escape(sentence), "seconds": f"{axis.width:.6g}"}
    parts["times"] = "".join(_text(axis, 14, *tick) for tick in ticks(axis.width, TIMES).items())
    letter = axis.width * _LETTER
    parts["numbers"] = "".join(_text(axis, 12, *number) for number in axis.numbers(letter))
    parts["shade"] = ""
    for look, bands in zip(("odd", "bad"), axis.shaded(), strict=True):
        ends = dict.fromkeys((round(_x(axis, band.left)), round(_x(axis, band.right))) for band in bands)
        boxes = (f"M{left},0H{right}V{_HIGH}H{left}z" for left, right in ends)
        parts["shade"] += f"<path class={look} d='{''.join(boxes)}' />"
    parts["panels"] = "\n".join(_panel(panel, axis) for panel in shown)
    parts["links"] = "".join(_links(axis, shown, links, wordy=wordy))
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(parts)


def _panel(panel: Panel, axis: Axis) -> str:
    (top_mb, near), marks = panel.height_mb(), panel.rising()

    def y(size_mb: float) -> int:
        return round(_HIGH * (1 - size_mb / top_mb))

    own, whole = ("".join(_area(run, axis, y) for run in panel.curves[name]) for name in (OWN, WHOLE))
    scale = ticks(top_mb, SIZES)
    grid, limits = ("".join(f"M0,{y(mb)}h{_WIDE}" for mb in sizes) for sizes in (scale, near))
    bars = (f"M{_x(axis, one.left):.0f},{y(one.top_mb)}H{_x(axis, one.right):.0f}" for one in marks)
    ways = {"grid": grid, "all": whole, "own": own, "limit": limits, "high": "".join(bars)}
    shapes = "".join(f"<path class={look} d={way} />" for look, way in ways.items() if way)
    sizes = "".join(f"<text x=-8 y={y(size_mb) + 4}>{label}</text>" for size_mb, label in scale.items())
    for mark in marks:
        place = f"x={_x(axis, (mark.left + mark.right) / 2) / 100:.4g}% y={y(mark.top_mb)}"
        sizes += f"<use href=#{'least' if is_inexact(mark.usage) else 'high'} {place} />"
    highest = escape(clipped(panel.highest[2:], _LETTERS))
    return (
        f"<p data-name={panel.name}><b>{escape(clipped(panel.title, _LETTERS))}</b>"
        f"<span>{highest}</span><i>{panel.limits_text()}</i></p><svg class=panel height={_HIGH}>"
        f'<svg viewBox="0 0 {_WIDE} {_HIGH}" preserveAspectRatio=none><use href=#shade />{shapes}</svg>'
        f"{sizes}</svg>"
    )


def _x(axis: Axis, at_s: float) -> float:
    return at_s / axis.width * _WIDE


def _text(axis: Axis, y: int, at_s: float, words: str, failed: bool = False) -> str:
    return f"<text{' class=bad' * failed} x={_x(axis, at_s) / 100:.4g}% y={y}>{escape(words)}</text>"


def _area(run: Points, axis: Axis, y: Callable[[float], int]) -> str:
    """Return the way around the area below a curve: from point to point."""
    points = [(round(_x(axis, at_s)), y(size_mb)) for at_s, size_mb in run]
    steps = ",".join(f"{x - left},{to - before}" for (left, before), (x, to) in pairwise(points))
    way = f"l{steps.replace(',-', '-')}" if steps else ""  # a sign separates, too
    return f"M{points[0][0]},{_HIGH}V{points[0][1]}{way}V{_HIGH}z"


def _links(axis: Axis, shown: list[Panel], links: Mapping[int, str], *, wordy: bool) -> Iterator[str]:
    """Yield a link over each cell's band; its title has consumed, needed and highest in MB."""
    figures: dict[int, str] = {}
    for panel in shown:
        for mark in panel.marks:
            least = least_sign(mark.usage)
            sizes = {what: rounded_mb(size_of(mark.usage)) for what, size_of in FIGURES.items()}
            said = [f"{what} " * wordy + least * (what != "consumed") + str(mb) for what, mb in sizes.items()]
            so_far = figures.get(id(mark.cell), "")
            figures[id(mark.cell)] = f"{so_far}\n{panel.name} {', '.join(said)}{' MB' * wordy}"
    for mark in shown[0].marks:  # RAM has all
        cell, left, right = mark.cell, round(_x(axis, mark.left), 1), round(_x(axis, mark.right), 1)
        if link := links.get(id(cell)):
            ended = cell.outcome() if wordy else cell.outcome().partition(":")[0]
            took = f"{time_text(cell.time_s)}{ended and ', '}{shortened(ended)}"
            title = escape(f"{shortened(cell.title())}\n{took}{figures[id(cell)]}")
            yield f"<a{ended and ' class=bad'} href={link}><title>{title}</title>"
            yield f"<rect x={left:g} width={max(right - left, 0.1):.3g} /></a>"
