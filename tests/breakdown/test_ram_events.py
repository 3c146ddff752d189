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


# Twenty addresses at which blocks come and go, and forty pages that are mapped and unmapped, which do not count.
blocks = st.builds(Event, st.just(MALLOC), st.integers(0, 19), st.integers(0, 9), st.integers(0, 3))
frees = st.builds(Event, st.just(FREE), st.integers(0, 19))
maps = st.builds(Event, st.just(MMAP), st.integers(100, 139), st.integers(1, 8), st.integers(0, 3))
unmaps = st.builds(Event, st.just(MUNMAP), st.integers(100, 139), st.integers(1, 8))


@given(st.lists(st.one_of(blocks, frees, maps, unmaps), max_size=40))
def test_the_highest_moment_and_what_was_alive_then(events):
    """To the byte, and with what was freed later told from what was not; mappings do not count."""
    alive, best, best_bytes, at = {}, {}, 0, 0  # alive, by address: (number of the event, bytes, stack)
    for number, event in enumerate(events):
        if event.allocator in (MALLOC, FREE):
            alive.pop(event.address, None)
        if event.allocator == MALLOC:
            alive[event.address] = (number, event.size, event.stack_id)
        total = sum(size for _, size, _ in alive.values())
        if total > best_bytes:
            best, best_bytes, at = dict(alive), total, number
    found = peak_of(events, CALLS)
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
    # The last one is unmapped; the larger mapping is no arena.
    events = [*made, Event(MUNMAP, 4 << 30, 1 << 20)]
    found = peak_of(events, CALLS)
    assert {block.stack: (block.size_bytes, block.is_arena, block.alive) for block in found.blocks} == {
        1: (1 << 20, False, True),
        2: (1 << 20, True, True),
        4: (1 << 20, True, False),
    }
    assert found.askers == {one.stack_id: one for one in made if one.stack_id != 3}
