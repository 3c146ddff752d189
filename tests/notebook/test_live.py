"""A long cell while it runs: what is asked of its scope, when it is shown, and where."""

import io
import os
import pty
import re
import sys
import threading
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory import MB, Block, blip
from traitlets import TraitError

from ipygpulogger import IPyGPULogger
from ipygpulogger.engine.machine import machine
from ipygpulogger.engine.notes import Notes
from ipygpulogger.engine.scope import Scope
from ipygpulogger.notebook import live
from ipygpulogger.notebook.live import Live, place_for
from ipygpulogger.notebook.live_display import LiveDisplay
from ipygpulogger.notebook.live_terminal import LiveTerminal
from ipygpulogger.notebook.tap import Tap
from ipygpulogger.records import MIME, Measurement, Peak, RamUsage
from ipygpulogger.render import html, text

TIMEOUT_S = 60  # of what hangs; nothing waits so long


def standing(time_s=3.0, used_mb=170, **more):
    """A cell that runs."""
    gen = RamUsage(100 * MB, used_mb * MB, Peak(used_mb * MB, used_mb * MB, "exact"))
    return Measurement(label="In [4]", started_at=datetime.now(timezone.utc), time_s=time_s, gen=gen, **more)


# -- what a scope tells while it is open -----------------------------------------------------------


def test_so_far_is_what_would_be_told_now():
    """Consumed and peaked so far, after each step; the final figures know nothing of the questions."""
    scope = Scope().open()
    told = [scope.so_far("x").gen]
    kept = Block(64)
    told.append(scope.so_far("x").gen)
    blip(200)
    told.append(scope.so_far("x").gen)
    kept.free()
    told.append(scope.so_far("x").gen)
    scope.close()
    final = scope.result(Measurement, "x").gen
    consumed = [round(gen.consumed_bytes / MB) for gen in (*told, final)]
    peaked = [round(gen.peaked_bytes / MB) for gen in (*told, final)]
    for found, truth in ((consumed, [0, 64, 64, 0, 0]), (peaked, [0, 0, 200, 264, 264])):
        assert [abs(a - b) <= 2 for a, b in zip(found, truth, strict=True)] == [True] * 5, (found, truth)
    assert final.peak.quality == "exact"


def test_asking_takes_no_note_and_sets_no_clock(monkeypatch):
    """What is missing is said in the record, whoever asked before; the time is the scope's own."""
    on = machine()
    scope = Scope().open()
    monkeypatch.setattr(on, "notes", Notes())
    on.notes.add("a driver went away")
    assert scope.so_far("x").notes == ()
    assert scope.time_s == 0.0
    scope.close()
    time_s = scope.time_s
    scope.so_far("x")  # a thread that comes late
    assert scope.time_s == time_s
    assert scope.result(Measurement, "x").notes == ("a driver went away",)


def test_asking_lists_no_processes(monkeypatch):
    """Neither the children nor the driver's processes: no question that takes milliseconds."""
    scope = Scope().open()
    on = machine()
    monkeypatch.setattr(on.process, "children", lambda _: pytest.fail("asked for children"))
    monkeypatch.setattr(on.nvml, "processes", lambda _: pytest.fail("asked for processes"))
    scope.so_far("x")
    monkeypatch.undo()
    scope.close()


def test_a_scope_that_is_not_open_yet_tells_nothing():
    """No time since nowhere, no figures of before."""
    with pytest.raises(AssertionError):
        Scope().so_far("x")


# -- when ------------------------------------------------------------------------------------------


class Recorder:
    """A place that keeps what it is told."""

    def __init__(self):
        self.told, self.shown = [], threading.Semaphore(0)

    def begin(self):
        pass

    def show(self, measurement):
        self.told.append(measurement)
        self.shown.release()

    def end(self):
        self.told.append("end")

    def settle(self, bundle):
        self.told.append(bundle)
        return True

    def clear(self):
        self.told.append("clear")


def begun(place):
    place.begin()
    return place


