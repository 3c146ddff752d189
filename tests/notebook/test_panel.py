"""``%gpulog panel`` without a browser: what is sent, how much of it, and that nobody is hurt by it."""

import gc
import json
import os
import sys
from dataclasses import replace
from datetime import timedelta
from types import ModuleType, SimpleNamespace

import pytest
from handmade import MB, cell, gpu, measured, ram
from hypothesis import given, settings
from made import records
from places import TIMEOUT_S, Publisher, Recorder, begun
from reports import run

from ipygpulogger import History
from ipygpulogger.analysis.notable import is_inexact
from ipygpulogger.engine.scope import Scope
from ipygpulogger.notebook import panel as panels
from ipygpulogger.notebook.live import Live
from ipygpulogger.notebook.panel import NEWEST, Panel, picture
from ipygpulogger.records.explained import OutOfMemory
from ipygpulogger.render.html import line_and_body

KILOBYTE = 1000
VIEW = "application/vnd.jupyter.widget-view+json"


class Widget:
    """As anywidget's: it keeps what it sends; a view asks through it."""

    def __init__(self, _esm=""):
        self.code, self.sent, self.comm = _esm, [], SimpleNamespace(comm_id="f" * 32)

    def on_msg(self, handler):
        self.asked = handler

    def send(self, message):
        assert len(json.dumps({"method": "custom", "content": message}).encode()) < KILOBYTE
        self.sent.append(message)

    def close(self):
        self.comm = None

    def ask(self, **question):
        """What a view gets for a question: the messages, put together."""
        del self.sent[:]
        self.asked(self, question, [])
        return self.whole()

    def whole(self):
        """What was sent, with the pieces put together as a view does it."""
        pieces, found = {}, []
        for message in self.sent:
            if "id" not in message:
                found.append(message)
                continue
            of_one = pieces.setdefault(message["id"], {})
            of_one[message["at"]] = message["text"]
            if len(of_one) == message["of"]:
                found.append(json.loads("".join(of_one[at] for at in sorted(of_one))))
        return found


class Logger:
    """A logger as far as a panel needs it."""

    budget = None

    def __init__(self, *history):
        self.history, self.shown = History(history), []
        publish = lambda **bundle: self.shown.append(bundle)  # noqa: E731
        self._shell = SimpleNamespace(display_pub=SimpleNamespace(publish=publish))


def panel_of(*history, **options):
    logger, widget = Logger(*history), Widget()
    vars(logger).update(options)
    panel = Panel(logger, widget)
    panel.logger = logger  # else nobody holds it
    return panel, widget


def at(number, found, time_s=1.0):
    """A cell of a session, in its order."""
    began = found.started_at + timedelta(seconds=10 * number)
    return replace(found, label=f"In [{number}]", execution_count=number, started_at=began, time_s=time_s)


# -- figures ------------------------------------------------------------------------------------------------


@settings(max_examples=12)
@given(records())
def test_the_figures_are_those_of_the_record(found):
    """To the byte, of every memory; what is unknown of a device is nothing; one message where it is small."""
    panel, widget = panel_of()
    panel.logger.history.append(found)
    panel.ended(found)
    (message,) = widget.whole()
    (row,) = message["cells"]
    assert (row["at"], row["time_s"], message["ended"]) == (0, round(found.time_s, 3), True)
    own, *others = row["figures"]
    assert own[:2] == [0, "RAM"]
    assert own[4:8] == [
        found.gen.before_bytes,
        found.gen.peak.lo_bytes,
        found.gen.after_bytes,
        is_inexact(found.gen),
    ]
    keys = list(dict.fromkeys(use.key for use in found.gpus))
    for use, (number, _, *figures) in zip(found.gpus, others, strict=True):
        known = [use.before_bytes, use.peak.lo_bytes, use.after_bytes, is_inexact(use)]
        known = known if use.attributed else [None, None, None, 0]
        assert keys[number - 1] == use.key
        assert figures[:8] == [use.total_bytes, None, *known, use.used_bytes, use.headroom_bytes]


