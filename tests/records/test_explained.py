"""Many rows of what was alive at the peak, in few."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ipygpulogger import AtPeak
from ipygpulogger.records.explained import OTHERS, folded

ROWS = st.builds(
    AtPeak,
    device=st.sampled_from(["cuda:1", "cuda:0"]),
    kind=st.sampled_from(["variables", "temporaries"]),
    name=st.sampled_from(["x", "y", "z", OTHERS]),
    place=st.sampled_from(["", "a.py:1", "a.py:2"]),
    size_bytes=st.integers(1, 99),
    blocks=st.integers(1, 3),
)


def sums(rows):
    """Bytes and blocks of each device and kind."""
    sizes, blocks = Counter(), Counter()
    for row in rows:
        sizes[row.device, row.kind] += row.size_bytes
        blocks[row.device, row.kind] += row.blocks
    return sizes, blocks


@given(st.lists(ROWS, max_size=12, unique_by=lambda row: row.size_bytes), st.integers(1, 4))
def test_folded(rows, most):
    """Nothing is lost; the largest stay as they are, of the rest one row for each device and kind."""
    found = folded(rows, most)
    assert sums(found) == sums(rows)
    single = sorted((row.size_bytes for row in rows if not row.is_sum), reverse=True)
    if len(single) <= most:
        assert found == tuple(rows)
        return
    stay = [row for row in rows if not row.is_sum and row.size_bytes in single[:most]]
    for device in dict.fromkeys(row.device for row in rows):
        own = [row for row in found if row.device == device]
        count = sum(row.device == device for row in stay)
        assert own[:count] == [row for row in stay if row.device == device]
        rest = [row.size_bytes for row in own[count:]]
        assert rest == sorted(rest, reverse=True)
        assert len(rest) == len({row.kind for row in own[count:]})
    for made in {*found} - {*rows}:
        gone = [row for row in rows if (row.device, row.kind) == (made.device, made.kind) and row not in stay]
        assert made.is_sum
        assert len(gone) > 1, "one stays as it is"
