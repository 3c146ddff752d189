"""The plot in characters: within 80 columns, as high as the figures, every cell where its time is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plotted import cell, gpu, peak

from ipygpulogger.render.plot_data import drawing

SIZES = st.integers(0, 5000)


def body(lines, panel=0):
    """The six lines of a panel, without the sizes on their left."""
    begin = 1 + 7 * panel
    return [line[9:].ljust(71) for line in lines[begin : begin + 6]]


@given(
    st.lists(st.tuples(st.floats(0, 90), SIZES, SIZES, SIZES, st.sampled_from(["ok", "error"])), min_size=1),
    st.integers(0, 3),
)
@settings(deadline=None)
def test_any_run_is_drawn_within_80_columns(cells, devices):
    """A title and six lines for each memory; the highest reaches the top, and nothing is drawn above it."""
    found, at_s = [], 0.0
    for number, (time_s, before, after, more, status) in enumerate(cells, 1):
        gpus = [gpu(before, after, max(before, after) + more, index) for index in range(devices)]
        found.append(
            cell(number, at_s, time_s, before, after, max(before, after) + more, gpus=gpus, status=status)
        )
        at_s += time_s
    lines = drawing(found).split("\n")
    assert len(lines) == 7 * (1 + devices) + 3
    assert max(map(len, lines)) <= 80
    highest = max(max(before, after) + more for _, before, after, more, _ in cells)
    for panel in range(1 + devices):
        top = body(lines, panel)[0]
        assert bool(top.strip()) == (highest > 0)
        assert set(top) <= set(" ▁▂▃▄▅▆▇█░")


def test_heights_and_places():
    """Two cells of equal time: a half of what is highest is three lines high, and what was for a moment is light."""
    lines = drawing([cell(1, 0, 5, 300, 300), cell(2, 5, 5, 300, 300, 600)]).split("\n")
    assert lines[0] == "RAM of this process, highest 600 MB, raised by In [2]"
    assert lines[1].startswith("  600 MB ")
    assert lines[6].startswith("       0 ")
    high, low = body(lines)[:3], body(lines)[3:]
    assert {line[:35].strip() for line in high} == {""}
    assert {line[36:] for line in high} == {"░" * 35}
    assert set(low) == {"█" * 71}
    assert lines[7].split() == ["1", "2"]
    assert lines[7].index("1") == pytest.approx(9 + 18, abs=2)
    assert lines[7].index("2") == pytest.approx(9 + 53, abs=2)
    assert lines[8].split() == ["0", "10.0", "s"]
    assert lines[9].split() == ["█", "in", "use", "░", "highest", "of", "the", "cell"]


def test_what_it_does_not_know_it_does_not_draw():
    """A device without attributed use has what all processes used; a failed cell is marked; nothing is an error."""
    unknown = gpu(0, 0, 0, attributed=False, used_bytes=900 << 20)
    lines = drawing([cell(1, 0, 1, 10, 10, peak(20, "sampled"), gpus=[unknown], status="error")]).split("\n")
    assert lines[0].endswith("highest at least 20 MB, raised by In [1]")
    assert lines[7] == "GPU: Sim"
    assert lines[8].startswith("  900 MB ")
    assert "1✕" in lines[14]
    with pytest.raises(ValueError, match="nothing to plot"):
        drawing([])
