"""The page of a run: its totals, its plot, and every cell, or the worst of very many."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from datetime import timezone
from hashlib import sha256
from html import escape
from operator import attrgetter
from pathlib import Path
from string import Template

from ..analysis.ranking import outer, shown
from ..records import CellRecord, DeviceUsage
from ..records.cell_record import process_of
from ..records.units import cells_text, size_text, time_text, without_controls
from .html import line_and_body
from .markup import BLUE, Part, bar, small
from .page_plot import plot
from .plot_data import Axis
from .summary import highest

# Its policy has browsers run this script alone and fetch nothing, whatever a cell's text contains.
_TEMPLATE, _SCRIPT = (Path(__file__).with_name(name) for name in ("page.html", "page.js"))


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
    body = [*_totals(records), *(f"<p class=said>{escape(sentence)}</p>" for sentence in said)]
    body += [_plot(records)] if records else []
    body += [f"<h2>Summary</h2>\n<div class=ranked>{ranked}</div>"] if ranked else []
    if cells := "\n".join(_cell(record, source(record), number) for number, record in enumerate(few)):
        body.append(f"<h2>Cells</h2>{small(count) if len(few) < len(records) else ''}")
        body.append(f"<main>\n{cells}\n</main>")
    template, script = Template(_TEMPLATE.read_text(encoding="utf-8")), _SCRIPT.read_text(encoding="utf-8")
    parts = {"title": escape(title), "body": "\n".join(body), "script": script}
    parts["hash"] = b64encode(sha256(script.encode()).digest()).decode()
    return without_controls(template.substitute(parts))


def _totals(records: Sequence[CellRecord]) -> Iterator[str]:
    """Yield when the notebook ran, and its highest figures."""
    cells, others = outer(records), [record for record in records if process_of(record)]
    timed = cells or others
    if not timed:
        return
    begin = min(record.started_at for record in records).astimezone(timezone.utc)
    is_script = len(cells) == 1 and cells[0].execution_count is None
    about = [f"{begin:%Y-%m-%d %H:%M} UTC"]
    about.append("1 script" if is_script else cells_text(len(cells), len(others)))
    failed = sum(record.status != "ok" for record in (*cells, *others))
    about += [f"{failed} failed"] if failed else []
    yield f"<p class=when>{' · '.join(about)}</p>"
    name = "Time" if is_script else "Time in cells" if cells else "Time of all processes"
    longest = max(timed, key=attrgetter("time_s"))
    time = time_text(sum(record.time_s for record in timed))
    cards = [_card(name, time, f"longest {longest.title()}, {time_text(longest.time_s)}")]
    for raised in highest(records):
        total_bytes = raised.usage.total_bytes or 0 if isinstance(raised.usage, DeviceUsage) else 0
        of = f"of {size_text(total_bytes).replace('.0 ', ' ')}, " if total_bytes else ""
        drawn = bar([Part("", raised.usage.peak.lo_bytes, BLUE)], total_bytes)
        cards.append(
            _card(f"Highest {raised.name}", raised.size, f"{of}raised by {raised.by.title()}", drawn)
        )
    yield f"<dl class=totals>{''.join(cards)}</dl>"


def _card(name: str, figure: str, words: str, drawn: str = "") -> str:
    return f"<div><dt>{escape(name)}</dt><dd>{escape(figure)}</dd><dd>{escape(words)}</dd>{drawn}</div>"


def _cell(record: CellRecord, source: str, number: int) -> str:
    """Return one cell, folded: its line of the report, and below it its source and the rest."""
    line, body = line_and_body(record)
    failed, count = " failed" if record.outcome() else "", record.execution_count or ""
    code = f"<pre id=c{number}><code>{escape(source)}</code></pre>"
    link = f' id="cell-id={escape(record.cell_id)}"' if record.cell_id else ""  # the summary's
    return (
        f'<details class="cell{failed}"><summary><span class=count>{count}</span>'
        f"<span><code>{escape(record.code_line)}</code><span class=line>{line}</span></span></summary>\n"
        f"<div class=inside{link}>{code}\n{body}</div></details>"
    )


def _plot(records: Sequence[CellRecord]) -> str:
    """Return the notebook's memory over time as a drawing, or one sentence on why there is none."""
    try:
        axis = Axis(records)
        drawn = plot(axis, {id(record): f"#c{number}" for number, record in enumerate(shown(records))})
    except Exception as error:  # a failed plot must not cost the page its figures
        return f"<p>No plot: {escape(f'{type(error).__name__}: {error}')}</p>"
    left_out = len(records) - len(axis.cells)
    whose = axis.process or "the notebook's own kernel"
    said = small(f"Memory of {whose}; other processes are in the tables") if left_out else ""
    return f"{drawn}{said}"