@pytest.fixture
def at_once(monkeypatch):
    """Every cell is long."""
    monkeypatch.setattr(live, "AFTER_S", 0.0)
    monkeypatch.setattr(live, "EVERY_S", 0.001)


@pytest.fixture
def running(at_once):
    """One cell that runs and is shown."""
    shown = Live(lambda _: ("Over budget",))
    scope, place = Scope().open(), Recorder()
    cell = begun(shown.cell("In [4]", scope, place))
    yield SimpleNamespace(live=shown, cell=cell, scope=scope, place=place)
    scope.close()
    cell.drop()
    shown.close()
    assert not threads()


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name == "ipygpulogger live"]


def test_a_cell_that_lasts_is_shown_again_and_again_until_it_ends(running):
    """Label, figures so far and remarks; after its end nothing but the report."""
    for _ in range(3):
        assert running.place.shown.acquire(timeout=TIMEOUT_S)
    running.cell.end()
    told = len(running.place.told)
    assert {m.label for m in running.place.told[:3]} == {"In [4]"}
    assert {m.notes for m in running.place.told[:3]} == {("Over budget",)}
    assert running.cell.settle({"a": 1})
    running.cell.drop()
    assert [what for what in running.place.told[told - 1 :] if not isinstance(what, Measurement)] == [
        "end",
        {"a": 1},
        "clear",
    ]


def test_a_short_cell_is_never_shown(monkeypatch):
    """Whoever ends before the threshold was not looked at, and pays for one thread in a session."""
    monkeypatch.setattr(live, "AFTER_S", 3600.0)
    shown = Live(lambda _: ())
    seen = set()
    for _ in range(20):
        place = Recorder()
        cell = begun(shown.cell("In [4]", None, place))
        seen |= {thread.ident for thread in threading.enumerate() if thread.name == "ipygpulogger live"}
        cell.end()
        cell.drop()
        assert place.told == ["end", "clear"]
    shown.close()
    assert len(seen) == 1
    assert not threads()


def test_each_of_two_cells_has_its_own(running):
    """Two cells at once, as on a subshell: each place is told of its own scope."""
    scope, place = Scope().open(), Recorder()
    other = begun(running.live.cell("In [5]", scope, place))
    assert place.shown.acquire(timeout=TIMEOUT_S)
    running.cell.end()
    assert place.shown.acquire(timeout=TIMEOUT_S)
    other.end()
    scope.close()
    assert {m.label for m in place.told if m != "end"} == {"In [5]"}
    assert {m.label for m in running.place.told if m != "end"} <= {"In [4]"}
    other.drop()


@pytest.mark.parametrize("error", [OSError("gone"), ValueError("closed file")])
def test_a_place_that_fails_hurts_nobody(at_once, error):
    """The thread goes on asking, and the cell's end is as ever."""

    class Broken(Recorder):
        def show(self, measurement):
            super().show(measurement)
            raise error

    shown, place, scope = Live(lambda _: ()), Broken(), Scope().open()
    cell = begun(shown.cell("In [4]", scope, place))
    for _ in range(2):
        assert place.shown.acquire(timeout=TIMEOUT_S)
    cell.end()
    scope.close()
    assert cell.settle({"a": 1})
    cell.drop()
    shown.close()


