"""The replay on events made by hand where some are lost, late or in disorder; else `test_replayed_programs`."""

import pytest

from ipygpulogger.allocator.replay import Replay
from ipygpulogger.allocator.rules import Settings, block_bytes, round_bytes, segment_bytes
from ipygpulogger.sources.torch.history import DeviceHistory
from ipygpulogger.sources.torch.snapshot import AllocatorState, Position

KB, MB = 2**10, 2**20
BASE = 1 << 40  # the address of the first segment


def block(address, size_bytes, state="active_allocated"):
    return {"address": address, "size": size_bytes, "requested_size": size_bytes, "state": state}


def segment(address, size_bytes, *blocks):
    return {"device": 0, "address": address, "total_size": size_bytes, "blocks": list(blocks)}


def event(action, address=0, size_bytes=0, frames=()):
    return {"action": action, "addr": address, "size": size_bytes, "frames": frames, "time_us": next(TIMES)}


TIMES = iter(range(10**9))


def free(address, size_bytes):
    return [event("free_requested", address, size_bytes), event("free_completed", address, size_bytes)]


def position(segments, allocated):
    """Where an allocator with these segments stands."""
    sizes = [one["size"] for part in segments for one in part["blocks"] if one["state"] == "active_allocated"]
    return Position(allocated, len(sizes), sum(sizes))


def stand(segments, allocated):
    return AllocatorState(segments, position(segments, allocated), position(segments, allocated))


def replayed(events, end, *, begin=None, count=None, since=None, until=None, settings=None, **options):
    """The replay of events after which the segments are `end`.

    Of a device that is new if `begin` is None; `since` and `until` are numbers of allocations, and bytes.
    """
    allocations = sum(one["action"] == "alloc" for one in events)
    count = allocations if count is None else count
    first = position(begin or [], count - allocations)
    stood = None if begin is None else stand(begin, first.allocated)
    history = DeviceHistory(
        0, events if begin is None else [event("snapshot"), *events], stood, stand(end, count), settings or {}
    )
    since = Position(since[0], 0, *since[1:]) if since else first
    return Replay(
        history, since, Position(until[0], 0, *until[1:]) if until else history.end.after, **options
    )


def found(moment):
    return [(one.address - BASE, one.size_bytes, one.count) for one in moment.blocks]


def test_events_that_are_lost():
    """What the first event left is found from what is there after the last, and what was freed meanwhile."""
    events = [
        *free(BASE, 2 * MB + 1),
        event("alloc", BASE + 9 * MB, 9 * MB),
        event("segment_free", BASE + 64 * MB, 2 * MB),
        event("free_requested", BASE + 9 * MB, 9 * MB),
    ]
    end = [
        segment(
            BASE,
            20 * MB,
            block(BASE + 3 * MB, 6 * MB),
            block(BASE + 9 * MB, 11 * MB - 512 * KB, "active_awaiting_free"),
        )
    ]
    replay = replayed(events, end, count=1000)
    assert (replay.first_count, replay.whole, replay.agrees) == (999, False, True)
    moment = replay.highest()
    assert moment.size_bytes == 15 * MB
    # The freed block reached up to the next one.
    assert replayed(events, end, count=1000, since=(999, 9 * MB)).highest().size_bytes == 15 * MB
    assert found(moment) == [(3 * MB, 6 * MB, 0), (9 * MB, 9 * MB, 1000)]
    assert moment.blocks[0].before
    assert not moment.blocks[1].before


def test_the_highest_moment_after_lost_events():
    """What came before the events is left out; of several moments the first is the peak."""
    events = [
        ONE,
        *free(BASE + 4 * MB, 5 * MB),
        TWO,
        *free(BASE + 9 * MB, 5 * MB),
        event("alloc", BASE, 1 * MB),
    ]
    replay = replayed(events, [segment(BASE, 20 * MB, block(BASE, 1 * MB))], count=9, since=(5, 5 * MB))
    assert (replay.agrees, replay.missing, replay.first_count) == (True, 1, 6)
    assert (found(replay.highest()), replay.highest().count) == ([(4 * MB, 5 * MB, 7)], 7)
    assert replay.highest(most_bytes=0).count == 6
    assert replay.highest(most_bytes=0).time_us == ONE["time_us"]
    assert replay.highest(most_bytes=-1).count == 6  # never


