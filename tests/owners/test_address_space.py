"""The mapped ranges of addresses, and what came with imported libraries: a shared object of known size."""

import importlib.util
import mmap
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from made import plain
from memory import MB

from ipygpulogger.owners import address_space as module
from ipygpulogger.owners.address_space import (
    MappedRange,
    Residency,
    libraries,
    libraries_since,
    mapped_ranges,
    ranges_at,
    resident_bytes,
    shared_objects,
)
from ipygpulogger.records import DeviceUsage, Peak, RamUsage
from ipygpulogger.render import growth as growth_text
from ipygpulogger.render import text
from ipygpulogger.sources.system import linux as linux_calls

SOURCE = "char data[{size}] = {{1}}; long touch(void) {{ long s = 0; for (long i = 0; i < {size}; i += 4096) s += data[i]; return s; }}"
PACKAGE = "import ctypes, os\nlibrary = ctypes.CDLL(os.path.join(os.path.dirname(__file__), 'native.so'))\nlibrary.touch()\n"

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc builds the shared object")
linux = pytest.mark.linux("no page table tells what is resident")


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    """A shared object that has 30 MB of data, all of which it reads when asked."""
    folder = tmp_path_factory.mktemp("native")
    (folder / "native.c").write_text(SOURCE.format(size=30 * MB))
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-o", folder / "native.so", folder / "native.c"], check=True
    )
    return folder / "native.so"


