"""Programs made by hypothesis, on torch's real allocator: the rows add up to its peak, and each block is itself."""

import threading
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import MB, Recorded, checked_timeline, recorded

pytestmark = pytest.mark.torch

import torch  # noqa: E402 - where it is not, this file is not opened
from torch.utils.checkpoint import checkpoint  # noqa: E402

NASTY = [1, 511, 512, 513, MB - 1, MB, MB + 1, 2 * MB, 3 * MB, 4 * MB + 512, 6 * MB]
NASTY += [n * MB + d for n in (10, 20) for d in (-513, -1, 0, 1)] + [22 * MB, 40 * MB]
HERE = __file__
EXAMPLES = 40
remember = torch.cuda.memory._record_memory_history


class Program:
    """The slots of a program, and for each storage that had one when it lived, in counts of allocations."""

    def __init__(self):
        self.slots, self.ledger, self.keep = {}, [], []
        self.streams = [torch.cuda.Stream() for _ in range(2)]

    def count(self):
        return torch.cuda.memory_stats()["allocation.all.allocated"]

    def new(self, slot, make):
        """Put what is made into a slot; what was there goes first."""
        self.free(slot)
        before = self.count()
        tensor = make()
        storage = tensor.untyped_storage()
        entry = [storage.data_ptr(), storage.nbytes(), before, self.count(), None]
        self.slots[slot] = tensor, entry
        self.ledger.append(entry)

    def free(self, slot):
        if slot in self.slots:
            tensor, entry = self.slots.pop(slot)
            del tensor
            entry[4] = self.count()

    def run(self, steps):
        for name, slot, n in steps:
            getattr(self, name)(slot, n)

    # -- what a program may do; every allocation that the ledger knows is on the line of `new` or below it

    def empty(self, slot, n):
        self.new(slot, lambda: torch.empty(NASTY[n % len(NASTY)], dtype=torch.uint8, device="cuda"))

    def view(self, slot, n):
        if slot in self.slots:
            self.keep = [self.slots[slot][0][n:]]  # it keeps the storage of the slot
            self.slots.pop(slot)[1][4] = -1  # for how long is not followed
        else:
            self.keep = []

    def stream(self, slot, n):
        side = self.streams[n % 2]
        self.empty(slot, n)
        self.slots[slot][0].record_stream(side)
        with torch.cuda.stream(side):
            self.empty(slot + 1, n + 3)
        self.free(slot)
        self.empty(slot, n + 1)

    def thread(self, slot, n):
        thread = threading.Thread(target=self.empty, args=(slot, n))
        thread.start()
        thread.join()

    def foreach(self, _, n):
        parts = [torch.empty(NASTY[(n + i) % 9], dtype=torch.uint8, device="cuda") for i in range(3)]
        torch._foreach_add_(torch._foreach_add(parts, 1), parts)

    def cache(self, _, __):
        torch.cuda.empty_cache()

    def train(self, _, n):
        width = (8, 64, 600)[n % 3]
        model = torch.nn.Sequential(
            torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 4)
        ).cuda()
        kind = (torch.optim.SGD, torch.optim.Adam)[n % 2]
        optimizer = kind(model.parameters(), lr=0.1, foreach=n % 4 < 2)
        for i in range(2):
            data = torch.ones(32 * (1 + n % 5), 16, device="cuda")
            out = checkpoint(model, data, use_reentrant=False) if n % 3 == i else model(data)
            out.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            model(data)
        if n % 7 == 0:
            self.keep = [model, optimizer]


OPERATIONS = ["empty", "empty", "empty", "view", "stream", "thread", "foreach", "cache", "train"]
STEPS = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 5), st.integers(0, 40)), max_size=25)


