"""The mapped ranges of addresses: which of them show files, and which are memory."""

import mmap
import sys

import numpy as np
import pytest

from ipygpulogger.owners import address_space as module
from ipygpulogger.owners.address_space import (
    mapped_ranges,
    of_files,
    resident_bytes,
    shared_objects,
)

# /proc/self/maps: elsewhere there is nothing to ask, as where it cannot be opened (`test_without_a_list`).
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has such a file")
MB = 1 << 20


def test_which_addresses_show_a_file(monkeypatch, tmp_path):
    """Each range ends before its end, and files that live in memory are memory."""
    (tmp_path / "maps").write_bytes(
        b"1000-3000 r--p 0 00:00 1 /lib/a.so\n3000-4000 ---p 0 00:00 0\n9000-a000 rw-p 0 00:00 2 /dev/shm/x y\n"
    )
    monkeypatch.setattr(module, "_MAPS", str(tmp_path / "maps"))
    assert of_files([0, 0xFFF, 0x1000, 0x2FFF, 0x3000, 0x5000, 0x9000, 0xA000]) == {0x1000, 0x2FFF}
    assert mapped_ranges()[2].path == b"/dev/shm/x y"


def test_what_shows_a_file_takes_no_memory(tmp_path):
    """A mapped file is told from memory; shared objects are found."""
    mapped = np.memmap(tmp_path / "file", "u1", mode="w+", shape=MB)
    mapped[:] = 1
    address = mapped.__array_interface__["data"][0]
    assert of_files([address, 16]) == {address}
    assert resident_bytes(address, address + MB) == 0
    assert any("libc" in name or "musl" in name for name in shared_objects())


def test_only_touched_pages_are_resident(monkeypatch):
    """To the byte at both ends, up to so many bytes; without a page table the whole range counts."""
    memory = mmap.mmap(-1, 8 * mmap.PAGESIZE)
    address = np.frombuffer(memory, "u1").__array_interface__["data"][0]
    memory[mmap.PAGESIZE : 3 * mmap.PAGESIZE] = b"x" * 2 * mmap.PAGESIZE
    end = address + len(memory)
    ranges = [(address, end), (address, address + mmap.PAGESIZE + 5), (end - 7, end), (end, end)]
    assert [resident_bytes(*one) for one in ranges] == [2 * mmap.PAGESIZE, 5, 0, 0]
    monkeypatch.setattr(module, "_CHECKED_BYTES", 2 * mmap.PAGESIZE)
    assert resident_bytes(address, end) == 7 * mmap.PAGESIZE
    monkeypatch.setattr(module, "_PAGEMAP", "/none")
    assert [resident_bytes(*one) for one in ranges] == [stop - start for start, stop in ranges]


def test_without_a_list(monkeypatch, tmp_path):
    """No list, no ranges: nothing is taken for a file's."""
    monkeypatch.setattr(module, "_MAPS", str(tmp_path / "none"))
    assert (mapped_ranges(), of_files([1 << 20]), shared_objects()) == ([], set(), {})
