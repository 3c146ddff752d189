"""The report as HTML: a plain table that needs no style and no script; every foreign string escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from .text import outcome, rows

if TYPE_CHECKING:
    from ..records import Measurement

_HEAD = "".join(f'<th scope="col">{name}</th>' for name in ("MB", "Consumed", "Peaked", "Used"))


def report(measurement: Measurement) -> str:
    """The report of one scope as an HTML table."""
    ended = outcome(measurement)
    caption = f"{measurement.label}: {measurement.time_s:0.3f} s" + (f", {ended}" if ended else "")
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{escape(figure)}</td>" for figure in figures)
        + (f"<td>{escape(remarks)}</td>" if remarks else "")
        + "</tr>"
        for name, figures, remarks in rows(measurement)
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in measurement.notes)
    return (
        f"<table><caption>{escape(caption)}</caption>"
        f"<thead><tr>{_HEAD}</tr></thead><tbody>{body}</tbody></table>{notes}"
    )
