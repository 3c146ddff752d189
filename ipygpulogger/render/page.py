"""The page of a run: its totals, its plot, and every cell, or the worst of very many."""

from __future__ import annotations

import re
from datetime import timezone
from html import escape
from operator import attrgetter
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from ..analysis.totals import ELSEWHERE, RAM, Totals, shown
from ..records import DeviceUsage
from ..records.units import shortened, size_text, time_text, without_controls
from .growth import named_devices
from .html import line_and_body
from .markup import BLUE, Part, bar, small
from .plot import INK, INK_TOO, figure, saved
from .plot_data import Axis, panels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from matplotlib.figure import Figure

    from ..analysis.totals import Key, MemoryTotals
    from ..records import CellRecord


# Its policy has browsers run no script and fetch nothing, whatever a cell's text contains.
_TEMPLATE = Path(__file__).with_name("page.html")


def page(
    title: str,
    records: Sequence[CellRecord],
    *,
    source: Callable[[CellRecord], str] = attrgetter("source"),
    ranked: str = "",
    said: Sequence[str] = (),
) -> str:
    """Return one page about a notebook: its totals, plot, ranked cells as markup, and every cell.

    Of very many cells those that needed most are shown in full. The sentences `said` stand on top; `source`
    returns the text of a cell, by default its first line.
    """
    few = shown(records)
    count = f"{len(few)} of {len(records):,}: those that needed most"
    body = [*_totals(Totals.of(records)), *(f"<p class=said>{escape(sentence)}</p>" for sentence in said)]
    body += [_plot(records)] if records else []
    body += [f"<h2>Summary</h2>\n<div class=ranked>{ranked}</div>"] if ranked else []
    if cells := "\n".join(_cell(record, source(record)) for record in few):
        body.append(f"<h2>Cells</h2>{small(count) if len(few) < len(records) else ''}")
        body.append(f"<main>\n{cells}\n</main>")
    template = Template(_TEMPLATE.read_text(encoding="utf-8"))
    return without_controls(template.substitute(title=escape(title), body="\n".join(body)))


def _totals(totals: Totals) -> Iterator[str]:
    """Yield when the notebook ran, and its highest figures."""
    outer = totals.outer if totals.outer.count else totals.every
    if totals.begin is None or outer.longest is None:
        return
    begin, others = totals.begin.astimezone(timezone.utc), totals.processes
    own = totals.outer.count or totals.every.count - others.count
    about, is_script = [f"{begin:%Y-%m-%d %H:%M} UTC"], not totals.outer.count and own == 1
    if own:
        about.append("1 script" if is_script else "1 cell" if own == 1 else f"{own:,} cells")
        about += [f"{outer.failed} failed"] if outer.failed else []
    if others.count:
        of = "other processes" if own else "processes"
        about.append(f"{others.count:,} record{'s' * (others.count > 1)} of {of}")
        about += [f"{others.failed:,} of them failed"] if others.failed else []
    yield f"<p class=when>{' · '.join(about)}</p>"
    longest = f"longest {outer.longest.title()}, {time_text(outer.longest.time_s)}"
    time = "Time" if is_script else "Time in cells" if own else "Time of all processes"
    cards = [_card(time, time_text(outer.time_s), longest)]
    for key, (name, gpu) in _memories(totals).items():
        memory = totals.memories.get(key)
        if memory is not None and memory.highest is not None:
            cards.append(_highest(name, memory, memory.highest.title(), gpu.total_bytes if gpu else None))
        elif memory is not None and gpu is not None and gpu.used_bytes is not None:
            cards.append(_card(f"{name}, all processes", size_text(memory.used_bytes), gpu.name))
    yield f"<dl class=totals>{''.join(cards)}</dl>"


def highest_figures(totals: Totals) -> Iterator[str]:
    """Yield the highest use of each memory, and the cell that raised it to that."""
    for key, (name, _) in _memories(totals).items():
        memory = totals.memories.get(key)
        if memory is not None and memory.highest is not None:
            least = "" if memory.exact else "at least "
            label = shortened(memory.highest.title())
            yield f"highest {name} {least}{size_text(memory.peak_bytes)} in {label}"


