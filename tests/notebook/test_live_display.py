"""A running cell in a notebook: one display, rewritten, whatever else is sent and cleared meanwhile."""

import sys
import weakref
from types import SimpleNamespace

import pytest
from places import Publisher, begun, here, in_a_thread, standing

from ipygpulogger.notebook.live import LiveDisplay, display_for
from ipygpulogger.records import MIME
from ipygpulogger.render import html, text

EMPTY = {"text/html": ""}
EARLIER = {"msg_id": "earlier"}  # a cell before ours, of which a task or a thread goes on


class Cell:
    """A cell with its display; each method is a step of what may happen within it, or after it.

    Attributes:
        publisher: The kernel's.
        display: Of the cell.
    """

    def __init__(self, where=here):
        self.publisher, self.where = Publisher(), where
        self.display, self.time_s = begun(LiveDisplay(self.publisher)), 2.0

    def play(self, steps):
        """Take the steps; a step with a colon prints what is behind it."""
        for step in steps.split(" | "):
            name, colon, printed = step.partition(":")
            if colon:
                parent = EARLIER if name == "earlier" else None
                printed = printed.encode().decode("unicode_escape")
                self.where(self.publisher.send, "stream", {"name": "stdout", "text": printed}, parent)
            else:
                getattr(self, name)()
        return self

    def show(self):
        self.display.show(standing(self.time_s))
        self.time_s += 1

    def end(self):
        self.display.end()

    def drop(self):
        self.display.clear()

    def over(self):
        self.end(), self.drop()

    def clear(self):
        self.where(self.publisher.clear_output)

    def clear_later(self):
        self.where(self.publisher.clear_output, wait=True)

    def earlier_clears(self):
        self.publisher.send("clear_output", {"wait": False}, parent=EARLIER)

    def earlier_clears_later(self):
        self.publisher.send("clear_output", {"wait": True}, parent=EARLIER)

    def output(self):
        self.publisher.send("display_data", {"data": {"x": "y"}, "metadata": {}, "transient": {}})

    def hook(self):
        self.publisher.threads.hooks = [lambda _: None]

    def unhook(self):
        self.publisher.threads.hooks = []

    def widget(self, msg_id="ours", **more):
        """An ipywidgets.Output takes the output of the cell, or with another id lets go of it."""
        data = {"method": "update", "state": {"msg_id": msg_id, **more}}
        self.publisher.session.send("socket", "comm_msg", {"comm_id": "widget", "data": data}, parent={})

    def widget_shows(self):
        self.widget(outputs=[])

    def unwidget(self):
        self.widget("")

    @property
    def sent(self):
        """What the front end got, a word each: our display, its updates, and whatever else."""
        names = {"display_data": "ours", "update_display_data": "update", "clear_output": "cleared"}
        found = []
        for message in self.publisher.session.messages:
            kind, content = (
                (message["msg_type"], message["content"]) if isinstance(message, dict) else ("", {})
            )
            if kind == "display_data" and not content["transient"]:
                kind = "output"
            found.append("emptied" if content.get("data") == EMPTY else names.get(kind, kind))
        return " ".join(word for word in found if word)


STORIES = {  # what happens, and what the front end gets
    "a display, updates of it, and at the end nothing in it": (
        "show | show | show | end | show | drop | drop | show", "ours update update emptied"),
    "what was never shown is not emptied": ("over", ""),
    # a cell that clears its output is shown no longer
    "cleared before": ("clear | show | over", "cleared"),
    "cleared after one": ("show | clear | show | over", "ours cleared"),
    "cleared after two": ("show | show | clear | show | over", "ours update cleared"),
    "cleared between the end and the report": ("show | end | clear | drop", "ours cleared"),
    # no line is cut in two
    "a whole line": ("print:a\\n | show", "stream ours"),
    "half a line": ("print:a | show | output | show | over", "stream output ours emptied"),
    "half a line, and its end": ("print:a | print:b\\n | show", "stream stream ours"),
    "a line, and half a line": ("print:a\\n | print:b | show", "stream stream"),
    "a bar of progress": ("print:\\r10% | show", "stream"),
    "a bar that returns": ("print:10%\\r | show", "stream"),
    "a bar that is full": ("print:\\r10% | print:\\r100%\\n | show", "stream stream ours"),
    "an update stands above the line": ("show | print:half | show | over", "ours stream update emptied"),
    "a line of another cell": ("earlier:. | show", "stream ours"),
    # what others clear is not ours
    "a hook takes a clear": ("show | hook | clear | unhook | show | over", "ours update emptied"),
    "a hook takes a later clear": ("show | hook | clear_later | unhook | show | over", "ours update emptied"),
    "a widget is cleared": (
        "show | widget | clear | print:x | unwidget | show | over", "ours cleared stream update emptied"),
    "a widget is cleared later": (
        "show | widget | clear_later | print:x | unwidget | show | over",
        "ours cleared stream update emptied"),
    "an earlier cell is cleared": (
        "show | earlier_clears | earlier:x | show | over", "ours cleared stream update emptied"),
    "an earlier cell is cleared later": (
        "show | earlier_clears_later | earlier:x | show | over", "ours cleared stream update emptied"),
    "nothing is shown into a widget": (
        "widget | show | widget_shows | show | unwidget | show", "ours"),
    "no update into a widget": ("show | widget | over", "ours"),
    # a clear that waits is not set off by us, but by the cell's next output
    "the last call": ("clear_later | show | over", ""),
    "the last call, twice": ("show | clear_later | clear_later | show | over", "ours emptied"),
    "the next output": ("show | clear_later | print:x\\n | print:y\\n | show | over", "ours cleared stream stream"),
    "the next display": ("show | clear_later | output | output | show | over", "ours cleared output output"),
    "a clear at once replaces it": ("clear_later | clear | print:x | over", "cleared stream"),
    "a cell that goes on": ("show | clear_later | drop", "ours emptied cleared"),
    "after the end": ("end | clear_later | drop", "cleared"),
}  # fmt: skip


