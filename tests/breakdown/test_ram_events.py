"""The replay of memray's events, against a list of what is alive after each."""

from collections import Counter
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


def whole(ranges):
    return sum(end - start for start, end in ranges)


# Twenty addresses at which blocks come and go, and forty pages that are mapped and unmapped in parts.
blocks = st.builds(Event, st.just(MALLOC), st.integers(0, 19), st.integers(0, 9), st.integers(0, 3))
frees = st.builds(Event, st.just(FREE), st.integers(0, 19))
maps = st.builds(Event, st.just(MMAP), st.integers(100, 139), st.integers(1, 8), st.integers(0, 3))
unmaps = st.builds(Event, st.just(MUNMAP), st.integers(100, 139), st.integers(1, 8))


def left_of_mappings(events):
    """By the number of its event, how many pages of a mapping are left at the end."""
    pages = {}
    for number, event in enumerate(events):
        if event.allocator in (MMAP, MUNMAP):
            for page in range(event.address, event.address + event.size):
                pages.pop(page, None)
                if event.allocator == MMAP:
                    pages[page] = number
    return Counter(pages.values())


@given(st.lists(st.one_of(blocks, frees, maps, unmaps), max_size=40))
def test_the_highest_moment_and_what_was_alive_then(events):
    """To the byte, and with what was freed later told from what was not; of mappings, what is left at the end."""
    sizes = left_of_mappings(events)
    alive, best, best_bytes, at = {}, {}, 0, 0  # alive, by address: (number of the event, bytes, stack)
    for number, event in enumerate(events):
        if event.allocator in (MALLOC, FREE):
            alive.pop(event.address, None)
        if event.allocator == MALLOC:
            alive[event.address] = (number, event.size, event.stack_id)
        elif number in sizes:
            alive["mapping", number] = (number, sizes[number], event.stack_id)
        total = sum(size for _, size, _ in alive.values())
        if total > best_bytes:
            best, best_bytes, at = dict(alive), total, number
    found = peak_of(lambda: iter(events), CALLS, whole)
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


def test_arenas():
    """Python maps a megabyte at once for its small objects: it counts whole until it is unmapped."""
    sizes = {1: (MALLOC, 1 << 20), 2: (MMAP, 1 << 20), 3: (MMAP, 2 << 20), 4: (MMAP, 1 << 20)}
    made = [Event(kind, stack << 30, size, stack) for stack, (kind, size) in sizes.items()]
    # The last one is unmapped; the others are not, nor is a part of the larger mapping no arena.
    events = [*made, *(Event(MUNMAP, stack << 30, 1 << 20) for stack in (3, 4))]
    found = peak_of(lambda: iter(events), CALLS, whole)
    assert {block.stack: (block.size_bytes, block.is_arena, block.alive) for block in found.blocks} == {
        1: (1 << 20, False, True),
        2: (1 << 20, True, True),
        3: (1 << 20, False, True),
        4: (1 << 20, True, False),
    }
    assert found.askers == dict(zip(sizes, made, strict=True))