def _memories(totals: Totals) -> dict[Key, tuple[str, DeviceUsage | None]]:
    """Return the names of RAM and of the devices with their latest figures, and of other processes."""
    latest = (memory.latest for key, memory in totals.memories.items() if key not in ELSEWHERE)
    devices = named_devices(usage for usage in latest if isinstance(usage, DeviceUsage))
    others = zip(ELSEWHERE, (("RAM of a process", None), ("GPU of a process", None)), strict=True)
    return {RAM: ("RAM", None), **devices, **dict(others)}


def _highest(name: str, memory: MemoryTotals, label: str, total_bytes: int | None) -> str:
    """Return the card of the highest use of one memory."""
    peak_bytes = memory.peak_bytes
    least = "" if memory.exact else "at least "
    of = f"of {size_text(total_bytes).replace('.0 ', ' ')}, " if total_bytes else ""
    drawn = bar([Part("", peak_bytes, BLUE)], total_bytes or 0)
    return _card(f"Highest {name}", least + size_text(peak_bytes), f"{of}in {label}", drawn)


def _card(name: str, figure: str, words: str, drawn: str = "") -> str:
    return f"<div><dt>{escape(name)}</dt><dd>{escape(figure)}</dd><dd>{escape(words)}</dd>{drawn}</div>"


def _cell(record: CellRecord, source: str) -> str:
    """Return one cell, folded: its line of the report, and below it its source and the rest."""
    line, body = line_and_body(record)
    failed = " failed" if record.outcome() else ""
    name = "" if record.execution_count is None else str(record.execution_count)
    anchor = f' id="cell-id={escape(record.cell_id)}"' if record.cell_id else ""  # the summary's link
    return (
        f'<details class="cell{failed}"><summary><span class=count>{name}</span>'
        f"<span><code>{escape(record.code_line)}</code><span class=line>{line}</span></span></summary>\n"
        f"<div class=inside{anchor}><pre><code>{escape(source)}</code></pre>\n{body}</div></details>"
    )


def _plot(records: Sequence[CellRecord]) -> str:
    """Return the notebook's memory over time as SVG, or one sentence on why there is none."""
    try:
        axis = Axis(records)
        drawn = svg(figure(records), description(axis))
    except Exception as error:  # a failed plot must not cost the page its figures
        why = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        return f"<p>No plot: {escape(f'{why}{error}')}</p>"
    left_out = len(records) - len(axis.cells)
    whose = axis.process or "the notebook's own kernel"
    said = small(f"Memory of {whose}; other processes are in the tables") if left_out else ""
    return f"<figure>{drawn}</figure>{said}"


def description(axis: Axis) -> str:
    """Return what the plot shows in one sentence, for those who do not see it."""
    highest = [f"{panel.name} {panel.highest}" for panel in panels(axis) if panel.highest]
    return f"Memory over time; the highest: {'; '.join(highest)}"


_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d+\.\d+")
_DROPPED = ("metadata", "clipPath", "style")


def svg(drawn: Figure, label: str) -> str:
    """Return a figure as an ``<svg>`` element without a background, its words in the page's colour."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "plot"}):
        root = ET.fromstring(saved(drawn, format="svg"))  # noqa: S314 - matplotlib just wrote it
    for element in root.iter():
        _simplify(element)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"class": "plot", "role": "img", "aria-label": label}
    return ET.tostring(root, encoding="unicode")


def _simplify(element: ET.Element) -> None:
    """Leave out what shows nothing, round places to a tenth; text gets the font and colour of the page."""
    element.tag, element.tail = element.tag.removeprefix(_SVG), None
    inner = [child for child in element if child.tag.removeprefix(_SVG) not in _DROPPED]
    element[:] = [child for child in inner if child.get("style") != "fill: none"]
    found, is_text = element.attrib, element.tag == "text"
    element.text = element.text if is_text else None
    found.pop("clip-path", None)
    if _XLINK in found:
        found["href"] = found.pop(_XLINK)
    for name in found.keys() & {"d", "x", "y", "transform"}:
        found[name] = _NUMBER.sub(lambda number: f"{float(number[0]):.1f}", found[name])
    if is_text and (style := found.get("style")):
        kept = [part for part in style.split("; ") if not part.startswith("font-family")]
        found["style"] = re.sub(f"{INK}|{INK_TOO}", "currentColor", "; ".join(kept))
