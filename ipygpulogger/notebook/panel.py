"""``%gpulog panel``: the session's memory in a live view, and a picture of it that the notebook stores.

The kernel speaks when a figure changed, in messages of under a kilobyte: one after a cell, and one a tick of
the live display while a cell lasts. A view asks for the rest: its code, the history, a report, a new picture.
"""

from __future__ import annotations

import json
import os
import weakref
from contextlib import suppress
from heapq import nlargest
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..analysis.notable import divided, is_inexact
from ..analysis.ranking import by_need
from ..engine.machine import machine
from ..records.cell_record import process_of
from ..records.units import parse_size, printable, rounded_mb, shortened
from ..render import at_peak, out_of_memory  # noqa: F401 - not while a cell runs, which a report does not wait for
from ..render.growth import named_devices
from ..render.html import line_and_body
from ..render.markup import PREFORMATTED
from ..render.plot_data import drawing
from ..sources.system.ram_limit import least

if TYPE_CHECKING:
    from ..records import CellRecord, Measurement, Usage
    from .logger import IPyGPULogger

    Message = dict[str, Any]

# Of a message, as JSON; a longer one is sent in pieces of half as many, which escapes may double.
MOST_BYTES = 900
NEWEST, NEEDIEST = 300, 100  # cells of a long session that are drawn
_DRAWN, _BELOW = 14, 3  # lines of the drawing: of RAM and the first device, and below all
# The code of the widget, and the rest, which is sent in messages: no notebook stores those.
_WIDGET, _MARK, _CODE = Path(__file__).with_suffix(".js").read_text(encoding="utf-8").partition("//====")
_VIEW = "application/vnd.jupyter.widget-view+json"


def panel_of(logger: IPyGPULogger) -> Panel:
    """Return the panel of a logger, a new one where none is connected."""
    if logger._panel is None or not logger._panel.is_open:
        try:
            import anywidget
        except ImportError as error:
            raise ImportError("the panel needs anywidget: pip install 'ipygpulogger[panel]'") from error
        logger._panel = logger._live.panel = Panel(logger, anywidget.AnyWidget(_esm=_WIDGET))
    return logger._panel


