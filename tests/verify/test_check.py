"""The programs that the checks run, in a memory that notes what comes and goes."""

import weakref
from types import SimpleNamespace

from ipygpulogger.verify.check import Memory, Unchecked


class Block:
    """What holds memory as long as it lives."""


class Noted(Memory):
    """Each block has a number, and is noted as it goes."""

    id, unit_bytes = "noted", 1000

    def __init__(self):
        self.count, self.gone = 0, []

    def take(self, _size_bytes):
        block = Block()
        weakref.finalize(block, self.gone.append, self.count)
        self.count += 1
        return block

    def held_bytes(self, size_bytes):
        return size_bytes

    def used_bytes(self):
        return None

    def usage(self, _scope):
        return SimpleNamespace(attributed=False)


def test_the_oldest_block_goes_first():
    """So what goes within a scope was there before it; a block for a moment goes at once."""
    memory = Noted()
    assert not list(memory.play("", memory.nested(), measured=False))
    assert memory.gone == [2, 4, 0, 1, 3]


def test_where_nobody_counts():
    """Nothing is said of what is in use, and nothing is raised."""
    taken, given_back = Noted().amounts([("kept", 10, 5)])
    assert isinstance(taken, Unchecked)
    assert isinstance(given_back, Unchecked)
