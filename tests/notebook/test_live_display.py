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

EMPTY = {"text/html": ""}


def ended(display):
    """The cell's code has ended, and the report comes next."""
    display.end()
    display.clear()


def test_one_display_is_rewritten_and_emptied():
    """A display, updates of it, and at the end nothing in it; all under one id."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    for time_s in (2.0, 3.0, 4.0):
        display.show(standing(time_s))
    display.end()
    display.show(standing(5.0))
    for _ in range(2):
        display.clear()
    display.show(standing(6.0))
    assert [kind for kind, _, _ in publisher.sent] == ["display_data", *["update_display_data"] * 3]
    assert len({name for _, name, _ in publisher.sent}) == 1
    assert publisher.sent[1][2] == {
        "text/plain": text.so_far(standing(3.0)),
        "text/html": html.so_far(standing(3.0)),
    }
    assert publisher.sent[-1][2] == EMPTY
    assert "send" not in vars(publisher.session)


def test_what_was_never_shown_is_not_emptied():
    """A short cell's report is the only message."""
    publisher = Publisher()
    ended(begun(LiveDisplay(publisher)))
    assert publisher.sent == []


@pytest.mark.parametrize("where", [here, in_a_thread])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_cell_that_clears_its_output_is_shown_no_longer(before, where):
    """Whichever thread clears: our display is gone, and no update of it is sent."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    for _ in range(before):
        display.show(standing())
    where(publisher.clear_output)
    display.show(standing())
    ended(display)
    assert len(publisher.sent) == before


@pytest.mark.parametrize("where", [here, in_a_thread])
def test_a_clear_between_the_end_and_the_report_counts(where):
    """A thread that outlives the cell may clear before the report comes."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    display.show(standing())
    display.end()
    where(publisher.clear_output)
    display.clear()
    assert len(publisher.sent) == 1


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (["a\n"], True),
        (["a"], False),
        (["a", "b\n"], True),
        (["a\n", "b"], False),
        (["\r10%"], False),
        (["10%\r"], False),
        (["\r10%", "\r100%\n"], True),
    ],
)
def test_no_line_is_cut_in_two(texts, shown):
    """Text without a newline at its end may go on: a display waits until the line is whole."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    for printed in texts:
        publisher.send("stream", {"name": "stdout", "text": printed})
    display.show(standing())
    assert len(publisher.sent) == shown
    publisher.send("display_data", {"data": {}, "metadata": {}, "transient": {}})
    display.show(standing())  # nothing of a line stands above it now
    assert len(publisher.sent) == 2 + shown
    ended(display)
    assert publisher.sent[-1] == ("update_display_data", publisher.sent[-2][1], EMPTY)


def test_updates_do_not_wait_for_a_line():
    """They come into no line: the display stands above it."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    display.show(standing())
    publisher.send("stream", {"name": "stdout", "text": "half a line"})
    display.show(standing(4.0))
    ended(display)
    assert [kind for kind, _, _ in publisher.sent] == ["display_data", *["update_display_data"] * 2]


def test_text_of_another_cell_is_not_this_cells_line():
    """A thread of an earlier cell that prints dots below that cell."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    publisher.send("stream", {"name": "stdout", "text": "."}, parent={"msg_id": "earlier"})
    display.show(standing())
    assert len(publisher.sent) == 1


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
    """An output widget, a hook that takes the message, a task of an earlier cell: ours stands, and is emptied."""
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
    ended(display)
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


def test_there_is_no_update_into_an_output_widget():
    """A widget that still takes the output would lose the update: it is not sent."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    display.show(standing())
    output_widget(publisher, "ours")
    ended(display)
    assert len(publisher.sent) == 1


