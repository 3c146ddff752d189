"""Programs made by hypothesis, on a small allocator written here: the replay finds what was alive at the peak."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ipygpulogger.allocator.replay import Replay
from ipygpulogger.sources.torch.history import DeviceHistory
from ipygpulogger.sources.torch.snapshot import AllocatorState, Position

MB = 2**20
SIZES = [1, 512, 513, 300_000, MB - 1, MB, MB + 1, 2 * MB, 3 * MB + 5, 4 * MB, 10 * MB - 1, 10 * MB, 19 * MB]
ALLOCATED, WAITING, FREE = "active_allocated", "active_awaiting_free", "inactive"
STACK = [{"filename": "train.py", "line": 1, "name": "step"}]


class Allocator:
    """Does as torch's: rounds, takes the smallest free block that is large enough, splits it if that is worth it."""

    def __init__(self):
        self.segments, self.events, self.live = {}, [], {}  # live: the size and number by address
        self.allocated, self.clock, self.released = 0, itertools.count(), []
        self.addresses = itertools.count(1 << 40, 64 * MB)
        self.failures = 0
        self.freed = {}  # by number, how many were allocated when it was freed
        self.after = {}  # what was live after each allocation, and at each failure

    def event(self, action, address=0, size=0):
        one = {"action": action, "addr": address, "size": size, "frames": STACK, "time_us": next(self.clock)}
        self.events.append(one)
        return one["time_us"]

    def allocate(self, requested):
        size = max(-(-requested // 512) * 512, 512)
        small = size <= MB
        free = [
            (block["size"], block["address"], blocks)
            for is_small, blocks in self.segments.values()
            for block in blocks
            if is_small == small and block["state"] == FREE and block["size"] >= size
        ]
        if not free:
            total = 2 * MB if small else 20 * MB if size < 10 * MB else -(-size // (2 * MB)) * 2 * MB
            address = self.released.pop() if self.released else next(self.addresses)
            blocks = [{"address": address, "size": total, "state": FREE}]
            self.segments[address] = small, blocks
            self.event("segment_alloc", address, total)
            free = [(total, address, blocks)]
        _, address, blocks = min(free, key=lambda one: one[:2])
        i = next(i for i, block in enumerate(blocks) if block["address"] == address)
        rest = blocks[i]["size"] - size
        if rest >= 512 if small else rest > MB:
            blocks[i]["size"] = size
            blocks.insert(i + 1, {"address": address + size, "size": rest, "state": FREE})
        blocks[i].update(state=ALLOCATED, frames=STACK, requested_size=requested)
        self.allocated += 1
        self.live[address] = blocks[i]["size"], self.allocated
        self.event("alloc", address, requested)
        self.after[self.allocated] = dict(self.live)

    def block(self, address):
        return next(
            (blocks, i, block)
            for _, blocks in self.segments.values()
            for i, block in enumerate(blocks)
            if block["address"] == address
        )

    def free(self, address, *, waits=False):
        _, _, block = self.block(address)
        self.freed[self.live.pop(address)[1]] = self.allocated
        block["state"] = WAITING
        self.event("free_requested", address, block["requested_size"])
        if not waits:
            self.complete(address)

    def complete(self, address):
        blocks, i, block = self.block(address)
        self.event("free_completed", address, block["requested_size"])
        block["state"] = FREE
        for left in (i, i - 1):
            if 0 <= left < len(blocks) - 1 and blocks[left]["state"] == blocks[left + 1]["state"] == FREE:
                blocks[left]["size"] += blocks.pop(left + 1)["size"]

    def waiting(self):
        found = [block for _, blocks in self.segments.values() for block in blocks]
        return [block["address"] for block in found if block["state"] == WAITING]

    def empty(self):
        for address, (_, blocks) in list(self.segments.items()):
            if len(blocks) == 1 and blocks[0]["state"] == FREE:
                del self.segments[address]
                self.released.append(address)
                self.event("segment_free", address, blocks[0]["size"])

    def position(self):
        size_bytes = sum(size for size, _ in self.live.values())
        return Position(self.allocated, len(self.live), size_bytes, self.failures)

    def observe(self):
        segments = [
            {
                "address": address,
                "total_size": sum(block["size"] for block in blocks),
                "blocks": [dict(block) for block in blocks],
            }
            for address, (_, blocks) in self.segments.items()
        ]
        self.event("snapshot")
        return AllocatorState(segments, self.position(), self.position())

    def run(self, steps):
        for name, n in steps:
            if name == "allocate":
                self.allocate(SIZES[n % len(SIZES)])
            elif name in ("free", "wait") and self.live:
                self.free(list(self.live)[n % len(self.live)], waits=name == "wait")
            elif name == "complete" and self.waiting():
                self.complete(self.waiting()[n % len(self.waiting())])
            elif name == "empty":
                self.empty()
            elif name == "observe":
                self.observe()
            elif name == "fail":
                self.failures += 1
                self.after["failure"] = dict(self.live), self.event("oom", 0, 9 << 30)


NAMES = ["allocate"] * 5 + ["free"] * 4 + ["wait", "complete", "empty", "observe"]


def steps(*more):
    return st.lists(st.tuples(st.sampled_from([*NAMES, *more]), st.integers(0, 60)), max_size=40)


def found(moment):
    return {block.address: block.size_bytes for block in moment.blocks}


def sizes(live):
    return {address: size for address, (size, _) in live.items()}


@given(before=steps(), nested=steps("fail"), within=steps("fail"), after=steps(), lost=st.integers(0, 60))
def test_what_was_alive(before, nested, within, after, lost):
    """All of it, each block with its number, if no event is lost; else what adds up to the peak is right."""
    allocator = Allocator()
    allocator.run(before)
    allocator.events.clear()
    begin = allocator.observe()
    allocator.run(nested)  # the measurement begins within the recording of another
    since, earlier = allocator.position(), dict(allocator.live)
    allocator.after.clear()
    allocator.run(within)
    failure = allocator.after.pop("failure", None)
    truth = {count: sizes(live) for count, live in allocator.after.items()}
    peak_bytes = max(sum(live.values()) for live in (sizes(earlier), *truth.values()))
    until = allocator.position()
    allocator.run(after)
    events = list(allocator.events)
    end = allocator.observe()

    replay = Replay(DeviceHistory(0, events, begin, end, {}), since, until)
    assert (replay.whole, replay.agrees, replay.missing) == (True, True, 0)
    moment = replay.highest()
    assert moment.size_bytes == sum(block.size_bytes for block in moment.blocks) == peak_bytes
    assert found(moment) == truth.get(moment.count, sizes(earlier))
    for block in moment.blocks:
        number = earlier.get(block.address, (0, 0))[1]
        assert block.before == (block.count in (0, number) and number > 0)
        own = number if block.before else block.count
        assert block.alive == (allocator.live.get(block.address, (0, 0))[1] == own)
        assert block.freed == allocator.freed.get(own)
        assert bool(block.frames) != block.before
        assert not block.lost
    failed = replay.failure()
    assert (failed and found(failed)) == (failure and sizes(failure[0]))
    assert failed is None or failed.requested_bytes == 9 << 30

    part = Replay(DeviceHistory(0, events[max(len(events) - lost, 0) :], begin, end, {}), since, until)
    moment = part.highest()
    assert part.whole <= (moment.size_bytes == peak_bytes)
    if (
        part.agrees
        and moment.size_bytes == peak_bytes
        and moment.count > part.first_count
        and moment.count in truth
    ):
        assert found(moment) == truth[moment.count]
    for block in moment.blocks:
        if block.before and not block.count:
            assert block.address in earlier
