"""The report of a scope as HTML: one line that unfolds; all foreign text is escaped.

It takes at most two kilobytes. In order of importance: the line, the report of a failed allocation, the table
of figures with time series, what was alive at the peak, notes and remarks, the bars of the devices. What does
not fit is in the plain text.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..analysis.notable import matters, moved_bytes
from ..records.units import grouped, readable_sizes, without_controls
from .growth import beyond_names, device_bar, grew
from .headline import Clause, headline, is_quiet, tells_who_grew
from .headline import so_far as line_so_far
from .markup import AMBER, DOT, Text, first_fitting, fitted, folded, line, size, small, table, weighed
from .text import card_of, peaked_remark, rows, sentences, time_series

if TYPE_CHECKING:
    from ..records import Measurement

    Row = tuple[str, tuple[str, str, str], str]  # of the text report: name, figures, remarks

_REPORT = 2048  # bytes, at most
_CARD = 1400  # bytes of it for a failed allocation, at most
_HEAD = "MB", "Consumed", "Peaked", "Used"
_ADVICE = 700  # bytes of the report that are always left for what to do after a failed allocation
_LINE = 900  # bytes, at most
_PLACES = ("card", "bars", "table", "peak", "below", "more")  # from top to bottom
_SENTENCE = 400  # bytes
_BARS = 2  # of the devices on which the most moved
_HEIGHT = 300  # pixels of the memory over time, on a page
_WORDY = 3  # devices, at most, whose time series are drawn


def report(
    measurement: Measurement,
    *,
    compact: bool = False,
    named: bool = False,
    ram_total_bytes: int | None = None,
) -> str:
    """Return the report of one scope: a line that unfolds to the details, or only a line if it has none.

    Compact it is the line alone, and what to do without memory. A `named` one says which cell it was.
    """
    clauses, summary = _fitted(headline(measurement, named=named, whole=compact))
    if is_quiet(measurement):
        return without_controls(line(weighed(DOT.join(map(str, clauses)), "plain"), quiet=True))
    if compact:
        alone = line(summary, indented=True)
        return without_controls(alone + _card(measurement, min(_CARD, _REPORT - size(alone))))
    is_open = matters(measurement, ram_total_bytes)
    space = _REPORT - size(folded(summary, "", is_open=is_open))
    body = _body(measurement, space, clauses)
    return without_controls(folded(summary, body, is_open=is_open) if body else line(summary, indented=True))


def line_and_body(measurement: Measurement) -> tuple[str, str]:
    """Return the line of a report, and what it unfolds to, with the whole table of the peak."""
    clauses, summary = _fitted(headline(measurement))
    if is_quiet(measurement):
        return without_controls(summary), ""
    body = _body(replace(measurement, at_peak=()), _REPORT, clauses)
    if measurement.at_peak:
        from .at_peak import html as whole_table  # few cells have it

        over_time = measurement.timeline, _HEIGHT
        body += whole_table(measurement.at_peak, measurement.peak_times_s, *over_time)
    return without_controls(summary), without_controls(body)


def so_far(measurement: Measurement) -> str:
    """Return the report of a scope that still runs: one line."""
    _, summary = _fitted(line_so_far(measurement))
    return without_controls(line(f"<b style=color:{AMBER}>●</b> {summary}"))


def _body(measurement: Measurement, space: int, clauses: Sequence[Clause]) -> str:
    """Return what the line unfolds to, as much as fits; empty if that is one row, which the line says too."""
    found: dict[str, list[str]] = {place: [] for place in _PLACES}
    for place, *versions in _pieces(measurement, space, set(map(str, clauses))):
        if markup := first_fitting(versions, space):
            found[place].append(markup)
            space -= size(markup)
    is_more = measurement.gpus or any(time_series(measurement))
    is_more = is_more or any(found[place] for place in _PLACES if place != "table")
    return "".join(markup for markups in found.values() for markup in markups) if is_more else ""


def _pieces(measurement: Measurement, space: int, in_line: Container[str]) -> Iterator[tuple[str, ...]]:
    """Yield the parts of the body, the most important first: the place, and versions, the fullest first."""
    card = card_of(measurement)
    found = [("RAM" if name == "Gen" else name, row, remarks) for name, row, remarks in rows(measurement)]
    whole: list[list[str | Text]] = [[name, *map(grouped, row)] for name, row, _ in found]
    if card:
        figures = whole if len(measurement.gpus) <= _WORDY else whole[:1]
        left = min(_CARD, max(_ADVICE, space - size(table(_HEAD, figures))))
        yield "card", _card(measurement, left)
    yield "table", *_tables(whole, time_series(measurement))
    if measurement.at_peak:
        from .at_peak import fold  # few cells have it

        yield "peak", *(fold(measurement.at_peak, measurement.peak_times_s, most) for most in (4, 2, 0))
    for sentence in _below(measurement):
        if sentence not in in_line:
            yield "below", f"<div>{fitted(readable_sizes(sentence), _SENTENCE)}</div>"
    for remark, names in _remarks(measurement, found).items():
        yield "more", small(f"{', '.join(names)}: {remark}")
    for gpu in sorted(measurement.gpus, key=moved_bytes, reverse=True)[:_BARS]:
        yield "bars", device_bar(gpu, measurement.gpus)
    if measurement.gpus:
        yield "more", small("Used: of RAM by this process, of each GPU by all processes")


def _remarks(measurement: Measurement, found: Iterable[Row]) -> dict[str, list[str]]:
    """Return the remarks on the rows, each with the rows that have it, without what the line says."""
    names: dict[str, list[str]] = {}
    for name, _, remarks in found:
        if remarks and (measurement.gpus or remarks != peaked_remark(measurement.gen)):
            names.setdefault(remarks, []).append(name)
    return names


def _card(measurement: Measurement, space: int) -> str:
    """Return the report of an allocation that failed; nothing if none did."""
    card = card_of(measurement)
    if card is None:
        return ""
    from . import out_of_memory

    return out_of_memory.html(card, space)


def _below(measurement: Measurement) -> Iterator[str]:
    """Yield the sentences below the table; of the names that grew, what the line does not tell."""
    grown = grew(measurement)
    for sentence in sentences(measurement):
        if sentence != grown or not tells_who_grew(measurement):
            yield sentence
        elif rest := beyond_names(measurement):
            yield rest


def _tables(whole: list[list[str | Text]], shapes: list[str]) -> Iterator[str]:
    """Yield the table of figures, with time series if there are any, and with fewer and fewer rows."""
    if any(shapes) and len(whole) - 1 <= _WORDY:
        yield table(_HEAD, ([*row, Text(shape)] for row, shape in zip(whole, shapes, strict=True)))
    yield table(_HEAD, whole)
    more: list[str | Text] = ["…", "", "", Text("%gpulog status")]
    yield from (table(_HEAD, [*whole[:count], more]) for count in range(len(whole) - 1, 0, -1))


def _fitted(clauses: Sequence[Clause]) -> tuple[Sequence[Clause], str]:
    """Return the first clauses of a line, as many as fit, and the same as markup."""
    markups = ["".join(weighed(*phrase) for phrase in clause.phrases) for clause in clauses]
    while len(markups) > 1 and size(DOT.join(markups)) > _LINE:
        markups.pop()
    return clauses[: len(markups)], DOT.join(markups)