def check(program, blocks):
    """Each storage of the ledger is among the blocks of the peak if it lived there, and not if it did not."""
    peak = max((block.count for block in blocks), default=0)
    alive = {(block.address, block.count): block for block in blocks}
    for address, size_bytes, before, after, freed in program.ledger:
        found = [alive[address, n] for n in range(before + 1, after + 1) if (address, n) in alive]
        if freed == -1:
            continue
        if after <= peak and (freed is None or freed > peak):
            assert found, (address, size_bytes)
        for block in found:
            assert block.size_bytes >= size_bytes
            assert block.alive == (freed is None)
            assert any(f["filename"] == HERE and f["name"] == "empty" for f in block.frames), block.frames


def test_the_rows_add_up_to_the_allocators_peak(cuda):
    """To the byte, whatever was held before; and what lived at the peak is there, under its line."""

    @settings(max_examples=EXAMPLES)
    @given(before=STEPS, steps=STEPS)
    def holds(before, steps):
        program = Program()
        program.run(before)
        program.ledger.clear()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        found = recorded(lambda: program.run(steps))
        assert found.bytes() == torch.cuda.max_memory_allocated()
        assert not found.notes
        check(program, found.blocks.get("cuda:0", ()))
        if found.record.at_peak:
            checked_timeline(found)
            assert found.totals["cuda:0"][-1] == torch.cuda.memory_allocated()
        assert not torch._C._cuda_isHistoryEnabled()

    holds()


class Recording(Program):
    """A program that begins and ends recordings of its own, in tiny rings, and knows its peak by itself."""

    def __init__(self):
        super().__init__()
        self.peaks, self.entries = [], 0

    def new(self, slot, make):
        super().new(slot, make)
        self.observe()

    def observe(self):
        allocated = torch.cuda.memory_allocated()
        self.peaks = [max(peak, allocated) for peak in self.peaks]

    def clear(self, slot, n):
        for one in range(slot, n):
            self.free(one)

    def record(self, n, kind):
        entries = (5, 20, 60, 1000)[n % 4]
        if entries < self.entries:  # torch 2.13 then writes behind its ring
            remember(None)
        self.entries = entries
        options = {1: {"context": None}, 2: {"context": "state"}, 3: {"skip_actions": ["free_requested"]}}
        remember("all", stacks="python", max_entries=entries, **options.get(kind % 9, {}))

    def end(self, _, __):
        remember(None)
        self.entries = 0

    def snapshot(self, _, __):
        torch.cuda.memory._snapshot()

    def reset(self, _, n):
        (torch.cuda.reset_peak_memory_stats, torch.cuda.reset_accumulated_memory_stats)[n % 2]()

    def nested(self, slot, n):
        with self.held_against_its_peak():
            for i in range(n % 7):
                self.empty(slot + i, n + i)

    @contextmanager
    def held_against_its_peak(self):
        """What is found is the peak to the byte; or nothing, and a sentence says why."""
        self.peaks.append(torch.cuda.memory_allocated())
        around = Recorded()
        try:
            yield
        finally:
            around.end()
        peak_bytes = self.peaks.pop()
        assert around.bytes() == peak_bytes if around.record.at_peak else around.notes or not peak_bytes
        addresses = [block.address for block in around.blocks.get("cuda:0", ())]
        assert len(set(addresses)) == len(addresses)


def test_recordings_of_the_users_within(cuda):
    """However small their rings are, and whatever they leave out or torch puts into another order."""
    names = ["empty", "empty", "empty", "clear", "stream", "cache", "thread", "snapshot", "reset", "nested"]
    steps = st.tuples(st.sampled_from([*names, "record", "end"]), st.integers(0, 9), st.integers(0, 40))

    @settings(max_examples=EXAMPLES)
    @given(before=st.lists(steps, max_size=8), within=st.lists(steps, max_size=25))
    def holds(before, within):
        program = Recording()
        try:
            program.run(before)
            with program.held_against_its_peak():
                program.run(within)
        finally:
            remember(None)

    holds()
    assert not torch._C._cuda_isHistoryEnabled()