def test_which_blocks_were_there_before_events_were_lost():
    """One that may have been freed, and another put at its address, is not said to have been there before."""
    stack = [{"filename": "train.py", "line": 1, "name": "step"}]
    held = block(BASE, 1 * MB)
    begin = stand([segment(BASE, 20 * MB, held, block(BASE + 1 * MB, 2 * MB))], 10)

    def before(end, lost, *, frames=stack, ours=True, moved=(0, 0), **options):
        count = 10 + lost + 2
        events = [event("alloc", BASE + at * MB, 2 * MB, some) for at, some in ((9, frames), (12, stack))]
        new = [block(BASE + at * MB, 2 * MB) for at in (9, 12)]
        now = stand([segment(BASE, 20 * MB, *end, *new)], count)
        first, last = (
            one._replace(after=one.after._replace(allocated=one.after.allocated + more))
            for one, more in zip((begin, now), moved, strict=True)
        )
        history = DeviceHistory(0, events, first, last, {}, ours)
        replay = Replay(history, begin.before, now.before, **options)
        moment = replay.highest()
        assert [one.frames for one in moment.blocks if one.count > count - 2] == [frames, stack]
        assert not replay.whole
        assert all(one.before + one.lost + (one.count > count - 2) == 1 for one in moment.blocks)
        return [one.address - BASE for one in moment.blocks if one.before]

    same = [held, block(BASE + 1 * MB, 2 * MB)]
    again = [held, {**same[1], "frames": stack}]
    more = block(BASE + 5 * MB, 2 * MB)
    assert before([*same, more], 1, stacks=False) == [0, 1 * MB]  # nothing can have been freed
    assert before([*same, more], 1, moved=(1, 0)) == before([*same, more], 1, moved=(0, 1)) == []
    assert before(same, 1) == before(same, 1, stacks=True, ours=False) == []
    assert before(same, 1, stacks=True) == [0, 1 * MB]
    assert before(same, 1, stacks=True, frames=()) == []
    assert before(again, 1, stacks=True) == [0]
    assert before([held, block(BASE + 1 * MB, 3 * MB)], 1, stacks=True) == [0]


HELD = block(BASE, 4 * MB)
ONE, TWO = (event("alloc", BASE + n * MB, 5 * MB) for n in (4, 9))


@pytest.mark.parametrize(
    "events",
    [
        [event("alloc", BASE, 4 * MB), *free(BASE + 4 * MB, 5 * MB), TWO],  # where there is a block
        [ONE, *free(BASE + 4 * MB, 5 * MB), TWO],  # not what is there in the end
        [ONE, event("alloc", BASE + 9 * MB, 6 * MB)],  # another size
    ],
)
def test_events_that_do_not_agree(events):
    """With each other, or with what there is: then the table is not shown."""
    end = [segment(BASE, 20 * MB, HELD, block(BASE + 4 * MB, 5 * MB), block(BASE + 9 * MB, 5 * MB))]
    begin = [segment(BASE, 20 * MB, HELD)]
    assert replayed([ONE, TWO], end, begin=begin, count=9).agrees
    assert not replayed([ONE, TWO], end, begin=begin, count=9, since=(7, 5 * MB)).agrees
    assert not replayed([ONE, TWO], end, begin=begin, count=9, until=(9, 5 * MB)).agrees
    assert replayed([ONE, TWO], end, count=9, since=(7, 5 * MB)).agrees  # frees may be lost
    assert not replayed([ONE, TWO], end, count=9, since=(8, 5 * MB)).agrees
    assert not replayed(events, end, begin=begin, count=9).agrees


def test_events_out_of_order():
    """torch turns a ring that the user enlarged the wrong way round; our own is never enlarged."""
    early, *events = event("snapshot"), event("alloc", BASE, 4 * MB), event("alloc", BASE + 4 * MB, 5 * MB)
    end = stand([segment(BASE, 20 * MB, HELD, block(BASE + 4 * MB, 5 * MB))], 2)
    for some, ours, agrees in [
        (events, False, True),
        (events[::-1], False, False),
        (events[::-1], True, True),
        ([*events, early], False, False),
    ]:
        history = DeviceHistory(0, some, None, end, {}, ours)
        assert Replay(history, Position(), end.after).agrees == agrees
    same = [events[0], {**events[1], "time_us": events[0]["time_us"]}]
    assert Replay(DeviceHistory(0, same, None, end, {}, False), Position(), end.after).agrees


def test_other_threads_allocate_meanwhile():
    """Of the numbers that are possible, the one with which the measurement begins and ends where it did."""
    begin, events = [segment(BASE, 20 * MB, HELD)], [event("snapshot"), ONE, TWO]
    end = [segment(BASE, 20 * MB, HELD, block(BASE + 4 * MB, 5 * MB))]
    for first, most, found in [(5, 8, 6), (6, 6, 6), (7, 9, None), (2, 5, None)]:
        looked = AllocatorState(begin, Position(first, 1, 4 * MB), Position(most, 1, 4 * MB))
        after = AllocatorState(end, Position(first + 2, 2, 9 * MB), Position(most + 2, 2, 9 * MB))
        history = DeviceHistory(0, events, looked, after, {})
        replay = Replay(history, Position(7, 2, 9 * MB), Position(8, 3, 14 * MB))
        assert replay.agrees == (
            found is not None and first != most
        )  # without an allocation, TWO is at the end
        assert replay.first_count == (found or first)
        if found:
            assert [one.count for one in replay.highest().blocks] == [0, 7, 8]
            assert replay.highest(most_bytes=13 * MB).size_bytes == 9 * MB
            assert replay.highest(most_bytes=14 * MB).size_bytes == 14 * MB
    looked = AllocatorState(begin, Position(5, 1, 4 * MB), Position(6, 1, 4 * MB))
    later = AllocatorState(end, Position(7, 2, 9 * MB), Position(8, 2, 9 * MB))
    for extra, agrees in [([], True), (free(BASE + 15 * MB, 2 * MB), False)]:
        history = DeviceHistory(0, [event("snapshot"), *extra, ONE, TWO], looked, later, {})
        assert Replay(history, Position(5, 1, 4 * MB), Position(7, 3, 14 * MB)).agrees == agrees


