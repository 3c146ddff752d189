"""A notebook's report as one self-contained HTML page: totals, plot, ranked cells, and each cell folded."""

from __future__ import annotations

from datetime import timezone
from html import escape
from typing import TYPE_CHECKING

from ..records.units import size_text, time_text, without_controls
from .devices import named_devices
from .html import line_and_body
from .markup import BLUE, Part, bar
from .plot import figure
from .plot_axis import Axis
from .plot_panels import description
from .plot_svg import svg
from .text import outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..records import CellRecord, Usage

# Browsers enforce it: no script, nothing from other places, whatever a cell's text contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_NARROW_IN = 3.6  # the plot on a phone
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
body { max-width: 56rem; margin: 0 auto; padding: 2rem 1rem 4rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; }
h2 { font-size: 1.05rem; margin: 2.2rem 0 .6rem; }
.when { margin: .2rem 0 1.4rem; opacity: .7; }
.said { border-left: 3px solid #e45756; padding: .2rem .8rem; }
.totals { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); }
.totals div { border: 1px solid #8885; border-radius: 8px; padding: .6rem .9rem .7rem; }
.totals div div { border: 0; border-radius: 3px; padding: 0; margin-top: .3rem; }
dt { font-size: .8rem; opacity: .7; }
dd { font-size: 1.45rem; font-weight: 600; line-height: 1.3; font-variant-numeric: tabular-nums; }
dd + dd { font-size: .8rem; font-weight: 400; opacity: .7; }
dl, dd { margin: 0; }
figure { margin: 1.6rem 0 0; }
.wide, .narrow { width: 100%; height: auto; }
.narrow { display: none; }
.ranked { font-size: .85rem; overflow-x: auto; }
.ranked table { line-height: 1.7; white-space: nowrap; }
.ranked td code, .ranked th b { display: inline-block; overflow: hidden; text-overflow: ellipsis; }
.ranked td code, .ranked th b { max-width: 16rem; vertical-align: bottom; }
.ranked th b { color: #e45756; }
.cell { border-top: 1px solid #8884; }
.cell:last-child { border-bottom: 1px solid #8884; }
.cell > summary { cursor: pointer; display: flex; gap: .9rem; padding: .45rem .3rem; list-style: none; }
.cell > summary::-webkit-details-marker { display: none; }
.cell > summary:hover { background: #8881; }
.cell > summary > span { flex: 1; min-width: 0; }
.cell .count { flex: none; opacity: .6; text-align: right; width: 2.4rem; }
.cell .count::before { content: "\\25B8"; float: left; }
.cell[open] .count::before { content: "\\25BE"; }
.failed .count { color: #e45756; opacity: 1; }
.cell code, .cell pre { font: .85rem/1.5 ui-monospace, Menlo, Consolas, monospace; }
.cell > summary code { display: block; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.line { font-size: .85rem; }
.inside { font-size: .85rem; padding: 0 .3rem 1rem 3.6rem; }
.inside > div:not([style]), .ranked > pre { margin: 0; }
.inside > table, .inside > pre { max-width: 100%; overflow-x: auto; }
.inside > table { display: block; white-space: nowrap; }
pre { background: #8881; border-radius: 6px; margin: .2rem 0 .8rem; overflow-x: auto; padding: .6rem .8rem; }
@media (max-width: 640px) {
  body { padding-top: 1.2rem; }
  .wide { display: none; }
  .narrow { display: block; }
  .inside { padding-left: .3rem; }
  .ranked th b { display: block; max-width: 7rem; }
}
@media print {
  :root { color-scheme: light; font-size: 12px; print-color-adjust: exact; }
  body { max-width: none; padding: 0; }
  .totals div, .cell:not([open]), figure { break-inside: avoid; }
  .ranked td code { max-width: 9rem; }
  .ranked th b { max-width: 7rem; }
  pre { overflow: visible; white-space: pre-wrap; }
}
"""


def page(
    title: str,
    records: Sequence[CellRecord],
    *,
    sources: Sequence[str] = (),
    ranked: str = "",
    said: Sequence[str] = (),
) -> str:
    """Return one page about a notebook: its totals, plot, ranked cells, and every cell.

    Args:
        title: The notebook's name.
        records: Its cells.
        sources: The text of each cell, in the same order; without it, each cell's first line is shown.
        ranked: The ranked cells, as markup.
        said: Sentences to put on top, such as why the run ended early.
    """
    texts = sources or [record.source for record in records]
    cells = "\n".join(_cell(record, source) for record, source in zip(records, texts, strict=True))
    body = [f"<h1>{escape(title)}</h1>", *_totals(records)]
    body += [f"<p class=said>{escape(sentence)}</p>" for sentence in said]
    body += [_plot(records)] if records else []
    body += [f"<h2>Summary</h2>\n<div class=ranked>{ranked}</div>"] if ranked else []
    body += ["<h2>Cells</h2>", f"<main>\n{cells}\n</main>"] if cells else []
    return without_controls(
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


# -- the totals ----------------------------------------------------------------------------------------


def _totals(records: Sequence[CellRecord]) -> Iterator[str]:
    """Yield when the notebook ran, and its highest figures."""
    if not records:
        return
    outer = [record for record in records if record.execution_count is not None] or records
    begin = min(record.started_at for record in records).astimezone(timezone.utc)
    failed = sum(record.status != "ok" for record in outer)
    about = [f"{begin:%Y-%m-%d %H:%M} UTC", "1 cell" if len(outer) == 1 else f"{len(outer):,} cells"]
    about += [f"{failed} failed"] if failed else []
    yield f"<p class=when>{' · '.join(about)}</p>"
    longest = max(outer, key=lambda record: record.time_s)
    time_s = sum(record.time_s for record in outer)
    cards = [
        _card("Time in cells", time_text(time_s), f"longest {longest.label}, {time_text(longest.time_s)}")
    ]
    cards.append(_highest("Highest RAM", [(record, record.gen) for record in records], None))
    for key, (name, gpu) in named_devices(records).items():
        usages = [(record, use) for record in records for use in record.gpus if use.key == key]
        known: list[tuple[CellRecord, Usage]] = [(record, use) for record, use in usages if use.attributed]
        if known:
            cards.append(_highest(f"Highest {name}", known, gpu.total_bytes))
        elif gpu.used_bytes is not None:
            used_bytes = max(use.used_bytes or 0 for _, use in usages)
            cards.append(_card(f"{name}, all processes", size_text(used_bytes), gpu.name))
    yield f"<dl class=totals>{''.join(cards)}</dl>"


def _highest(name: str, usages: Sequence[tuple[CellRecord, Usage]], total_bytes: int | None) -> str:
    """Return the card of the highest peak of one memory."""
    record, usage = max(usages, key=lambda found: found[1].peak.lo_bytes)
    least = "at least " if any(use.peak.quality != "exact" for _, use in usages) else ""
    of = f"of {size_text(total_bytes).replace('.0 ', ' ')}, " if total_bytes else ""
    drawn = bar([Part("", usage.peak.lo_bytes, BLUE)], total_bytes or 0)
    return _card(name, least + size_text(usage.peak.lo_bytes), f"{of}in {record.label}", drawn)


def _card(name: str, figure: str, words: str, drawn: str = "") -> str:
    return f"<div><dt>{escape(name)}</dt><dd>{escape(figure)}</dd><dd>{escape(words)}</dd>{drawn}</div>"


# -- cells and plot ------------------------------------------------------------------------------------


def _cell(record: CellRecord, source: str) -> str:
    """Return one cell, folded: its line of the report, and below it its source and the rest."""
    line, body = line_and_body(record)
    failed = " failed" if outcome(record) else ""
    count = record.execution_count
    first = next((text for text in source.splitlines() if text.strip()), "")
    name = "" if count is None else str(count)
    return (
        f'<details class="cell{failed}"><summary><span class=count>{name}</span>'
        f"<span><code>{escape(first)}</code><span class=line>{line}</span></span></summary>\n"
        f"<div class=inside><pre><code>{escape(source)}</code></pre>\n{body}</div></details>"
    )


def _plot(records: Sequence[CellRecord]) -> str:
    """Return the notebook's memory over time as SVG, or one sentence on why there is none.

    Of its two sizes the page shows the one that fits.
    """
    try:
        label = description(Axis(records))
        wide = svg(figure(records), label, "wide")
        narrow = svg(figure(records, width_in=_NARROW_IN), label, "narrow")
    except ImportError as error:
        return f"<p>No plot: {escape(str(error))}</p>"
    except Exception as error:  # a failed plot must not cost the page its figures
        return f"<p>No plot: {escape(f'{type(error).__name__}: {error}')}</p>"
    return f"<figure>{wide}{narrow}</figure>"