def test_without_a_thread_the_cell_runs_unseen(monkeypatch):
    """A system that gives no thread: nothing is shown, and nothing raised."""

    def none(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    place = Recorder()
    cell = begun(Live(lambda _: ()).cell("In [4]", None, place))
    cell.end()
    assert not cell.settle({})
    assert place.told == ["end", "clear"]


def test_a_forks_child_waits_for_nobody(running):
    """The child has no thread of ours, and locks that nobody lets go: its cell ends all the same."""
    pid = os.fork()
    if not pid:
        code = 1
        with suppress(BaseException):
            running.live.ticker._lock = taken = threading.Lock()
            taken.acquire()  # as by our thread at the moment of the fork
            running.cell.end()
            settled = running.cell.settle({})
            running.cell.drop()
            running.live.close()
            code = 2 if settled else 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forks_child_has_a_thread_of_its_own(running):
    """A kernel that is forked on purpose shows its own long cells."""
    pid = os.fork()
    if not pid:
        code = 1
        with suppress(BaseException):
            scope, place = Scope().open(), Recorder()
            begun(running.live.cell("In [7]", scope, place))
            code = 0 if place.shown.acquire(timeout=TIMEOUT_S) else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# -- in a notebook ---------------------------------------------------------------------------------


class Session:
    """As Jupyter's: what it sends, it keeps."""

    def __init__(self):
        self.messages = []

    def send(self, _stream, message, *_, **__):
        self.messages.append(message)


class Publisher:
    """As ipykernel's: the hooks of a thread, which may take a message, then the session."""

    def __init__(self):
        self.session, self.threads = Session(), threading.local()
        self.parent_header = {"msg_id": "ours"}

    def publish(self, data, metadata=None, *, transient=None, update=False):
        assert metadata == {}
        kind = "update_display_data" if update else "display_data"
        self.send(kind, {"data": data, "metadata": metadata, "transient": transient or {}})

    def clear_output(self, wait=False):
        self.send("clear_output", {"wait": wait})

    def send(self, kind, content, parent=None):
        message = {"msg_type": kind, "content": content, "parent_header": parent or self.parent_header}
        for hook in getattr(self.threads, "hooks", ()):
            message = hook(message)
            if message is None:
                return
        self.session.send("socket", message, ident=b"topic")

    @property
    def sent(self):
        contents = [(m["msg_type"], m["content"]) for m in self.session.messages if isinstance(m, dict)]
        return [(kind, c["transient"].get("display_id"), c["data"]) for kind, c in contents if "data" in c]


def in_a_thread(call, *args, **kwargs):
    thread = threading.Thread(target=call, args=args, kwargs=kwargs)
    thread.start()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def here(call, *args, **kwargs):
    call(*args, **kwargs)


def test_one_display_is_rewritten_and_settles():
    """A display, updates of it, and the report as the last update; all under one id."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    for time_s in (2.0, 3.0, 4.0):
        display.show(standing(time_s))
    display.end()
    display.show(standing(5.0))
    assert display.settle({"text/plain": "the report"})
    display.clear()
    assert [kind for kind, _, _ in publisher.sent] == ["display_data", *["update_display_data"] * 3]
    assert len({name for _, name, _ in publisher.sent}) == 1
    assert publisher.sent[1][2] == {
        "text/plain": text.so_far(standing(3.0)),
        "text/html": html.so_far(standing(3.0)),
    }
    assert publisher.sent[-1][2] == {"text/plain": "the report"}
    assert "send" not in vars(publisher.session)


def test_what_was_never_shown_does_not_settle():
    """A short cell's report is a display of its own."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    display.end()
    assert not display.settle({"text/plain": "the report"})
    display.clear()
    assert publisher.sent == []


@pytest.mark.parametrize("where", [here, in_a_thread])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_cell_that_clears_its_output_is_shown_no_longer(before, where):
    """Whichever thread clears: our display is gone, no update of it, and the report is displayed anew."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    for _ in range(before):
        display.show(standing())
    where(publisher.clear_output)
    display.show(standing())
    display.end()
    assert not display.settle({"text/plain": "the report"})
    display.clear()
    assert len(publisher.sent) == before


@pytest.mark.parametrize("where", [here, in_a_thread])
def test_a_clear_between_the_end_and_the_report_counts(where):
    """A thread that outlives the cell may clear before the report comes."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    display.show(standing())
    display.end()
    where(publisher.clear_output)
    assert not display.settle({"text/plain": "the report"})


def output_widget(publisher, msg_id, **more):
    """What an ipywidgets.Output says when it begins or ends to take the output of a cell."""
    data = {"method": "update", "state": {"msg_id": msg_id, **more}}
    publisher.session.send("socket", "comm_msg", {"comm_id": "widget", "data": data}, parent={})


def hooked(publisher, clear):
    publisher.threads.hooks = [lambda _: None]
    clear()
    publisher.threads.hooks = []


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("by", ["hook", "widget", "an earlier cell"])
def test_what_others_clear_is_not_ours(by, wait):
    """An output widget, a hook that takes the message, a task of an earlier cell: ours stands and settles."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    display.show(standing())
    if by == "hook":
        hooked(publisher, lambda: publisher.clear_output(wait))
    elif by == "widget":
        output_widget(publisher, "ours")
        publisher.clear_output(wait)
        publisher.send("stream", {"name": "stdout", "text": "into the widget"})
        output_widget(publisher, "")
    else:
        publisher.send("clear_output", {"wait": wait}, parent={"msg_id": "earlier"})
        publisher.send("stream", {"name": "stdout", "text": "of the earlier"}, parent={"msg_id": "earlier"})
    display.show(standing(4.0))
    display.end()
    assert display.settle({"text/plain": "the report"})
    assert [kind for kind, _, _ in publisher.sent] == [
        "display_data",
        "update_display_data",
        "update_display_data",
    ]


def test_nothing_is_shown_into_an_output_widget():
    """While a widget takes the cell's output, ours waits; after the widget it comes under the cell."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    output_widget(publisher, "ours")
    display.show(standing())
    output_widget(publisher, "ours", outputs=[])
    display.show(standing())
    output_widget(publisher, "")
    assert publisher.sent == []
    display.show(standing())
    assert [kind for kind, _, _ in publisher.sent] == ["display_data"]


def test_the_report_is_no_update_into_an_output_widget():
    """A widget that still takes the output would lose the update: the report is a display, in it."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    display.show(standing())
    output_widget(publisher, "ours")
    display.end()
    assert not display.settle({"text/plain": "the report"})


def test_a_clear_that_waits_is_not_set_off_by_us():
    """clear_output(wait=True) as the last call: what stands there stays, and our display becomes the report."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    display.show(standing())
    publisher.clear_output(wait=True)
    display.show(standing())
    display.end()
    assert display.settle({"text/plain": "the report"})
    assert [kind for kind, _, _ in publisher.sent] == ["display_data", "update_display_data"]


def test_a_clear_that_waits_is_not_set_off_by_our_first_display():
    """Before ours was there: it does not come in order to clear."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    publisher.clear_output(wait=True)
    display.show(standing())
    assert publisher.sent == []


@pytest.mark.parametrize("where", [here, in_a_thread])
@pytest.mark.parametrize("kind", ["stream", "display_data", "execute_result", "error"])
def test_a_clear_that_waits_comes_with_the_next_output(kind, where):
    """The cell's next output, by any thread, takes our display away."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    display.show(standing())
    publisher.clear_output(wait=True)
    where(publisher.send, kind, {})
    display.show(standing())
    display.end()
    assert not display.settle({"text/plain": "the report"})
    assert len(publisher.sent) == 1


def test_words_that_are_not_sent_yet_clear_too(monkeypatch):
    """Printed after clear_output(wait=True) and still in a buffer: they go first, then the report."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    display.show(standing())
    publisher.clear_output(wait=True)
    display.end()
    buffered = SimpleNamespace(flush=lambda: publisher.send("stream", {"name": "stdout", "text": "x"}))
    monkeypatch.setattr(sys, "stdout", buffered)
    settled = display.settle({"text/plain": "the report"})
    monkeypatch.undo()
    assert not settled


@given(st.lists(st.booleans(), max_size=12))
def test_the_session_is_as_it_was_after_the_last(ends_first):
    """Displays of cells that overlap, which end in any order: each hears, and none is left behind."""
    publisher = Publisher()
    displays = []
    for first in (*ends_first, True):
        displays.append(begun(LiveDisplay(publisher)))
        displays.append(begun(LiveDisplay(publisher)))
        gone = displays.pop(0 if first else -1)
        gone.end()
        gone.clear()
    for display in displays:
        display.show(standing())
    publisher.clear_output()
    for display in displays:
        display.end()
        assert not display.settle({"text/plain": "the report"})
    assert "send" not in vars(publisher.session)


def test_another_who_watches_the_session_stays():
    """Wrapped by others before or meanwhile: theirs is left in place, and every message is sent once."""
    publisher = Publisher()
    seen = []

    def wrapped(send):
        return lambda *args, **kwargs: (seen.append(1), send(*args, **kwargs))

    publisher.session.send = before = wrapped(publisher.session.send)
    first = begun(LiveDisplay(publisher))
    first.end()
    first.clear()
    assert publisher.session.send is before
    second = begun(LiveDisplay(publisher))
    publisher.session.send = after = wrapped(publisher.session.send)
    second.end()
    second.clear()
    assert publisher.session.send is after
    publisher.clear_output()
    assert len(seen) == 2
    assert len(publisher.session.messages) == 1


@pytest.mark.parametrize("odd", [None, 7, {}, {"msg_type": "clear_output"}, "comm_msg"])
def test_odd_messages_are_sent_as_ever(odd):
    """Whatever somebody sends, it goes out, and nobody is hurt."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    publisher.session.send("socket", odd)
    display.show(standing())
    display.end()
    assert display.settle({"text/plain": "the report"})
    assert publisher.session.messages[0] is odd


def test_a_kernel_whose_messages_cannot_be_seen_is_not_live():
    """A report that might get lost is not risked."""
    publisher = Publisher()
    publisher.session = None
    assert place_for(SimpleNamespace(display_pub=publisher, kernel=object()), "rich") is None
    assert place_for(SimpleNamespace(display_pub=object(), kernel=object()), "rich") is None


def test_a_report_that_never_comes_leaves_an_empty_display():
    """A stop within the cell: what stood there is wiped out."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    display.show(standing())
    display.end()
    display.clear()
    assert publisher.sent[-1][::2] == ("update_display_data", {"text/plain": ""})


def test_a_publisher_that_failed_once_begins_anew():
    """What was not sent has no id to update."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    publish, display._publish = display._publish, None
    with pytest.raises(TypeError):
        display.show(standing())
    display._publish = publish
    display.show(standing())
    assert publisher.sent[0][0] == "display_data"


# -- in a terminal ---------------------------------------------------------------------------------


class Screen(io.StringIO):
    """A terminal of 80 columns that keeps what stands in each row."""

    COLUMNS = 80
    SEQUENCE = re.compile(r"\x1b(?:([78])|\[(\d*)([GK]))|([\s\S])")

    def __init__(self):
        super().__init__()
        self.rows, self.row, self.column, self.saved = [[]], 0, 0, None

    def write(self, words):
        for keep, number, command, character in self.SEQUENCE.findall(words):
            row = self.rows[self.row]
            if keep == "7":
                self.saved = self.row, self.column
            elif keep == "8":
                self.row, self.column = self.saved
            elif command == "G":
                self.column = int(number) - 1
            elif command == "K":
                del row[self.column :]
            elif character == "\n":
                self.row, self.column = self.row + 1, 0
                self.rows += [[]] if self.row == len(self.rows) else []
            elif character == "\r":
                self.column = 0
            else:
                assert self.column < self.COLUMNS, "it would wrap"
                row.extend(" " * (self.column + 1 - len(row)))
                row[self.column] = character
                self.column += 1

    @property
    def lines(self):
        return ["".join(row).rstrip() for row in self.rows]


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", str(Screen.COLUMNS))
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def a_line(monkeypatch):
    """What makes a line on a screen, where the cell prints too."""

    def made(columns=Screen.COLUMNS):
        screen = Screen()
        screen.COLUMNS = columns
        screen.shell = SimpleNamespace(system=screen.write)
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setattr(sys, "stderr", screen)
        return screen, begun(LiveTerminal(screen.shell))

    return made


def test_one_line_is_rewritten_and_wiped_out(a_line):
    """Each showing stands over the last one, and the end leaves the screen and the cursor as they were."""
    screen, line = a_line()
    for used_mb in (170, 99999, 7):
        line.show(standing(used_mb=used_mb))
        assert screen.lines == [text.so_far(standing(used_mb=used_mb)).rjust(79)]
        assert screen.column == 0
    line.end()
    line.show(standing())
    assert screen.lines == [""]


@pytest.mark.parametrize("where", [here, in_a_thread])
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from(["a", "a word ", "\n", "\r", "", "system", "show"]), max_size=30))
def test_nothing_is_left_of_it_once_the_cell_writes(a_line, where, steps):
    """Whatever is written, by whichever thread: the screen is at once as without us, and stays so."""
    alone = Screen()
    screen, line = a_line()
    written = False
    for step in steps:
        if step == "show":
            line.show(standing())
            assert written or screen.lines == [text.so_far(standing()).rjust(79)]
            assert (screen.row, screen.column) == (alone.row, alone.column)
        elif screen.column + len(step) < 80:
            where(screen.shell.system if step == "system" else partial(print, end=""), step)
            alone.write(step)
            written = True
        if written:
            assert (screen.lines, screen.row, screen.column) == (alone.lines, alone.row, alone.column)
    line.end()
    assert screen.lines == alone.lines
    for owner, name in ((screen, "write"), (screen, "flush"), (screen.shell, "system")):
        assert not isinstance(getattr(owner, name), Tap)


