"""Traversals and blocks made by hand, for the tests of what is attributed to whom."""

from ipygpulogger.owners.attribution import Attribution, Root, Traversal
from ipygpulogger.owners.memory_blocks import MemoryBlocks
from ipygpulogger.sources import Holding

MB = 2**20
GPU = "cuda:0"


def path_of(name, *met, rank=0, kind="variable"):
    path = Traversal(Root(name, kind, None), (rank, 0))
    path.found += met
    return path


def found_by(blocks, *paths, in_time=lambda: True, uncounted=()):
    return Attribution(blocks, in_time).result(paths, uncounted)


def blocks_of(*sizes, device=GPU):
    blocks = MemoryBlocks()
    numbers = [blocks.number(Holding((device, 1000 * MB * i), size, device)) for i, size in enumerate(sizes)]
    assert numbers == list(range(len(sizes)))
    return blocks
