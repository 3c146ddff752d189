"""Where blocks and segments are: from one event to the next, and back."""

import pytest

from ipygpulogger.allocator.caching_allocator import Layout, Settings, blocks_of, live, undone

MB = 2**20
A, B = 1 << 40, (1 << 40) + 64 * MB
STACK = [{"filename": "train.py", "line": 1, "name": "step"}]


def segment(address, size_mb, *blocks):
    return {"address": address, "total_size": size_mb * MB, "blocks": list(blocks)}


def block(address, size_mb, state="active_allocated"):
    return {"address": address, "size": size_mb * MB, "state": state}


def event(action, address, size_mb):
    return {"action": action, "addr": address, "size": size_mb * MB, "frames": STACK}


def sizes(layout, *addresses, requested_mb=2):
    return [layout.size_bytes(address, requested_mb * MB) / MB for address in addresses]


@pytest.fixture
def layout():
    """Two segments of 3 MB, of which only the second has a block, behind the first 2.5 MB."""
    return Layout([segment(A, 3), segment(B, 3)], [B + 5 * MB // 2], Settings())


def test_a_block_reaches_to_the_next_one_or_to_the_end_of_its_segment(layout):
    assert sizes(layout, A, B) == [3, 2.5]
    assert sizes(layout, A - MB, A + 4 * MB) == [2, 2]  # in no segment that is known
    assert layout.occupy(B, 2 * MB - 1) == 5 * MB // 2
    assert layout.occupy(A, 1 * MB) == 1 * MB
    assert sizes(layout, A) == [3]  # the small pool's blocks are in segments of their own


def test_blocks_and_segments_that_go(layout):
    layout.follow(event("free_completed", B + 2 * MB, 1))  # of the small pool, which is not followed
    assert sizes(layout, B) == [2.5]
    layout.follow(event("free_completed", B + 5 * MB // 2, 1))
    assert sizes(layout, B) == [3]
    layout.follow(event("segment_alloc", B + 3 * MB, 3))
    layout.follow(event("segment_free", B, 3))
    layout.follow(event("segment_free", B, 3))
    assert sizes(layout, B, B + 3 * MB) == [2, 3]
    layout.follow(event("segment_map", B + 3 * MB, 3))  # of a segment that is there
    layout.follow({"action": "oom", "size": 9 * MB})
    assert sizes(layout, A, B, B + 3 * MB) == [3, 2, 3]
    layout.follow(event("segment_alloc", B, 4))  # elsewhere, later
    assert sizes(layout, B) == [2]


def test_blocks_of_segments():
    """Those that wait for a stream are in use, and not live."""
    places = (A, A + MB, A + 2 * MB, A + 4 * MB)
    how = [(1, "active_allocated"), (1, "inactive"), (2, "active_awaiting_free"), (3, "active_allocated")]
    parts = [block(at, *one) for at, one in zip(places, how, strict=True)]
    found = blocks_of([segment(A, 20, *parts), segment(B, 3, block(B + MB, 2))])
    assert sorted(found) == [A, A + 2 * MB, A + 4 * MB, B + MB]
    assert sorted(live(found)) == [A, A + 4 * MB, B + MB]


def test_undone():
    """Blocks that came go, those that went come back, as large as their segment makes them."""
    events = [
        event("free_requested", A, 2),
        event("free_completed", A, 2),
        event("free_completed", B + 8 * MB, 4),
        event("segment_free", A, 3),
        event("segment_alloc", B + 32 * MB, 20),
        event("alloc", B + 32 * MB, 5),
        event("free_requested", B + 32 * MB, 5),
        {"action": "oom", "size": 9 * MB},
        {"action": "snapshot", "addr": 0, "size": 0},
    ]
    after = [
        segment(B, 20, block(B, 2)),
        segment(B + 32 * MB, 20, block(B + 32 * MB, 5, "active_awaiting_free")),
    ]
    blocks, segments = undone(events, after, Settings())
    assert {address: one["size"] // MB for address, one in blocks.items()} == {A: 3, B: 2, B + 8 * MB: 4}
    assert sorted(live(blocks)) == [A, B]
    assert {one["address"]: one["total_size"] // MB for one in segments} == {A: 3, B: 20}
