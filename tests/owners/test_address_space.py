"""The mapped ranges of addresses: which of them show files, and which are memory."""

import mmap
import sys

import pytest

from ipygpulogger.owners import address_space as module
from ipygpulogger.owners.address_space import (
    address_space,
    main_heap,
    of_files,
    resident_bytes,
    shared_objects,
)

# /proc/self/maps: elsewhere there is nothing to ask, as where it cannot be opened (`test_without_a_list`).
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has such a file")


def test_what_lies_at_an_address():
    """The range that contains it, else the next one; a range ends before its end."""
    listed = module.AddressSpace(
        b"1000-3000 r--p 0 00:00 1 /lib/a.so\n3000-4000 ---p 0 00:00 0\n9000-a000 rw-p 0 00:00 2 /dev/shm/x y\n"
    )
    starts = {
        address: getattr(listed.at(address), "start", None) for address in (0, 0x1000, 0x2FFF, 0x3000, 0x4000)
    }
    assert starts == {0: None, 0x1000: 0x1000, 0x2FFF: 0x1000, 0x3000: 0x3000, 0x4000: None}
    assert [one.start for one in map(listed.at_or_after, (0, 0x3FFF, 0x4000, 0x9FFF))] == [
        0x1000,
        0x3000,
        0x9000,
        0x9000,
    ]
    assert listed.at_or_after(0xA000) is None
    assert [(one.readable, one.is_file) for one in listed.ranges] == [
        (True, True),
        (False, False),
        (True, False),
    ]
    assert listed.ranges[2].path == b"/dev/shm/x y"


def test_what_shows_a_file_takes_no_memory(tmp_path):
    """A mapped file is told from memory; shared objects and the heap are found."""
    (tmp_path / "file").write_bytes(b"x" * (1 << 20))
    with (
        (tmp_path / "file").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        import numpy as np

        address = np.frombuffer(mapped, "u1").__array_interface__["data"][0]
        assert of_files([address, 16]) == {address}
        assert resident_bytes([(address, address + (1 << 20))]) == [0]
    assert any("libc" in name or "musl" in name for name in shared_objects())
    start, end = main_heap()
    assert {one.path for one in address_space().ranges if start <= one.start < end} == {b"[heap]"}


def test_without_a_list(monkeypatch, tmp_path):
    """No list, no ranges: nothing is taken for a file's, and lengths count."""
    monkeypatch.setattr(module, "_PATH", str(tmp_path / "none"))
    assert address_space() is None
    assert of_files([1 << 20]) == set()
    assert shared_objects() == {}
    assert main_heap() is None
    assert resident_bytes([(0, 5), (7, 9)]) == [5, 2]