class Panel:
    """The panel of one logger, in as many views as there are."""

    def __init__(self, logger: IPyGPULogger, widget: Any) -> None:
        self._logger: IPyGPULogger = weakref.proxy(logger)  # the kernel's list of widgets would keep it alive
        self._widget, self._pid = widget, os.getpid()
        self._mark = f"gpulog-panel-{os.urandom(8).hex()}"  # class of the picture, in whose place views stand
        self._display = ""
        self._devices: dict[Any, Any] = {}  # as last seen, by key
        self._highest: dict[int, list[int]] = {}  # of the session, and 1 for a lower bound
        self._shown: list[Any] = []  # of the running cell: what was sent last, as people read it
        machine().limits.all()  # so that what is left is known
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
        self._answer_picture(alone=False, update=False)
        self._answer_code()
        self._answer_history()

    def ended(self, record: CellRecord) -> None:
        """Send the figures of a cell that has ended, the last of the history."""
        self._shown = []
        self.send({"cells": [self._cell(len(self._logger.history) - 1, record)], "ended": True})

    def runs(self, so_far: Measurement) -> None:
        """Send the figures so far of a cell that runs, if they changed as people read them."""
        figures = self._figures(so_far)
        shown = [one and rounded_mb(one) for row in figures for one in row[5:7]]
        if shown != self._shown:
            self._shown = shown
            cell = {"name": shortened(so_far.label), "time_s": round(so_far.time_s, 1)}
            self.send({"running": {**cell, "figures": figures}})

    def send(self, message: Message) -> None:
        """Send a comm message to the open views; an error in sending, such as a closed comm, is ignored."""
        text, parts = json.dumps(message), [message]
        if len(text) > MOST_BYTES:
            starts, name = range(0, len(text), MOST_BYTES // 2), os.urandom(4).hex()
            pieces = enumerate(text[at : at + MOST_BYTES // 2] for at in starts)
            parts = [{"of": len(starts), "id": name, "at": at, "text": one} for at, one in pieces]
        with suppress(Exception):
            for part in parts:
                if self.is_open:
                    self._widget.send(part)

    def close(self) -> None:
        """Close the connection; views keep what they show."""
        with suppress(Exception):  # the kernel or the front end may be gone
            self._widget.close()

    # -- what views ask for ---------------------------------------------------------------------------------

    def _asked(self, _: Any, content: Any, __: Any) -> None:
        """Answer a view; this may be on another thread, while a cell runs."""
        with suppress(Exception):  # it asks for what is not there
            getattr(self, f"_answer_{content.pop('ask')}")(**content)

    def _answer_code(self) -> None:
        self.send({"code": f"//{_CODE}"})

    def _answer_history(self) -> None:
        """Send the cells so far, of very many the newest, and those that needed most."""
        records = self._records()
        shown = {*list(records)[-NEWEST:], *nlargest(NEEDIEST, records, key=lambda at: by_need(records[at]))}
        cells = [self._cell(at, records[at]) for at in sorted(shown)]
        self.send({"cells": cells, "total": len(records), "mark": self._mark})

    def _answer_report(self, at: int) -> None:
        record = self._records()[at]
        summary, body = line_and_body(record)
        title = escape(printable(f"{record.title()} {record.code_line}"))
        self.send({"report": at, "html": f"<b>{title}</b><div>{summary}</div>{body}"})

    def _answer_picture(self, *, alone: bool, update: bool = True) -> None:
        """Display the picture: alone where views take its place, else beside the widget."""
        words, markup = picture(list(self._records().values()))
        bundle: Message = {"text/plain": words, "text/html": f"<div class={self._mark}>{markup}</div>"}
        if not alone:
            bundle[_VIEW] = {"version_major": 2, "version_minor": 0, "model_id": self._widget.comm.comm_id}
        transient = {"display_id": self._display}
        self._logger._shell.display_pub.publish(data=bundle, metadata={}, transient=transient, update=update)

    # -- figures --------------------------------------------------------------------------------------------

    def _records(self) -> dict[int, CellRecord]:
        """Return the cells of this kernel, by their place in the history."""
        return {at: one for at, one in enumerate(tuple(self._logger.history)) if process_of(one) is None}

    def _cell(self, at: int, record: CellRecord) -> Message:
        """Return what a view shows of a cell."""
        oom, began_s = record.out_of_memory, round(record.started_at.timestamp(), 3)
        more: Message = {
            "outcome": shortened(record.outcome()),
            "advice": printable(oom.advice) if oom else "",
        }
        more |= {"ours": record.gpulog_only, "count": record.execution_count}
        cell = {
            "at": at,
            "name": shortened(record.title()),
            "began_s": began_s,
            "time_s": round(record.time_s, 3),
        }
        more = {name: value for name, value in more.items() if value}
        return {**cell, **more, "figures": self._figures(record)}

    def _figures(self, found: Measurement) -> list[list[Any]]:
        """Return of each memory its number, which is 0 of RAM, and its name, total and budget.

        Then before, highest, after, None where it is unknown what this process has there, and 1 for a lower
        bound; what all processes use, what this one could still have; the highest of the session likewise.
        """
        self._devices |= {gpu.key: gpu for gpu in found.gpus}
        numbers = {key: number for number, key in enumerate(self._devices, 1)}
        names, budget, limits = named_devices(self._devices.values()), self._logger.budget, machine().limits
        ram_bytes, gpu_bytes = divided(found, parse_size(budget)) if budget else (None, None)
        limit = least(one for one in limits.seen if one.memory == "RAM")
        left = (limit.used_bytes, limit.left_bytes) if limit else (None, None)
        rows: list[list[Any]] = [[0, "RAM", limits.total_bytes, ram_bytes, *_use(found.gen), *left]]
        for gpu in found.gpus:
            use = _use(gpu) if gpu.attributed else (None, None, None, 0)
            about = numbers[gpu.key], names[gpu.key][0], gpu.total_bytes, gpu_bytes
            rows.append([*about, *use, gpu.used_bytes, gpu.headroom_bytes])
        for row in rows:
            highest = self._highest[row[0]] = max(self._highest.get(row[0], []), [row[5] or 0, row[7]])
            row.extend(highest)
        return rows


def _use(usage: Usage) -> tuple[int, int, int, int]:
    return usage.before_bytes, usage.peak.lo_bytes, usage.after_bytes, int(is_inexact(usage))


def picture(records: list[CellRecord]) -> tuple[str, str]:
    """Return the session's memory as a sentence, and as a drawing of RAM and the first device."""
    lines = drawing(records).split("\n") if records else ["no cell has been recorded yet"]
    del lines[_DRAWN:-_BELOW]
    drawn = escape("\n".join(lines))
    return f"Memory panel: {lines[0]}", f"<pre {PREFORMATTED}>{drawn}\n{'':9}live: %gpulog panel</pre>"