@pytest.mark.parametrize("where", [here, in_a_thread])
@pytest.mark.parametrize("story", STORIES)
def test_what_the_front_end_gets(story, where):
    """Whichever thread prints and clears; a hook is the thread's own. All of ours is under one id."""
    steps, expected = STORIES[story]
    cell = Cell(here if "hook" in story else where).play(steps)
    assert cell.sent == expected
    assert len({name for _, name, data in cell.publisher.sent if data != {"x": "y"}}) <= 1
    if steps.endswith(("over", "drop")):
        assert "send" not in vars(cell.publisher.session)


def test_the_figures_are_those_of_the_moment():
    """As text and as HTML; only the report carries the record, so that a saved notebook never holds half a one."""
    cell = Cell().play("show | show")
    for (_, _, bundle), at in zip(cell.publisher.sent, (standing(2.0), standing(3.0)), strict=True):
        assert bundle == {"text/plain": text.so_far(at), "text/html": html.so_far(at)}
        assert MIME not in bundle


def test_words_that_are_not_sent_yet_clear_too(monkeypatch):
    """Printed after clear_output(wait=True) and still in a buffer: they are sent first, behind the clear."""
    cell = Cell().play("clear_later")
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(flush=lambda: cell.play("print:x")))
    cell.end()
    monkeypatch.undo()
    cell.drop()
    assert cell.sent == "cleared stream"


@pytest.mark.parametrize("publisher", [SimpleNamespace(session=None, parent_header={}), object()])
def test_a_kernel_whose_messages_cannot_be_seen_is_not_live(publisher):
    """A report that might get lost is not risked."""
    assert display_for(SimpleNamespace(display_pub=publisher, kernel=object()), "rich") is None


def test_a_publisher_that_fails():
    """Once: what was not sent has no id to update. At the end: what cannot be emptied stays, nothing is raised."""
    cell = Cell()
    publish, cell.display._publish = cell.display._publish, None
    with pytest.raises(TypeError):
        cell.show()
    cell.display._publish = publish
    cell.show()
    cell.display._publish = None
    cell.over()
    assert cell.sent == "ours"
    assert "send" not in vars(cell.publisher.session)


@pytest.mark.parametrize("odd", [None, 7, {}, {"msg_type": "clear_output"}, "comm_msg"])
def test_odd_messages_are_sent_as_ever(odd):
    """Whatever somebody sends, it goes out; a method that others put in our place since stays."""
    cell = Cell()
    cell.publisher.session.send("socket", odd)
    assert cell.publisher.session.messages.pop() is odd
    assert cell.play("show").sent == "ours"
    cell.publisher.session.send = theirs = lambda *_, **__: None
    cell.over()
    assert cell.publisher.session.send is theirs


def test_what_others_put_in_place_of_the_sessions_method_is_called_and_stays():
    """Another tool may follow what is sent: the live line is there, and the clear at a cell's end still waits."""
    publisher, seen = Publisher(), []
    send = publisher.session.send
    publisher.session.send = theirs = lambda *words, **named: (seen.append(words), send(*words, **named))[1]
    display = begun(display_for(SimpleNamespace(display_pub=publisher, kernel=object()), "rich"))
    assert display.show(standing(2.0))
    assert seen
    display.end(), display.clear()
    assert publisher.session.send is theirs


def test_of_two_displays_the_first_is_live():
    """Of two loggers, or of two cells at once: the second has none, until the first is over."""
    publisher = Publisher()
    shell = SimpleNamespace(display_pub=publisher, kernel=object())
    first, late = display_for(shell, "rich"), display_for(shell, "rich")  # two threads at the same moment
    begun(first), begun(late)
    assert display_for(shell, "rich") is None
    assert first.show(standing(2.0)) and not late.show(standing(2.0))
    late.end(), late.clear()
    assert first.show(standing(3.0))
    first.end(), first.clear()
    assert display_for(shell, "rich") is not None
    known = weakref.ref(first)
    del first
    assert known() is None  # with the cell's context, which has values of the user's