def test_a_cell_is_one_message():
    """With RAM and two devices, whatever the cell did and whatever it is called."""
    found = cell(ram(1 << 40, 2 << 40), gpu(0, 1 << 40, 2 << 40, total_bytes=1 << 41), gpu(1, 5, 6))
    panel, widget = panel_of()
    for record in (
        found,
        replace(found, label="a long name " * 40),
        replace(found, status="error", error="E" * 99),
    ):
        panel.logger.history.append(record)
        del widget.sent[:]
        panel.ended(record)
        assert len(widget.sent) == 1


def test_the_highest_of_the_session_stays():
    """Also of cells before the panel, and of those that are not drawn."""
    panel, widget = panel_of(at(1, cell(ram(100 * MB, 100 * MB, 900 * MB), gpu(0, 0, MB, 7 * MB))))
    small = at(2, cell(ram(100 * MB, 100 * MB), gpu(0, MB, MB)))
    panel.logger.history.append(small)
    panel.ended(small)
    (message,) = widget.whole()
    assert [row[-2:] for row in message["cells"][0]["figures"]] == [[900 * MB, 0], [7 * MB, 0]]


def test_the_budget_is_of_the_devices_where_they_are_used():
    """As the option has it: of RAM only where no GPU was used."""
    for found, budgets in ((cell(ram(5, 6)), [1 << 30]), (cell(ram(5, 6), gpu(0, 1, 2)), [None, 1 << 30])):
        panel, widget = panel_of(found, budget="1GB")
        panel.ended(found)
        assert [row[3] for row in widget.whole()[0]["cells"][0]["figures"]] == budgets


def test_out_of_memory_comes_with_its_next_step():
    """The advice, at once with the cell."""
    oom = OutOfMemory("cuda:0", 1, 2, 3, 4, 5, 6, 7, 8, (), "del `old_model`")
    found = replace(cell(), status="error", error="OutOfMemoryError", out_of_memory=oom)
    panel, widget = panel_of(found)
    panel.ended(found)
    row = widget.whole()[0]["cells"][0]
    assert (row["advice"], row["outcome"]) == ("del `old_model`", "failed: OutOfMemoryError")


def test_a_running_cell_speaks_when_a_figure_changed():
    """What reads the same is not sent again; the time alone is no figure."""
    panel, widget = panel_of()
    moments = [(2, 100), (3, 100), (4, 101), (5, 101), (6, 101), (7, 90)]
    for time_s, used_mb in moments:
        panel.runs(replace(measured(ram(0, used_mb * MB + time_s)), time_s=float(time_s)))
    assert [message["running"]["time_s"] for message in widget.whole()] == [2, 4, 7]


def test_the_thread_of_the_live_display_tells_the_panel(at_once):
    """Without a thread of its own; also where no report shows the cell."""
    told, shown = [], Live(lambda _: ())
    place, scope = Recorder(), Scope().open()
    place.shows = False
    shown.panel = SimpleNamespace(runs=lambda found: (told.append(found.label), place.shown.release()))
    running = begun(shown.cell("In [4]", scope, place))
    assert place.shown.acquire(timeout=TIMEOUT_S)
    running.drop()
    shown.close()
    scope.close()
    assert set(told) == {"In [4]"}
    assert place.told == ["clear"]


# -- what a view asks for -----------------------------------------------------------------------------------


def test_the_history():
    """Every cell of a short session, with the place where the view may stand."""
    session = [at(number, cell(ram(number, number + 1))) for number in range(1, 60)]
    panel, widget = panel_of(*session)
    (message,) = widget.ask(ask="history")
    assert [row["at"] for row in message["cells"]] == list(range(59))
    assert [row["figures"][0][4] for row in message["cells"]] == list(range(1, 60))
    assert message["total"] == 59
    panel.show()
    assert f"class={message['mark']}" in panel.logger.shown[0]["data"]["text/html"]


def test_of_a_long_session_the_newest_and_the_neediest():
    """The first cell, which needed most, is there after a thousand others."""
    session = [at(0, cell(ram(0, 0, 9 << 30)))] + [at(number, cell(ram(5, 5))) for number in range(1, 1000)]
    _, widget = panel_of(*session)
    (message,) = widget.ask(ask="history")
    places = [row["at"] for row in message["cells"]]
    assert places[0] == 0
    assert places[-NEWEST:] == list(range(1000 - NEWEST, 1000))
    assert len(places) <= 400
    assert message["total"] == 1000


