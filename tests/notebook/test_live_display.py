"""A running cell in a notebook: one display, rewritten, whatever else is sent and cleared meanwhile."""

import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import Publisher, begun, here, in_a_thread, standing

from ipygpulogger.notebook.live import place_for
from ipygpulogger.notebook.live_display import LiveDisplay
from ipygpulogger.records import MIME
from ipygpulogger.render import html, text


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


def test_the_bundle_of_a_running_cell_is_no_record(shell):
    """Only the report carries the record: a saved notebook never holds half a one."""
    publisher = Publisher()
    begun(LiveDisplay(publisher)).show(standing())
    assert MIME not in publisher.sent[0][2]