def test_what_asks_for_input_finds_the_line_clean(a_line):
    """input() writes by itself, and flushes before: that is when ours goes."""
    screen, line = a_line()
    line.show(standing())
    sys.stderr.flush()
    line.show(standing())
    assert screen.lines == [""]


def test_two_loggers_on_one_screen_leave_nothing(a_line):
    """Each writes its own over the other's, in whichever order they end."""
    for first in (0, 1):
        screen, line = a_line()
        lines = [line, begun(LiveTerminal(screen.shell))]
        for showing in lines:
            showing.show(standing())
        assert screen.lines == [text.so_far(standing()).rjust(79)]
        lines[first].end()
        lines[not first].show(standing())
        assert screen.lines == [text.so_far(standing()).rjust(79)]
        lines[not first].end()
        assert screen.lines == [""]
        assert not {"write", "flush"} & set(vars(screen))


def test_a_forks_child_writes_whoever_holds_the_lock(a_line):
    """The child prints, though a thread of ours was writing at the moment of the fork."""
    _, line = a_line()
    pid = os.fork()
    if not pid:
        code = 1
        with suppress(BaseException):
            line._lock = threading.Lock()
            line._lock.acquire()
            print("child")
            code = 0 if sys.stdout.lines[0] == "child" else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    line.end()