def test_a_report():
    """As on the page: the line, the body, which cell; the text of the cell is no markup."""
    found = at(3, replace(cell(ram(0, 300 * MB), gpu(0, 0, 50 * MB)), source="<img src=x onerror=alert(1)>"))
    _, widget = panel_of(found)
    (message,) = widget.ask(ask="report", at=0)
    assert message["report"] == 0
    assert all(part in message["html"] for part in line_and_body(found))
    assert message["html"].startswith("<b>In [3] &lt;img src=x onerror=alert(1)&gt;</b>")
    assert "<img" not in message["html"]


def test_the_code():
    """In messages, whole; what the widget's state has is the short part that asks for it."""
    code = (panels.Path(panels.__file__).with_suffix(".js")).read_text("utf-8")
    _, widget = panel_of()
    (message,) = widget.ask(ask="code")
    assert code == panels._WIDGET + "//====" + message["code"].removeprefix("//")
    assert len(panels._WIDGET) < 2000
    assert "http" not in code.replace("http://www.w3.org", "")


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"ask": "nonsense"},
        {"ask": "report"},
        {"ask": "report", "at": 7},
        {"ask": "_init__"},
        {"ask": None},
        [],
        None,
        7,
    ],
)
def test_a_question_that_means_nothing(question):
    """It gets no answer, and no error."""
    _, widget = panel_of(cell())
    widget.asked(widget, question, [])
    assert widget.sent == []


# -- the picture --------------------------------------------------------------------------------------------


def test_what_the_notebook_stores_of_200_cells():
    """Under 5 KB: a picture for whoever opens it without a kernel, with the widget until a view took its place."""
    session = [
        at(n, cell(ram(n * MB, 2 * n * MB, 9 * n * MB), *(gpu(i, n, n << 20) for i in range(8))))
        for n in range(200)
    ]
    panel, widget = panel_of(*session)
    panel.show()
    widget.ask(ask="picture", alone=True)
    first, second = panel.logger.shown
    assert set(first["data"]) == {"text/plain", "text/html", VIEW}
    assert set(second["data"]) == {"text/plain", "text/html"}
    assert (first["update"], second["update"]) == (False, True)
    assert first["transient"] == second["transient"]
    for one in (first, second):
        assert len(json.dumps(one["data"])) < 5000
        assert "RAM of this process" in one["data"]["text/html"]


def test_the_picture_before_any_cell():
    """One sentence."""
    words, markup = picture([])
    assert words == "Memory panel: no cell has been recorded yet"
    assert "no cell has been recorded yet" in markup


def test_the_picture_escapes_names():
    """The name of a device is no markup."""
    _, markup = picture([cell(ram(0, MB), replace(gpu(0, 0, MB), name="<script>alert(1)</script>"))])
    assert "&lt;script&gt;" in markup
    assert markup.count("<") == 2


# -- in a session -------------------------------------------------------------------------------------------


@pytest.fixture
def kernel(extension, monkeypatch):
    """The extension in a shell that takes itself for a kernel's, with an anywidget that keeps what is sent."""
    widgets = []

    def new(**traits):
        widgets.append(Widget(**traits))
        return widgets[-1]

    stub = ModuleType("anywidget")
    stub.AnyWidget = new
    monkeypatch.setitem(sys.modules, "anywidget", stub)
    monkeypatch.setattr(extension, "kernel", SimpleNamespace(), raising=False)
    monkeypatch.setattr(extension, "display_pub", Publisher())
    extension.display_pub.is_publishing = False
    extension.widgets = widgets
    yield extension
    del extension.widgets


def test_without_anywidget_one_sentence_says_the_command(extension, capsys, monkeypatch):
    """As the magic refuses anything; the next cells are measured as ever."""
    monkeypatch.setattr(extension, "kernel", SimpleNamespace(), raising=False)
    monkeypatch.setattr(extension, "display_pub", Publisher())
    extension.display_pub.is_publishing = False
    monkeypatch.setitem(sys.modules, "anywidget", None)
    run(extension, "%gpulog panel")
    said = capsys.readouterr().err.strip()
    assert said == "UsageError: %gpulog panel: the panel needs anywidget: pip install 'ipygpulogger[panel]'"
    assert extension.user_ns["il"]._panel is None


