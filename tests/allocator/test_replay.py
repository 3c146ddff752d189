"""The replay on events made by hand where some are lost, late or in disorder; else `test_replayed_programs`."""

import pytest

from ipygpulogger.allocator.caching_allocator import Settings, block_bytes, round_bytes, segment_bytes
from ipygpulogger.allocator.replay import Replay
from ipygpulogger.breakdown import timeline
from ipygpulogger.breakdown.kinds import Kinds, TrainingHistory
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


def replayed(events, end, *, begin=None, count=None, since=None, until=None):
    """The replay of events after which the segments are `end`.

    Of a device that is new if `begin` is None; `since` and `until` are numbers of allocations, and bytes.
    """
    allocations = sum(one["action"] == "alloc" for one in events)
    count = allocations if count is None else count
    first = position(begin or [], count - allocations)
    stood = None if begin is None else stand(begin, first.allocated)
    history = DeviceHistory(
        0, events if begin is None else [event("snapshot"), *events], stood, stand(end, count), {}
    )
    since = Position(since[0], 0, *since[1:]) if since else first
    return Replay(history, since, Position(until[0], 0, *until[1:]) if until else history.end.after)


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
    events = [*free(BASE + 4 * MB, 5 * MB), event("alloc", BASE, 1 * MB)]
    replay = replayed(events, [segment(BASE, 20 * MB, block(BASE, 1 * MB))], count=9, since=(5, 0))
    assert replay.highest().size_bytes == 5 * MB
    one = timeline.of_replay("cuda:0", replay, Kinds(0, 0, TrainingHistory(), {}), 0.0, 1e6)
    assert (one.peak()[0], one.points[0][0]) == (events[0]["time_us"], events[0]["time_us"])


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
    replay = replayed([ONE, TWO], end, begin=begin, count=9)
    assert replay.agrees and len(replay.events) == 2
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


def test_a_free_of_a_block_that_is_not_there():
    """It is noticed where another thread allocates while the blocks are read, so that these tell nothing."""
    begin, end = [segment(BASE, 20 * MB, HELD)], Position(7, 3, 14 * MB)
    later = AllocatorState(begin, end, end._replace(allocated=8))
    for extra, agrees in [([], True), (free(BASE + 15 * MB, 2 * MB), False)]:
        history = DeviceHistory(0, [event("snapshot"), *extra, ONE, TWO], stand(begin, 5), later, {})
        assert Replay(history, Position(5, 1, 4 * MB), end).agrees == agrees


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
    for count in (3, 13):  # numbers of allocations do not begin where the events do
        replay = replayed(events, end, count=count, until=(count - 2, 0, 1))
        assert replay.failure().requested_bytes == 8 << 30
        assert replay.whole == (count == 3)
    assert replayed(events, end, since=(3, 1536, 2), until=whole).failure() is None
    assert replayed(events, end, until=(0, 0, 1)).failure() is None  # it came later
    assert replayed(events, end, since=(2, 1 * KB, 2), until=whole).failure() is None  # it came just before
    assert replayed(events, end, since=(2, 1 * KB, 1), until=whole).failure().count == 2
    assert replayed(events, end, until=(3, 1536, 3)).failure() is None  # one is lost, perhaps the last


def test_rounding():
    """As `round_size` of torch's allocator."""
    sizes = [0, 1, 511, 512, 513, MB - 1, MB + 1, 10 * MB - 513]
    rounded = [512, 512, 512, 512, 1024, MB, MB + 512, 10 * MB - 512]
    assert [round_bytes(size) for size in sizes] == rounded


def test_settings():
    """Those that say nothing are as if they were not there."""
    assert Settings.of({}) == Settings.of({"max_split_size": -1}) == Settings()


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
