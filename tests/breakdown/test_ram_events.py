"""The replay of memray's events, against a list of what is alive after each."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from ipygpulogger.breakdown.ram import peak_of
from ipygpulogger.sources.system.memray import Calls

MALLOC, FREE, MMAP, MUNMAP = range(1, 5)
CALLS = Calls(FREE, MMAP, MUNMAP)


@dataclass(frozen=True)
class Event:
    allocator: int
    address: int
    size: int = 0
    stack_id: int = 0


def as_asked(mapping):
    return mapping.size_bytes


# Twenty addresses at which blocks come and go, and forty pages that are mapped and unmapped in parts.
blocks = st.builds(Event, st.just(MALLOC), st.integers(0, 19), st.integers(0, 9), st.integers(0, 3))
frees = st.builds(Event, st.just(FREE), st.integers(0, 19))
maps = st.builds(Event, st.just(MMAP), st.integers(100, 139), st.integers(1, 8), st.integers(0, 3))
unmaps = st.builds(Event, st.just(MUNMAP), st.integers(100, 139), st.integers(1, 8))


@given(st.lists(st.one_of(blocks, frees, maps, unmaps), max_size=40))
def test_the_highest_moment_and_what_was_alive_then(events):
    """To the byte, and with what was freed later told from what was not."""
    alive, best, best_bytes, at = (
        {},
        {},
        0,
        0,
    )  # alive, by address or page: (number of the event, bytes, stack)
    for number, event in enumerate(events):
        if event.allocator in (MMAP, MUNMAP):
            for page in range(event.address, event.address + event.size):
                alive.pop(page, None)
                if event.allocator == MMAP:
                    alive[page] = (number, 1, event.stack_id)
        else:
            alive.pop(event.address, None)
            if event.allocator == MALLOC:
                alive[event.address] = (number, event.size, event.stack_id)
        total = sum(size for _, size, _ in alive.values())
        if total > best_bytes:
            best, best_bytes, at = dict(alive), total, number
    found = peak_of(lambda: iter(events), CALLS, as_asked)
    assert found.size_bytes == best_bytes == sum(block.size_bytes for block in found.blocks)
    assert all(block.size_bytes for block in found.blocks)

    def by(kept, blocks):
        sums = {}
        for stack, size, alive_still in blocks:
            if alive_still == kept and size:
                sums[stack] = sums.get(stack, 0) + size
        return sums

    truth = [(stack, size, alive.get(key) == (n, size, stack)) for key, (n, size, stack) in best.items()]
    told = [(block.stack, block.size_bytes, block.alive) for block in found.blocks]
    assert all(by(kept, truth) == by(kept, told) for kept in (True, False)), at


def test_a_mapping_counts_for_what_it_is_said_to():
    """Arrow's gigabyte does not make the moment of the peak, nor what is cut off from it."""
    events = [
        Event(MALLOC, 1, 300, 7),
        Event(MMAP, 1000, 5000, 8),  # more than is needed, to be aligned
        Event(MUNMAP, 1000, 24),
        Event(MUNMAP, 5024, 976),
        Event(FREE, 1),
        Event(MALLOC, 2, 250, 9),
    ]
    found = peak_of(lambda: iter(events), CALLS, lambda one: 10 if one.ranges == [(1024, 5024)] else -1)
    assert found.size_bytes == 310
    assert {(block.stack, block.size_bytes, block.alive) for block in found.blocks} == {
        (7, 300, False),
        (8, 10, True),
    }


def test_what_a_block_is():
    """Python maps a megabyte at once for its small objects; who asked is known by the stack."""
    sizes = {1: (MALLOC, 1 << 20), 2: (MMAP, 1 << 20), 3: (MMAP, 2 << 20)}
    events = [Event(kind, stack << 30, size, stack) for stack, (kind, size) in sizes.items()]
    found = peak_of(lambda: iter(events), CALLS, as_asked)
    assert {block.stack: (block.mapped, block.is_arena) for block in found.blocks} == {
        1: (False, False),
        2: (True, True),
        3: (True, False),
    }
    assert found.askers == dict(zip((1, 2, 3), events, strict=True))