def clears(publisher):
    """How often the front end was asked to clear, and after how many outputs of the cell."""
    kinds = [message["msg_type"] for message in publisher.session.messages]
    return [i for i, kind in enumerate(kinds) if kind == "clear_output"]


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("times", [1, 2])
def test_a_clear_that_waits_is_not_set_off_by_us(before, times):
    """clear_output(wait=True) as the last call: it is never sent, so that the report clears nothing."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    for _ in range(before):
        display.show(standing())
    for _ in range(times):
        publisher.clear_output(wait=True)
    display.show(standing())
    ended(display)
    assert clears(publisher) == []
    assert [kind for kind, _, _ in publisher.sent] == ["display_data", "update_display_data"][: 2 * before]


@pytest.mark.parametrize("where", [here, in_a_thread])
@pytest.mark.parametrize("kind", ["stream", "display_data", "execute_result", "error"])
def test_a_clear_that_waits_comes_with_the_next_output(kind, where):
    """The cell's next output, by any thread, clears, and takes our display away."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    display.show(standing())
    publisher.clear_output(wait=True)
    for _ in range(2):
        where(publisher.send, kind, {"text": "x\n"})
    display.show(standing())
    ended(display)
    assert [m["msg_type"] for m in publisher.session.messages] == ["display_data", "clear_output", kind, kind]
    assert publisher.session.messages[1]["content"] == {"wait": True}


def test_a_clear_at_once_replaces_one_that_waits():
    """Nothing is left to be cleared by the next output."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    publisher.clear_output(wait=True)
    publisher.clear_output()
    publisher.send("stream", {"name": "stdout", "text": "x\n"})
    ended(display)
    assert [m["content"].get("wait") for m in publisher.session.messages] == [False, None]


def test_a_clear_that_waits_is_sent_to_a_cell_that_goes_on():
    """Without an end, as when the logger stops within the cell: the cell's next output clears."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    display.show(standing())
    publisher.clear_output(wait=True)
    display.clear()
    assert [m["msg_type"] for m in publisher.session.messages] == [
        "display_data",
        "update_display_data",
        "clear_output",
    ]


def test_a_clear_after_the_end_is_not_ours():
    """A thread's that outlives the cell: it is sent as ever."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    display.end()
    publisher.clear_output(wait=True)
    display.clear()
    assert clears(publisher) == [0]


def test_words_that_are_not_sent_yet_clear_too(monkeypatch):
    """Printed after clear_output(wait=True) and still in a buffer: they are sent first, behind the clear."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    publisher.clear_output(wait=True)
    buffered = SimpleNamespace(flush=lambda: publisher.send("stream", {"name": "stdout", "text": "x"}))
    monkeypatch.setattr(sys, "stdout", buffered)
    display.end()
    monkeypatch.undo()
    display.clear()
    assert [m["msg_type"] for m in publisher.session.messages] == ["clear_output", "stream"]


@pytest.mark.parametrize("first", [0, 1])
def test_two_loggers_hold_one_clear(first):
    """Each keeps it back, and the report of the one that ends first clears nothing."""
    publisher = Publisher()
    displays = [begun(LiveDisplay(publisher)) for _ in range(2)]
    publisher.clear_output(wait=True)
    for display in displays:
        display.end()
    displays[first].clear()
    publisher.send("display_data", {"data": {}, "metadata": {}, "transient": {}})
    displays[1 - first].clear()
    assert clears(publisher) == []


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
    sent = len(publisher.sent)
    for display in displays:
        ended(display)
    assert len(publisher.sent) == sent
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
    ended(display)
    assert publisher.session.messages[0] is odd
    kinds = [message["msg_type"] for message in publisher.session.messages[1:]]
    assert kinds == ["display_data", "update_display_data"]


def test_a_kernel_whose_messages_cannot_be_seen_is_not_live():
    """A report that might get lost is not risked."""
    publisher = Publisher()
    publisher.session = None
    assert place_for(SimpleNamespace(display_pub=publisher, kernel=object()), "rich") is None
    assert place_for(SimpleNamespace(display_pub=object(), kernel=object()), "rich") is None


def test_a_publisher_that_fails_at_the_end_costs_nothing_but_the_place():
    """What cannot be emptied stays, nothing is raised, and the session is as it was."""
    publisher = Publisher()
    display = begun(LiveDisplay(publisher))
    display.show(standing())
    display._publish = None
    ended(display)
    assert "send" not in vars(publisher.session)


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