def test_a_narrow_terminal_gets_what_fits(monkeypatch, a_line):
    """The line never wraps, however narrow the window."""
    for columns in (20, 7, 1):
        monkeypatch.setenv("COLUMNS", str(columns))
        _, line = a_line(columns)
        line.show(standing())
        line.end()


# -- where -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("report", ["text", "rich", "none"])
@pytest.mark.parametrize("where", ["kernel", "terminal", "dumb", "pipe", "nowhere", "closed"])
def test_the_place_fits_shell_and_report(monkeypatch, report, where):
    """A rich report in a notebook, any report in a terminal; else nothing is live."""
    shell = SimpleNamespace(display_pub=Publisher(), kernel=object() if where == "kernel" else None)
    stream = {"nowhere": None, "terminal": Screen(), "dumb": Screen()}.get(where, io.StringIO())
    if where in ("terminal", "dumb"):
        stream.isatty = lambda: True
    if where == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    if where == "closed":
        stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    place = place_for(shell, report)
    expected = {
        ("kernel", "rich"): LiveDisplay,
        ("terminal", "text"): LiveTerminal,
        ("terminal", "rich"): LiveTerminal,
    }
    assert type(place) is expected.get((where, report), type(None))


@pytest.mark.parametrize(
    ("then", "printed"),
    [
        ("1;", []),
        ("print('a'); print('b')", ["a", "b"]),
        ("get_ipython().system('echo a; echo b')", ["a", "b"]),
        ("import sys; sys.stderr.write('a\\n');", ["a"]),
    ],
    ids=["silent", "print", "system", "stderr"],
)
def test_in_a_terminal_the_report_follows_the_line_wiped_out(shell, monkeypatch, at_once, then, printed):
    """A real cell of a real shell on a real pseudo-terminal: live, then what it writes, then the table."""
    parent, child = pty.openpty()
    terminal, errors = os.fdopen(child, "w"), os.fdopen(os.dup(child), "w", buffering=1)
    shown = threading.Event()
    show = LiveTerminal.show

    def told(line, measurement):
        show(line, measurement)
        shown.set()

    monkeypatch.setattr(LiveTerminal, "show", told)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", errors)
    monkeypatch.setattr(shell, "system", lambda words: os.system(f"({words}) >{os.ttyname(child)}"))
    shell.user_ns["shown"] = shown
    il = IPyGPULogger().start()
    shell.run_cell(f"assert shown.wait({TIMEOUT_S})\n{then}", store_history=True)
    il.stop()
    terminal.close()
    errors.close()
    words = b""
    with suppress(OSError):  # how a pseudo-terminal says that it ends
        while more := os.read(parent, 65536):
            words += more
    os.close(parent)
    live_part, wiped, rest = words.decode().rpartition("\x1b[K\x1b8")
    assert wiped
    assert "s so far | Gen: 0/0/" in live_part
    assert "\x1b" not in rest
    screen = Screen()
    screen.write(live_part + wiped + rest)
    assert [line for line in screen.lines if line][: len(printed)] == printed
    assert "".join(screen.lines[-3:]).startswith("RAM: Consumed Peaked")
    assert "so far" not in "".join(screen.lines)