def test_no_events():
    """In a recording of mode "state" torch keeps the last one, which is no history."""
    assert replayed([ONE], [segment(BASE, 20 * MB, block(BASE + 4 * MB, 5 * MB))], count=5).events == 0
    end = [segment(BASE, 20 * MB, block(BASE + 4 * MB, 5 * MB), block(BASE + 9 * MB, 5 * MB))]
    assert replayed([ONE, TWO], end, count=5).events == replayed([ONE, TWO], end, begin=[]).events == 2
    assert replayed([], [], count=5).events == 0


def test_where_an_allocation_failed():
    """The last failure within the measurement, with what was alive and what was asked for."""
    events = [
        event("segment_alloc", BASE, 2 * MB),
        event("alloc", BASE, 1 * MB),
        event("oom", 0, 8 << 30),
        *free(BASE, 1 * MB),
        event("alloc", BASE, 1000),
        event("oom", 0, 9 << 30),
        event("alloc", BASE + 1 * KB, 500),
    ]
    end = [segment(BASE, 2 * MB, block(BASE, 1 * KB), block(BASE + 1 * KB, 512))]
    whole = (3, 1536, 2)
    failed = replayed(events, end, until=whole).failure()
    assert (failed.size_bytes, failed.requested_bytes, failed.count) == (1 * KB, 9 << 30, 2)
    assert replayed(events, end, until=(1, 0, 1)).failure().requested_bytes == 8 << 30
    assert replayed(events, end, since=(3, 1536, 2), until=whole).failure() is None
    assert replayed(events, end, since=(2, 1 * KB, 2), until=whole).failure() is None  # it came just before
    assert replayed(events, end, since=(2, 1 * KB, 1), until=whole).failure().count == 2
    assert replayed(events, end, until=(3, 1536, 3)).failure() is None  # one is lost, perhaps the last


DIVIDED = {"1": 0, "2": 4, "4": 4, "8": 0}
FINE = {str(1 << i): i // 15 * 8 for i in range(16)}


@pytest.mark.parametrize(
    ("requested", "divisions", "expected"),
    [
        *[(size, {}, 512) for size in (0, 1, 511, 512)],
        *[(513, {}, 1024), (MB - 1, {}, MB), (MB + 1, {}, MB + 512), (10 * MB - 513, {}, 10 * MB - 512)],
        *[(5 * MB, DIVIDED, 5 * MB), (5 * MB + 1, DIVIDED, 6 * MB), (9 * MB + 1, DIVIDED, 9 * MB + 512)],
        *[(1025, {"1": 4}, 1536), (2049, {"1": 4}, 2560), (2048 + 513, {"1": 2}, 3072)],
        *[(4097, {"1": 2}, 6144), (5 * MB + 1, {"1": 4}, 6 * MB), (100_000, {"1": 4, "2": 0}, 7 << 14)],
        *[(100_000, {"1": 1, "2": 4}, 100_352), (33 << 30, FINE, 36 << 30), (80 << 30, FINE, 80 << 30)],
    ],
)
def test_rounding(requested, divisions, expected):
    """As `round_size` of torch's allocator."""
    assert round_bytes(requested, Settings.of({"roundup_power2_divisions": divisions})) == expected


def test_settings():
    """Those that say nothing are as if they were not there."""
    assert Settings.of({}) == Settings.of({"max_split_size": -1}) == Settings()
    for divisions, expected in [(0, ()), (1, ()), (2, (2,)), (8, (8,))]:
        assert Settings.of({"roundup_power2_divisions": {"1": divisions}}).divisions == expected


def test_splitting():
    """As `should_split` and `get_allocation_size` of torch's allocator."""
    plain, limited = Settings(), Settings.of({"max_split_size": 20 * MB})
    growing = Settings.of({"expandable_segments": True})
    assert block_bytes(512, 2 * MB, plain) == 512
    assert block_bytes(3 * MB, 4 * MB, plain) == 4 * MB
    assert block_bytes(3 * MB, 4 * MB + 512, plain) == 3 * MB
    assert block_bytes(3 * MB, 4 * MB, growing) == 3 * MB
    assert block_bytes(20 * MB, 30 * MB, plain) == block_bytes(20 * MB, 30 * MB, growing) == 20 * MB
    assert block_bytes(20 * MB, 30 * MB, limited) == 30 * MB
    assert block_bytes(512, 1024, plain) == 512
    assert block_bytes(1 * MB, 1 * MB + 512, plain) == 1 * MB
    assert block_bytes(3 * MB, 2 * MB, plain) == 3 * MB  # where something is wrong
    sizes = [segment_bytes(size) for size in (512, MB, MB + 512, 10 * MB - 512, 10 * MB, 11 * MB)]
    assert sizes == [2 * MB, 2 * MB, 20 * MB, 20 * MB, 10 * MB, 12 * MB]