@pytest.fixture
def package(native, tmp_path, monkeypatch, request, run):
    """An installed package with that shared object, its code, and what it allocates for itself; its name."""
    name = f"native_{request.node.name.partition('[')[0]}"
    folder = tmp_path / "site-packages" / name
    folder.mkdir(parents=True)
    shutil.copy(native, folder)
    (folder / "__init__.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(folder.parent))
    run("pass")  # what IPython itself imports for a first cell
    yield name
    sys.modules.pop(name, None)


def grew(record):
    return {owner.name: round(owner.size_bytes / MB) for owner in record.owners}


@linux
@needs_gcc
def test_an_import_is_named(run, package):
    """All that a cell consumed is its library's."""
    record = run(f"import {package}")
    assert record.gen.consumed_bytes == pytest.approx(30 * MB, abs=2 * MB)
    (owner,) = record.owners
    assert (owner.name, owner.device, owner.kind) == (f"libraries loaded: {package}", "cpu", "other")
    assert owner.size_bytes == record.gen.consumed_bytes
    assert record.unexplained == ()
    assert growth_text.grew(record).startswith("libraries loaded: native_test_an_im")
    assert "grew" not in text.report(record)
    assert run("x = 2").owners == ()


@linux
@needs_gcc
def test_what_it_cannot_have_brought_stays_unexplained(run, package):
    """300 MB that no name accounts for are not put down to a library of 30, nor 50 to one that was there."""
    record = run(f"import {package}, ctypes; hidden = ctypes.create_string_buffer(b'x', 300 << 20)\n"
                 "for i in range(0, 300 << 20, 4096): hidden[i] = b'x'\n")  # fmt: skip
    library_mb = grew(record)[f"libraries loaded: {package}"]
    assert 30 <= library_mb <= 62
    unexplained_mb = dict(record.unexplained)["cpu"] / MB
    assert library_mb + unexplained_mb == pytest.approx(330, abs=3)
    assert f"{round(unexplained_mb)} MB unexplained" in growth_text.grew(record)
    record = run(f"import {package}; other = ctypes.create_string_buffer(b'x', 50 << 20)\n"
                 "for i in range(0, 50 << 20, 4096): other[i] = b'x'\n")  # fmt: skip
    assert record.owners == ()
    assert dict(record.unexplained)["cpu"] == pytest.approx(50 * MB, abs=2 * MB)


@linux
@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
def test_real_libraries():
    """pandas, with all it brings: what it consumed in a fresh process is its, and the bound is no wild one."""
    program = """
import re, sys
from ipygpulogger.owners.address_space import libraries, libraries_since
def resident_mb():
    return int(re.search("VmRSS:\\\\s+(\\\\d+)", open("/proc/self/status").read())[1]) / 1024
before, before_mb = libraries(), resident_mb()
import pandas
came_mb = resident_mb() - before_mb
names, most_bytes = libraries_since(before)
print(came_mb, most_bytes / 2**20, *names)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    came_mb, most_mb, *names = said.stdout.split()
    assert "pandas" in names
    assert float(came_mb) <= float(most_mb) <= 2.5 * float(came_mb)


def test_hostile_modules(monkeypatch):
    """`sys.modules` holds anything: only the names are read, of packages that are not ours."""
    before = libraries()
    for name in ("odd", "odd.one", "ipygpulogger.new", 7):
        monkeypatch.setitem(sys.modules, name, None)
    assert libraries_since(before) == (("odd",), 192 << 10)


@pytest.mark.parametrize(
    ("consumed_mb", "device", "unexplained_mb", "said"),
    [
        (10, "cpu", 4, False),  # 40 %, and less than 5 MB
        (200, "cpu", 8, False),  # 4 %
        (200, "cpu", 12, True),
        (10, "cpu", 6, True),
        (10, "cuda:0", 40, False),
        (10, "cuda:0", 60, True),
    ],
)
def test_little_is_not_called_unexplained(consumed_mb, device, unexplained_mb, said):
    """Only what is more than 5 MB and more than 5 % of what came; the record keeps it."""
    gen = RamUsage(100 * MB, (100 + consumed_mb) * MB, Peak((100 + consumed_mb) * MB, None, "sampled"))
    gpu = DeviceUsage(0, 1000 * MB, Peak(1000 * MB, None, "sampled"), index=0, name="a GPU")
    given = plain(gen=gen, gpus=(gpu,), unexplained=((device, unexplained_mb * MB),))
    assert ("unexplained" in text.report(given)) is said


# -- which ranges show files, and which are memory


@linux
def test_which_addresses_show_a_file(monkeypatch, tmp_path):
    """Each range ends before its end, and files that live in memory are memory."""
    (tmp_path / "maps").write_bytes(
        b"1000-3000 r--p 0 00:00 1 /lib/a.so\n3000-4000 ---p 0 00:00 0\n9000-a000 rw-p 0 00:00 2 /dev/shm/x y\n"
    )
    monkeypatch.setattr(module, "_MAPS", str(tmp_path / "maps"))
    found = ranges_at([0, 0xFFF, 0x1000, 0x2FFF, 0x3000, 0x5000, 0x9000, 0xA000])
    assert {address: (one.is_file, one.has_pages) for address, one in found.items()} == {
        0x1000: (True, False),
        0x2FFF: (True, False),
        0x3000: (False, True),
        0x9000: (False, True),
    }
    assert mapped_ranges()[2].path == b"/dev/shm/x y"


@linux
def test_what_shows_a_file_takes_no_memory(tmp_path):
    """A mapped file is told from memory; shared objects are found."""
    mapped = np.memmap(tmp_path / "file", "u1", mode="w+", shape=MB)
    mapped[:] = 1
    address = mapped.__array_interface__["data"][0]
    assert ranges_at([address])[address].is_file
    assert not ranges_at([16])
    assert any("libc" in name or "musl" in name for name in shared_objects())


@linux
def test_only_touched_pages_are_resident(monkeypatch):
    """To the byte at both ends; where nothing tells, and of what is gone, all counts."""
    memory = mmap.mmap(-1, 8 * mmap.PAGESIZE)
    address = np.frombuffer(memory, "u1").__array_interface__["data"][0]
    memory[mmap.PAGESIZE : 3 * mmap.PAGESIZE] = b"x" * 2 * mmap.PAGESIZE
    end = address + len(memory)
    ranges = [(address, end), (address, address + mmap.PAGESIZE + 5), (end - 7, end), (end, end)]
    ranges += [(address + mmap.PAGESIZE + 5, end), (address + 7, address + 3 * mmap.PAGESIZE)]
    sizes = [2 * mmap.PAGESIZE, 5, 0, 0, 2 * mmap.PAGESIZE - 5, 2 * mmap.PAGESIZE]
    assert [resident_bytes(*one) for one in ranges] == sizes
    monkeypatch.setattr(module, "_MOST_BYTES", 2 * mmap.PAGESIZE)
    assert [resident_bytes(*one) for one in ranges] == sizes
    assert resident_bytes(16 * mmap.PAGESIZE, 17 * mmap.PAGESIZE + 5) == mmap.PAGESIZE + 5
    monkeypatch.setattr(module, "gil_held", linux_calls.Calls)
    assert [resident_bytes(*one) for one in ranges] == [stop - start for start, stop in ranges]


@pytest.fixture
def kernel(monkeypatch):
    """What is resident, in MB by address in MB, and which addresses were asked for."""
    kernel = SimpleNamespace(resident={}, asked=[], ranges={}, looked_up=[])

    def resident_bytes(start, end):
        kernel.asked.append(start // MB)
        return min(end - start, kernel.resident[start // MB] * MB)

    def ranges_at(addresses):
        kernel.looked_up += sorted(one // MB for one in addresses)
        memory = MappedRange(0, 1 << 60, b"[heap]")
        return {one: kernel.ranges.get(one // MB, memory) for one in addresses}

    monkeypatch.setattr(module, "resident_bytes", resident_bytes)
    monkeypatch.setattr(module, "ranges_at", ranges_at)
    monkeypatch.setattr(module, "_MOST_BYTES", 100 * MB)
    return kernel


def found_mb(residency, sizes_mb, mapped=()):
    sizes = {at * MB: size * MB for at, size in sizes_mb.items()}
    return {at // MB: size / MB for at, size in residency.of(sizes, {at * MB for at in mapped}).items()}


def test_what_is_resident_counts(kernel):
    """Of memory; of a file none, and all of what a driver maps, each looked up anew."""
    kernel.resident = {0: 10, 20: 4, 40: 0, 60: 10, 80: 0}
    kernel.ranges = {60: MappedRange(0, 1, b"/a/model"), 80: MappedRange(0, 1, b"/dev/nvidiactl")}
    residency, sizes = Residency(), dict.fromkeys([0, 20, 40, 60, 80], 10)
    for looked_up in ([20, 40, 60, 80], [60, 80]):  # what was memory is not looked up again
        kernel.looked_up.clear()
        assert found_mb(residency, sizes, [20, 60]) == {0: 10, 20: 4, 40: 0, 60: 0, 80: 10}
        assert kernel.looked_up == looked_up


def test_a_large_block_that_was_full_is_looked_at_here_and_there(kernel):
    """Until it is another one at the same address, or has another size."""
    kernel.resident, residency = {0: 200}, Residency()
    assert found_mb(residency, {0: 200}) == {0: 200}
    kernel.resident |= dict.fromkeys(range(1, 200), 1)
    kernel.asked.clear()
    assert found_mb(residency, {0: 200}) == {0: 200}
    assert kernel.asked == [199, 174, 149, 124, 99, 74, 49, 24]
    kernel.resident |= {199: 0, 0: 70}
    assert found_mb(residency, {0: 200}) == {0: 70}
    kernel.resident |= {199: 1, 0: 200}
    kernel.asked.clear()
    assert found_mb(residency, {0: 199}) == {0: 199}
    assert kernel.asked == [0]


def test_without_time_what_was_known_counts(kernel, monkeypatch):
    """Each block was looked at once, so that none seems to come or go."""
    kernel.resident, residency = {0: 5, 20: 5, 40: 5}, Residency()
    now_s = iter(range(100))
    monkeypatch.setattr(module.clock, "thread_s", lambda: next(now_s))
    monkeypatch.setattr(module, "_BUDGET_S", 2)
    assert found_mb(residency, {0: 10, 20: 10, 40: 10}) == {0: 5, 20: 5, 40: 5}
    kernel.resident = dict.fromkeys(kernel.resident, 6)
    assert found_mb(residency, {0: 10, 20: 10, 40: 10}) == {0: 6, 20: 6, 40: 5}


@linux
def test_without_a_list(monkeypatch, tmp_path):
    """No list, no ranges: nothing is taken for a file's."""
    monkeypatch.setattr(module, "_MAPS", str(tmp_path / "none"))
    assert (mapped_ranges(), ranges_at([1 << 20]), shared_objects()) == ([], {}, {})
