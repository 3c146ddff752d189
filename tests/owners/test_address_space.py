"""The mapped ranges of addresses, asked one by one or read as a list: the same."""

import mmap
import os
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipygpulogger.owners import address_space as module
from ipygpulogger.owners.address_space import (
    _Listed,
    _Queried,
    address_space,
    of_files,
    resident_bytes,
    shared_objects,
)

# /proc/self/maps: elsewhere there is nothing to ask, as where it cannot be opened (`test_what_nobody_tells`).
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has such a file")


@pytest.fixture
def opened():
    fd = os.open("/proc/self/maps", os.O_RDONLY)
    if not _Queried(fd).works():
        # PROCMAP_QUERY came with Linux 6.11. Before, all ranges are read as a list, in every other test of owners.
        pytest.skip("this kernel answers for no single address")
    yield fd
    os.close(fd)


def settled_list(opened):
    """The list, read until two readings agree: one takes several steps, in which ranges may move past it."""
    listed = _Listed(opened)
    for _ in range(20):
        os.lseek(opened, 0, os.SEEK_SET)
        again = _Listed(opened)
        if again._ranges == listed._ranges:
            return again
        listed = again
    raise AssertionError("this process maps memory all the time")


def test_asked_and_listed_are_the_same(opened):
    """Of any address: its range, or the next one; and all that is mapped of shared objects."""
    queried, listed = _Queried(opened), settled_list(opened)
    edges = [edge for one in listed._ranges for edge in (one.start, one.end)][
        :-2
    ]  # without the vsyscall page

    @settings(max_examples=300, deadline=None)
    @given(st.sampled_from(edges), st.integers(-8192, 8192))
    def same(edge, off):
        address = max(0, edge + off)
        for name in ("at", "at_or_after"):
            asked, read = getattr(queried, name)(address), getattr(listed, name)(address)
            if not any(one is not None and not one.is_file for one in (asked, read)):
                assert asked == read  # of files: the other ranges grow and shrink meanwhile

    same()
    mine = [one for one in queried.shared_objects() if not one.path.endswith(b"(deleted)")]
    assert mine
    assert set(mine) <= set(listed.shared_objects())
    assert {one.path for one in mine} == {one.path for one in listed.shared_objects()} - {
        one.path for one in listed._ranges if one.path.endswith(b"(deleted)")
    }


def test_the_list_is_not_read_where_the_kernel_answers(opened, monkeypatch, tmp_path):
    """However much is mapped: 60,000 ranges take 0.1 s to read."""
    monkeypatch.setattr(module, "_Listed", None)
    (tmp_path / "file").write_bytes(b"x" * (1 << 20))
    with (
        (tmp_path / "file").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        import numpy as np

        address = np.frombuffer(mapped, "u1").__array_interface__["data"][0]
        assert of_files([address, 16]) == {address}
        assert resident_bytes([[(address, address + (1 << 20))]]) == [0]
    assert any("libc" in name or "musl" in name for name in shared_objects())


def test_what_nobody_tells(monkeypatch, tmp_path):
    """No list, no ranges."""
    monkeypatch.setattr(module, "_PATH", str(tmp_path / "none"))
    with address_space() as found:
        assert found is None
    assert of_files([1 << 20]) == set()
    assert shared_objects() == {}
    assert resident_bytes([[(0, 5)], [(7, 9), (10, 12)]]) == [5, 4]