# -- budgets ---------------------------------------------------------------------------------------


def test_a_cell_over_its_budget_is_marked(shell, capsys):
    """The cell whose peak went over says by how much, in text and record; one that did not says nothing."""
    il = IPyGPULogger().start()
    shell.run_cell("1", store_history=True)
    allowed_mb = il.data.gen_mem_used + 150
    il.budget = f"{allowed_mb}MB"
    shell.user_ns["blip"] = blip
    for size_mb in (300, 50):
        capsys.readouterr()
        shell.run_cell(f"blip({size_mb})", store_history=True)
        (*_, last) = capsys.readouterr().out.splitlines()
        if size_mb == 300:
            peak_mb = round(il.record.gen.peak.lo_bytes / MB)
            assert last == f"Over budget on RAM: peak {peak_mb} of {allowed_mb} MB"
            assert il.record.notes == (last,)
        else:
            assert last.startswith("Gen:")
            assert il.record.notes == ()
    il.stop()


def test_a_budget_that_is_no_size_is_refused(shell):
    """By the keyword, by the check and by %config, in one sentence; nothing is a budget of none."""
    for bad in ("ten parsecs", 10, "", "-1GB", "10"):
        with pytest.raises(ValueError, match=r"a size such as '?10GB"):
            IPyGPULogger(budget=bad)
    il = IPyGPULogger(budget=None)
    for bad in ("ten parsecs", "10"):
        with pytest.raises(TraitError, match="write a size such as 10GB"):
            il.budget = bad
    il.budget = "1.5 GB"
    assert il.budget == "1.5 GB"


def test_the_bundle_of_a_running_cell_is_no_record(shell):
    """Only the report carries the record: a saved notebook never holds half a one."""
    publisher = Publisher()
    begun(LiveDisplay(publisher)).show(standing())
    assert MIME not in publisher.sent[0][2]