def test_in_a_terminal_there_is_no_panel(extension, capsys):
    """One sentence, with what there is instead."""
    run(extension, "%gpulog panel")
    said = capsys.readouterr().err.strip()
    assert (
        said == "UsageError: %gpulog panel: it needs a notebook; in a terminal, %gpulog plot draws the same"
    )


def test_a_session(kernel, capsys):
    """One message a cell with the record's figures; another display is another view of the same panel."""
    run(kernel, "%gpulog panel")
    il, (widget,) = kernel.user_ns["il"], kernel.widgets
    del widget.sent[:]
    for code in ("x = 1", "y = bytearray(30 << 20)", "1 / 0"):
        run(kernel, code)
    found = widget.whole()
    assert len(widget.sent) == len(found) == 3
    for message, record in zip(found, il.history[-3:], strict=True):
        (row,) = message["cells"]
        assert row["name"] == record.label
        assert row["figures"][0][4:7] == [
            record.gen.before_bytes,
            record.gen.peak.lo_bytes,
            record.gen.after_bytes,
        ]
    assert found[-1]["cells"][0]["outcome"] == "failed: ZeroDivisionError"
    run(kernel, "%gpulog panel")
    assert len(kernel.widgets) == 1


@pytest.mark.parametrize("report", ["rich", "none", "text"])
def test_a_panel_follows_long_cells_whatever_the_report(kernel, at_once, report, capsys):
    """Their figures come while they run."""
    run(kernel, f"%gpulog start report={report}")
    run(kernel, "%gpulog panel")
    (widget,) = kernel.widgets
    kernel.user_ns["there"] = lambda: any("running" in message for message in list(widget.sent))
    run(
        kernel,
        f"import time; ends = time.monotonic() + {TIMEOUT_S}\nwhile not there() and time.monotonic() < ends: time.sleep(0.01)",
    )
    kinds = [set(message) & {"running", "ended"} for message in widget.sent]
    assert {"running"} in kinds
    assert kinds[-1] == {"ended"}


def test_stop_start_and_unload(kernel, capsys):
    """The panel is told that no figures follow; it goes on with `start`; unloading closes it."""
    run(kernel, "%gpulog panel")
    (widget,) = kernel.widgets
    run(kernel, "%gpulog stop")
    assert widget.sent[-1] == {"stopped": True}
    told = len(widget.sent)
    run(kernel, "x = 1")
    assert len(widget.sent) == told
    run(kernel, "%gpulog start")
    run(kernel, "x = 1")
    assert widget.whole()[-1]["ended"]
    run(kernel, "%reload_ext ipygpulogger")
    assert widget.comm is None
    run(kernel, "%gpulog panel")
    assert len(kernel.widgets) == 2
    assert capsys.readouterr().err == ""


def test_a_connection_that_is_gone_hurts_no_cell(kernel, capsys):
    """Closed by the front end, or broken: no message, no error, and the next panel is a new one."""
    run(kernel, "%gpulog panel")
    (widget,) = kernel.widgets
    widget.send = lambda _: 1 / 0
    assert run(kernel, "x = 1").success
    widget.comm = None
    assert run(kernel, "x = 1").success
    widget.asked(widget, {"ask": "history"}, [])
    run(kernel, "%gpulog panel")
    assert len(kernel.widgets) == 2
    assert capsys.readouterr().err == ""


def test_a_forks_child_sends_nothing():
    """The connection is its parent's."""
    panel, widget = panel_of(cell())
    panel._pid = os.getpid() + 1
    panel.ended(cell())
    panel.send({"stopped": True})
    assert widget.sent == []


def test_the_panel_keeps_nobody_alive(kernel, capsys):
    """The widget may live on in the kernel; the logger does not by it."""
    logger = Logger(cell())
    widget = Widget()
    panel = Panel(logger, widget)
    del logger
    gc.collect()
    assert widget.ask(ask="history") == []
    panel.send({"stopped": True})
