"""The calls that led to a row of the table at the peak, as HTML: nested lists, drawn as boxes."""

import re
from dataclasses import replace
from html.parser import HTMLParser

from hypothesis import given, settings
from made import of_class

from ipygpulogger import AtPeak
from ipygpulogger.records.explained import CallStack
from ipygpulogger.render import at_peak

MB = 1 << 20
STEP = "In [7]:3", "train.py:41 step"
CHAIN = CallStack(64 * MB, (*STEP, "model.py:9 forward", "model.py:30 attend"), 12)
ROW = AtPeak("cuda:0", "activations", "y = q @ k", "In [7]:3 → attend, model.py:30", 64 * MB, 8, (CHAIN,))
FORKED = (
    CallStack(40 * MB, (*STEP, "model.py:9 forward"), 3),
    CallStack(20 * MB, (*STEP, "model.py:12 forward"), 0),
    CallStack(4 * MB),
)


class Outline(HTMLParser):
    """The lists of a markup, as a screen reader finds them: (depth, words) of each item."""

    def __init__(self, markup):
        super().__init__()
        self.depth, self.items, self.titles, self.widths, self.folds = 0, [], [], [], 0
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.depth += tag == "ul"
        self.folds += tag == "details"
        if tag == "li":
            self.items.append((self.depth, ""))
        self.titles += [value for name, value in attrs if name == "title"]
        style = dict(attrs).get("style", "")
        self.widths += re.findall(r"(?<![\w-])width:([\d.e+-]+)%", style) if tag == "ul" else []

    def handle_endtag(self, tag):
        self.depth -= tag == "ul"
        assert self.depth >= 0

    def handle_data(self, data):
        if self.depth:
            depth, words = self.items[-1]
            self.items[-1] = depth, words + data


def outline(*rows):
    return Outline(at_peak.html(rows, ()))


def test_a_row_unfolds_into_the_calls_that_led_there():
    """A list of them in their order, with how many frames of libraries are left out."""
    found = outline(ROW)
    assert found.folds == 1
    assert found.items == [(1, words) for words in (*CHAIN.frames, "+ 12 library frames")]
    assert found.widths == found.titles == []


def test_calls_that_differ_are_side_by_side():
    """Below what they have in common, each as wide as its share, with its size; the whole line is its title."""
    found = outline(replace(ROW, stacks=FORKED))
    assert [depth for depth, _ in found.items] == [1, 1, 2, 2, 2, 1]
    assert found.titles[2:] == [
        "40 MB model.py:9 forward",
        "+ 3 library frames",
        "20 MB model.py:12 forward",
        "4 MB others",
    ]
    assert [float(width) for width in found.widths] == [93.8, 66.7, 33.3, 6.25]
    assert "40 MB model.py:9 forward" in [words for _, words in found.items]


def test_a_row_without_more_to_say_does_not_unfold():
    """Its place says the same, or there is nothing: names begin where they did."""
    one, two = (CallStack(64 * MB, CHAIN.frames[:count], 5) for count in (1, 2))
    rows = replace(ROW, stacks=()), replace(ROW, place="In [7]:3", stacks=(one,)), replace(ROW, stacks=(two,))
    assert outline(*rows).folds == 0
    assert at_peak.html(rows, ()) == at_peak.html([replace(row, stacks=()) for row in rows], ())
    assert outline(*rows, ROW).folds == 1
    assert at_peak.text((ROW,), ()) == at_peak.text((replace(ROW, stacks=()),), ())


def test_a_table_stays_small():
    """However many rows unfold: less than 6 KB more, the largest rows first."""
    rows = [
        replace(ROW, size_bytes=(90 - n) * MB, stacks=(replace(CHAIN, size_bytes=(90 - n) * MB),))
        for n in range(60)
    ]
    without = at_peak.html([replace(row, stacks=()) for row in rows], ())
    found = at_peak.html(rows, ())
    assert 9 <= Outline(found).folds < 20
    assert len(found.encode()) - len(without.encode()) < 6000
    assert found.rindex("<details") < found.index("<td style=padding:0>71<")


@given(of_class(AtPeak))
@settings(max_examples=60)
def test_any_calls_are_drawn(row):
    """Nothing of a name or a line is markup; the lists are closed; no box is wider than what it is in."""
    markup = at_peak.html((row,), ())
    markup.encode()
    found = Outline(markup)
    assert found.depth == 0
    tags = set(re.findall(r"<([a-z]+)", markup))
    assert tags <= {
        "div",
        "b",
        "table",
        "caption",
        "tfoot",
        "tr",
        "th",
        "td",
        "details",
        "summary",
        "ul",
        "li",
    }
