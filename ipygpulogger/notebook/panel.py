"""``%gpulog panel``: the session's memory in a live view, and a picture of it that the notebook stores.

The kernel speaks when a figure changed, in messages of under a kilobyte: one after a cell, and one a tick of
the live display while a cell lasts. A view asks for the rest: its code, the history, a report, a new picture.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from heapq import nlargest
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..analysis.notable import divided, is_inexact
from ..analysis.ranking import by_need
from ..engine.machine import importing, machine
from ..records.cell_record import process_of
from ..records.units import MB, clipped, parse_size, printable, rounded_mb, size_text
from ..render.growth import named_devices
from ..render.html import line_and_body
from ..render.markup import BLUE, Part, Text, cell_bar, line, small, sparkline, table
from ..render.plot_data import OWN, WHOLE, Axis, panels, thinned
from ..runtime import clock
from ..sources.system.ram_limit import least

if TYPE_CHECKING:
    from ..records import CellRecord, Measurement, Usage
    from .logger import IPyGPULogger

    Message = dict[str, Any]

MOST_BYTES = 900  # of a message, as JSON
NEWEST, NEEDIEST = 300, 100  # cells of a long session that are drawn
_COLUMNS = 6  # of a cell's time series, each with its highest and its lowest point
_WORDS, _ADVICE = 48, 200  # characters
_LIMITS_S = 1.0  # how often the RAM that is left is read, at most
_LANES, _BLOCKS = 6, 60  # memories in the picture, and columns of each
_VIEW = "application/vnd.jupyter.widget-view+json"


def panel_of(logger: IPyGPULogger) -> Panel:
    """Return the panel of a logger, which every view shows alike; a new one where none is connected.

    Raises:
        ImportError: anywidget is not installed.
    """
    if logger._panel is None or not logger._panel.is_open:
        try:
            import anywidget
        except ImportError as error:
            raise ImportError("the panel needs anywidget: pip install 'ipygpulogger[panel]'") from error
        logger._panel = logger._live.panel = Panel(logger, anywidget.AnyWidget(_esm=_code()[0]))
    return logger._panel


def _code() -> tuple[str, str]:
    """Return the code of the widget, and the rest, which is sent in messages: no notebook stores those."""
    module, mark, rest = Path(__file__).with_suffix(".js").read_text(encoding="utf-8").partition("//==")
    return module, mark + rest


class Panel:
    """The panel of one logger, in as many views as there are."""

    def __init__(self, logger: IPyGPULogger, widget: Any) -> None:
        self._logger: IPyGPULogger = weakref.proxy(logger)  # the kernel's list of widgets would keep it alive
        self._widget, self._pid = widget, os.getpid()
        self._mark = f"gpulog-panel-{os.urandom(8).hex()}"  # class of the picture, in whose place views stand
        self._display = ""
        self._memories: dict[Any, int] = {None: 0}  # the number of each by its key; RAM has none
        self._devices: dict[Any, Any] = {}  # as last seen
        self._highest: dict[int, tuple[int, int]] = {}  # of the session, and 1 for a lower bound
        self._left: tuple[float, int | None, int | None] = 0.0, None, None  # read when; RAM in use, and left
        self._shown: list[Any] = []  # of the running cell: what was sent last, as people read it
        for record in self._records().values():
            self._figures(record)
        widget.on_msg(self._asked)

    @property
    def is_open(self) -> bool:
        """Whether views can be connected."""
        return self._pid == os.getpid() and self._widget.comm is not None

    def show(self) -> None:
        """Display one more view."""
        self._display = os.urandom(16).hex()
        self._publish(alone=False, update=False)
        self._send_code()
        self._send_history()

    def ended(self, record: CellRecord) -> None:
        """Send the figures of a cell that has ended, the last of the history."""
        self._shown = []
        for row in fitting(_cell(len(self._logger.history) - 1, record), self._figures(record, now=True)):
            self._send({"cells": [row], "ended": True})

    def runs(self, so_far: Measurement) -> None:
        """Send the figures so far of a cell that runs, if they changed as people read them."""
        figures = self._figures(so_far, now=True)
        shown = [size_bytes and rounded_mb(size_bytes) for one in figures for size_bytes in one[2:4]]
        if shown != self._shown:
            self._shown = shown
            cell = {"name": clipped(printable(so_far.label), _WORDS), "time_s": round(so_far.time_s, 1)}
            for row in fitting(cell, figures):
                self._send({"running": row})

    def stopped(self) -> None:
        """Say that no figures will follow."""
        self._send({"stopped": True})

    def close(self) -> None:
        """Close the connection; views keep what they show."""
        with suppress(Exception):  # the kernel or the front end may be gone
            self._widget.close()

    # -- what is sent ---------------------------------------------------------------------------------------

    def _send(self, message: Message) -> None:
        if self.is_open:
            with suppress(Exception):  # nobody is there: no cell has an error for it
                self._widget.send(message)

    def _asked(self, _: Any, content: Any, __: Any) -> None:
        """Answer a view; this may be on another thread, while a cell runs."""
        answers: dict[str, Any] = {"code": self._send_code, "history": self._send_history}
        answers |= {"report": self._send_report, "picture": self._publish}
        with suppress(Exception):  # it asks for what is not there
            answers[content.pop("ask")](**content)

    def _send_code(self) -> None:
        self._send_text({}, "code", _code()[1])

    def _send_text(self, head: Message, name: str, text: str) -> None:
        parts = list(pieces(text, MOST_BYTES - 50))
        for number, part in enumerate(parts):
            self._send({**head, "part": number, "of": len(parts), name: part})

    def _send_report(self, at: int) -> None:
        record = self._records()[at]
        with importing():  # few cells need all of it
            summary, body = line_and_body(record)
        title = escape(printable(f"{record.title()} {record.code_line}"))
        self._send_text({"report": at}, "html", f"<b>{title}</b><div>{summary}</div>{body}")

    def _send_history(self) -> None:
        """Send the cells so far, as many a message as fit; of very many the newest, and the neediest."""
        records = self._records()
        shown = {*list(records)[-NEWEST:], *nlargest(NEEDIEST, records, key=lambda at: by_need(records[at]))}
        message: Message = {"cells": [], "of": len(records), "mark": self._mark}
        for at in sorted(shown):
            for row in fitting(_cell(at, records[at]), self._figures(records[at], now=at == max(shown))):
                if message["cells"] and size_of({"cells": [message, row]}) > MOST_BYTES:
                    self._send(message)
                    message = {**message, "cells": []}
                message["cells"].append(row)
        self._send(message)

    def _publish(self, *, alone: bool, update: bool = True) -> None:
        """Display the picture: alone where views take its place, else beside the widget."""
        words, markup = picture(list(self._records().values()))
        bundle: Message = {"text/plain": words, "text/html": f"<div class={self._mark}>{markup}</div>"}
        if not alone:
            version = {"version_major": 2, "version_minor": 0}
            bundle[_VIEW] = {**version, "model_id": self._widget.comm.comm_id}
        transient = {"display_id": self._display}
        self._logger._shell.display_pub.publish(data=bundle, metadata={}, transient=transient, update=update)

    # -- figures --------------------------------------------------------------------------------------------

    def _records(self) -> dict[int, CellRecord]:
        """Return the cells of this kernel, by their place in the history."""
        return {at: one for at, one in enumerate(tuple(self._logger.history)) if process_of(one) is None}

    def _figures(self, found: Measurement, *, now: bool = False) -> list[list[Any]]:
        """Return of each memory its number, before, highest, after, whether the highest is a lower bound.

        Then a time series and, of the present, what all processes use, what this one could still have, the
        name, the total, the budget, and the highest of the session.
        """
        self._devices |= {gpu.key: gpu for gpu in found.gpus}
        rows = [self._row(None, found.gen, found.time_s)]
        rows += [self._row(gpu.key, gpu if gpu.attributed else None, found.time_s) for gpu in found.gpus]
        if now:
            names, budget = named_devices(self._devices.values()), self._logger.budget
            ram_bytes, gpu_bytes = divided(found, parse_size(budget)) if budget else (None, None)
            rows[0] += [*self._ram_left(), "RAM", machine().limits.total_bytes, ram_bytes]
            for row, gpu in zip(rows[1:], found.gpus, strict=True):
                row += [gpu.used_bytes, gpu.headroom_bytes, names[gpu.key][0], gpu.total_bytes, gpu_bytes]
            rows = [[*row, *self._highest.get(row[0], (0, 0))] for row in rows]
        return rows

    def _row(self, key: Any, usage: Usage | None, time_s: float) -> list[Any]:
        number = self._memories.setdefault(key, len(self._memories))
        if usage is None:  # what this process has there is unknown
            return [number, None, None, None, 0, ()]
        highest, timeline = (usage.peak.lo_bytes, int(is_inexact(usage))), getattr(usage, "timeline", ())
        self._highest[number] = max(self._highest.get(number, (0, 0)), highest)
        if key is not None or not time_s or not timeline:  # a device's is that of all processes
            return [number, usage.before_bytes, highest[0], usage.after_bytes, highest[1], ()]
        points = thinned(list(timeline), time_s / _COLUMNS)
        course = [(min(1000, round(at_s / time_s * 1000)), rounded_mb(one)) for at_s, one in points]
        return [number, usage.before_bytes, highest[0], usage.after_bytes, highest[1], course]

    def _ram_left(self) -> tuple[int | None, int | None]:
        """Return the RAM in use under the tightest limit, and what is left there, a second old at most."""
        now_s = clock.monotonic_s()
        if now_s - self._left[0] >= _LIMITS_S:
            limit = least(one for one in machine().limits.all() if one.memory == "RAM")
            self._left = now_s, limit and limit.used_bytes, limit and limit.left_bytes
        return self._left[1:]


def _cell(at: int, record: CellRecord) -> Message:
    """Return what a view says of a cell beside its figures."""
    cell: Message = {"at": at, "count": record.execution_count, "time_s": round(record.time_s, 3)}
    cell["name"] = clipped(printable(record.title()), _WORDS)
    cell["began_s"] = round(record.started_at.timestamp(), 3)
    if record.status != "ok":
        cell["outcome"] = clipped(printable(record.outcome()), _WORDS)
    if record.out_of_memory is not None:
        cell["advice"] = clipped(printable(record.out_of_memory.advice), _ADVICE)
    return {**cell, "ours": True} if record.gpulog_only else cell


def size_of(message: Message) -> int:
    """Return how many bytes a message takes as JSON."""
    return len(json.dumps(message, ensure_ascii=False).encode())


def pieces(text: str, most: int) -> Iterator[str]:
    """Yield a text in pieces of at most so many bytes as JSON."""
    while text:
        end = most
        while len(json.dumps(text[:end], ensure_ascii=False).encode()) > most:
            end -= end // 10
        yield text[:end]
        text = text[end:]


def fitting(cell: Message, figures: list[list[Any]]) -> Iterator[Message]:
    """Yield a cell with its figures, in one message; of many devices in several, without time series."""
    whole = {**cell, "figures": figures}
    if size_of(whole) <= MOST_BYTES - 100:  # there is more around it
        yield whole
        return
    figures = [[*one[:5], (), *one[6:]] for one in figures]
    half = len(figures) // 2
    for few in (figures[:half], figures[half:]) if half else (figures,):
        yield from fitting(cell, few)


def picture(records: Sequence[CellRecord]) -> tuple[str, str]:
    """Return the session's memory as a sentence, and as a table with bars and time series."""
    if not records:
        words = "Memory panel: no cell has been recorded yet."
        return words, line(words)
    rows, said = [], []
    for lane in panels(Axis(records))[:_LANES]:
        course = [point for run in lane.curves[OWN] or lane.curves[WHOLE] for point in run]
        used_bytes = round(course[-1][1] * MB) if course else 0
        total_bytes = round(lane.limits.get("total", 0) * MB) or machine().limits.total_bytes or 0
        shape = sparkline(tuple((at, round(size_mb * MB)) for at, size_mb in course), _BLOCKS)
        drawn = cell_bar([Part("", used_bytes, BLUE)], total_bytes)
        highest = Text(escape(clipped(printable(lane.highest), _WORDS)))
        rows.append((lane.name, drawn, size_text(used_bytes), highest, Text(shape)))
        said.append(f"{lane.name} {size_text(used_bytes)}")
    when = f"{len(records):,} cells, up to {records[-1].started_at:%Y-%m-%d %H:%M} UTC"
    markup = table(("", "", "used", Text("highest"), ""), rows)
    return f"Memory panel, {when}: {', '.join(said)}", line(
        markup + small(f"{when}. %gpulog panel shows it live.")
    )
