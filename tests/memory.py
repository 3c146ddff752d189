"""Memory of known size, straight from the kernel: no allocator in between keeps or reuses any."""

import mmap

MB = 2**20


class Block:
    """Resident memory of so many MB, until `free`."""

    def __init__(self, size_mb):
        self.size_mb = size_mb
        self._map = mmap.mmap(-1, size_mb * MB)
        self._map[:: mmap.PAGESIZE] = b"\1" * len(range(0, size_mb * MB, mmap.PAGESIZE))

    def free(self):
        self._map.close()


def blip(size_mb):
    """Needed for a moment."""
    Block(size_mb).free()


def held_transient(size_mb):
    """Needed for a moment inside one C call that holds the GIL."""
    return len(b"x" * (size_mb * MB))
