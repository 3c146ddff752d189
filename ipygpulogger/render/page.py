"""A notebook's report as one self-contained HTML page."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ..records.units import without_controls
from . import html
from .plot import figure
from .plot_axis import Axis
from .plot_panels import description
from .plot_svg import svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..records import CellRecord

# Browsers enforce it: no script, nothing from other places, whatever a cell's text contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_NARROW_IN = 3.6
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 0 auto; padding: 1rem; }
pre { overflow-x: auto; padding: .5rem; border-left: 3px solid #888; }
h2 { font-size: 1.1rem; margin: 0; }
section { margin: 1.5rem 0; overflow-x: auto; }
figure { margin: 0; }
.wide, .narrow { width: 100%; height: auto; }
.narrow { display: none; }
@media (max-width: 640px) { .wide { display: none; } .narrow { display: block; } }
table { border-collapse: collapse; }
caption { text-align: left; font-weight: bold; }
th, td { padding: .1rem .6rem; text-align: right; }
th[scope=row], td:nth-child(5) { text-align: left; }
@media print { section { break-inside: avoid; } pre { white-space: pre-wrap; } }
"""


def page(
    title: str,
    records: Sequence[CellRecord],
    *,
    sources: Sequence[str] = (),
    overview: str = "",
    said: Sequence[str] = (),
) -> str:
    """Return one page about a notebook: sentences, overview, plot and every cell.

    Args:
        title: The notebook's name.
        records: Its cells.
        sources: The text of each cell, in the same order; without it, each cell's first line is shown.
        overview: The ranked cells, as text.
        said: Sentences to put on top, such as why the run ended early.
    """
    texts = sources or [record.source for record in records]
    cells = "\n".join(_cell(record, source) for record, source in zip(records, texts, strict=True))
    top = "".join(f"<p><strong>{escape(sentence)}</strong></p>\n" for sentence in said)
    top += f"<pre>{escape(overview)}</pre>\n" if overview else ""
    written = (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f"{top}{_plot(records)}\n{cells}\n</body>\n</html>\n"
    )
    return without_controls(written)


def _cell(record: CellRecord, source: str) -> str:
    return (
        f"<section>\n<h2>{escape(record.label)}</h2>\n<pre><code>{escape(source)}</code></pre>\n"
        f"{html.report(record)}\n</section>"
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
