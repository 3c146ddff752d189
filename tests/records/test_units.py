"""Sizes and times as people read them."""

import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ipygpulogger.records.units import MB, MINUS, parse_size, size_text, time_text, without_controls

POWERS = {"MB": 0, "GB": 10, "TB": 20, "PB": 30, "EB": 40}
EDGES = [
    sign * (1000 * MB << power) + off for power in POWERS.values() for sign in (-1, 1) for off in (-1, 0, 1)
]
NEAR = st.sampled_from(EDGES).flatmap(
    lambda edge: st.integers(edge - abs(edge) // 500, edge + abs(edge) // 500)
)


@given(st.integers(-(10**21), 10**21) | NEAR)
@example(1000 * MB)
def test_a_size(size_bytes):
    """Three figures before the point at most, and off by half of the last one; megabytes whole."""
    figure, unit = size_text(size_bytes).replace(MINUS, "-").split()
    assert (unit == "MB") == ("." not in figure) == (abs(round(size_bytes / MB)) < 1000)
    assert abs(float(figure)) < 1000 or unit == "EB"
    assert unit == "MB" or abs(float(figure)) >= 0.95
    half = 0.5 if unit == "MB" else 0.05
    assert abs(float(figure) - size_bytes / (MB << POWERS[unit])) <= half + 1e-9


@given(st.floats(0, 1e6) | st.sampled_from([10, 100, 3600]).flatmap(lambda s: st.floats(s - 1, s + 1)))
def test_a_time(time_s):
    """Of the largest unit at least one, of the next fewer than would make one, and nothing is lost."""
    text = time_text(time_s)
    parts = [(float(number), unit) for number, unit in re.findall(r"([\d.]+) (h|min|s)\b", text)]
    shown_s = sum(number * {"h": 3600, "min": 60, "s": 1}[unit] for number, unit in parts)
    units = [unit for _, unit in parts]
    finest_s = {"s": 10.0 ** -len(text.split()[0].partition(".")[2]), "min s": 1, "h min": 60}[
        " ".join(units)
    ]
    assert (
        abs(shown_s - time_s)
        <= (finest_s if units[0] == "h" else finest_s / 2) + 0.5 * (units[0] == "h") + 1e-9
    )
    assert units == ["s"] or (parts[0][0] >= 1 and parts[1][0] < 60)
    assert (units == ["s"]) == (round(time_s, 1) < 100)
    assert units[0] != "min" or parts[0][0] < 60


@pytest.mark.parametrize(
    ("text", "fault"), [("12", "has no unit"), ("a lot", "is not a memory size"), ("", "is not")]
)
def test_what_is_no_size(text, fault):
    """The sentence says what is missing."""
    with pytest.raises(ValueError, match=fault):
        parse_size(text)


def test_no_character_that_turns_the_text():
    """In HTML neither a control, nor what changes the direction of writing, nor half a character."""
    markup = without_controls("".join(map(chr, (*range(0x3000), *range(0xD800, 0xE000)))))
    turns = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert not [c for c in markup if unicodedata.bidirectional(c) in turns or c in "\u061c\u200e\u200f"]
    assert {c for c in markup if unicodedata.category(c) in ("Cc", "Cs")} == set("\t\n\r")
    assert {"ä", "ß"} <= set(markup)
