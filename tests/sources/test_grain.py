"""How far the kernel's counts may be off: known for every kernel, kept to by every figure, and reported."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory import MB
from ram import NVML, needs_high_water, refuse

from ipygpulogger.engine.machine import Machine
from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import Measurement
from ipygpulogger.sources.system import linux
from ipygpulogger.sources.system.process import HighWaterMark, Process

pytestmark = pytest.mark.linux("its kernel counts approximately")


@pytest.mark.parametrize(
    ("cpus", "expected_mb"), [("0-1", 0.75), ("0-15", 6), ("0-31,64-95", 96), ("0-255", 1536), ("0", 0.375)]
)
def test_the_grain_follows_the_number_of_cpus(monkeypatch, cpus, expected_mb):
    """lib/percpu_counter.c: three counts, in batches of max(32, 2n) pages on each of the machine's n CPUs."""
    pretend_kernel(monkeypatch, "6.18.1", cpus)
    assert HighWaterMark().precision_bytes == expected_mb * MB
    assert HighWaterMark().current_precision_bytes == 0


def test_the_grain_is_the_machines_not_the_processs(monkeypatch):
    """The affinity changes what this process may use, not how the kernel counts; nor does a missing /sys."""
    machines = HighWaterMark().precision_bytes
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert HighWaterMark().precision_bytes == machines
    monkeypatch.setattr(linux, "read", refuse)
    assert linux.cpu_count() == os.sysconf("SC_NPROCESSORS_CONF")


@pytest.mark.parametrize(
    ("release", "approximate"),
    [("6.1.0", False), ("6.2.0", True), ("6.8.0-51-generic", True), ("6.16.3", True), ("6.17.0", False)],
)
def test_which_kernels_count_approximately(monkeypatch, release, approximate):
    """From Linux 6.2 to 6.16 the resident size is read as the approximate sum, as the mark is."""
    pretend_kernel(monkeypatch, release, "0-63")
    counter = HighWaterMark()
    assert counter.current_precision_bytes == (counter.precision_bytes if approximate else 0)


def pretend_kernel(monkeypatch, release, cpus):
    """This machine's kernel says that it is another, with so many CPUs."""
    read, uname = linux.read, os.uname()
    pretended = os.uname_result((uname.sysname, uname.nodename, release, uname.version, uname.machine))
    monkeypatch.setattr(linux, "PAGE_BYTES", 4096)
    monkeypatch.setattr(os, "uname", lambda: pretended)
    monkeypatch.setattr(
        linux,
        "read",
        lambda path: cpus.encode() + b"\n" if path.startswith(linux.SYS_CPU) else read(path),
    )


class Kernel:
    """Linux 6.2 to 6.16: each CPU keeps a part of the count to itself until it has a batch (percpu_counter)."""

    CPUS, PAGE = 64, 4096
    BATCH = max(32, 2 * CPUS)

    def __init__(self, monkeypatch, pages):
        self.pages = self.summed = pages
        self.parts = [0] * self.CPUS
        self.mark = self.summed
        self.faults = self.walks = 0
        pretend_kernel(monkeypatch, "6.8.0", f"0-{self.CPUS - 1}")
        cpus = linux.read
        monkeypatch.setattr(linux, "read", lambda path: self.read(path) or cpus(path))
        monkeypatch.setattr(linux, "reset_mark", self.reset)
        monkeypatch.setattr(
            linux, "faults_and_mark", lambda: ((self.faults, 0), max(self.mark, self.summed, 0) * self.PAGE)
        )

    def move(self, pages, cpu):
        """Some pages come or go on one CPU."""
        self.faults += max(0, pages)
        sign = 1 if pages > 0 else -1
        while pages:
            if sign < 0:
                self.mark = max(self.mark, self.summed)  # update_hiwater_rss
            some = sign * min(abs(pages), self.BATCH - sign * self.parts[cpu])
            pages -= some
            self.pages += some
            self.parts[cpu] += some
            if abs(self.parts[cpu]) >= self.BATCH:
                self.summed, self.parts[cpu] = self.summed + self.parts[cpu], 0

    def reset(self):
        self.mark = self.summed

    def read(self, path):
        kb, summed = self.PAGE // 1024, max(0, self.summed)  # percpu_counter_read_positive
        if path.endswith("/status"):
            return b"VmHWM:\t%d kB\nVmRSS:\t%d kB\n" % (max(self.mark, summed) * kb, summed * kb)
        if path.endswith("/statm"):
            return b"1 %d 1 1 0 1 0" % summed
        if path.endswith("/smaps_rollup"):
            self.walks += 1
            return b"55 [rollup]\nRss: %d kB\nPrivate_Clean: 0 kB\nPrivate_Dirty: 1 kB\n" % (self.pages * kb)
        return None


moves = st.lists(st.tuples(st.integers(-1500, 1500), st.integers(0, 63)), max_size=20)


@needs_high_water
@pytest.mark.parametrize("size", [1000, 100_000])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scattered=st.lists(st.integers(-127, 127), max_size=64), program=moves)
def test_a_kernel_that_counts_approximately(monkeypatch, size, scattered, program):
    """Consumed and peak are within the grain that the record tells; exact where the page tables are small."""
    with monkeypatch.context() as patch:
        kernel = Kernel(patch, size)
        on = Machine(process=Process(HighWaterMark()), nvml=NVML, frameworks=())
        for cpu, pages in enumerate(scattered):
            kernel.move(pages, cpu)
        before = highest = kernel.pages
        scope = Scope(on).open()
        for pages, cpu in program:
            kernel.move(max(pages, -kernel.pages), cpu)
            highest = max(highest, kernel.pages)
        scope.close()
        gen = scope.result(Measurement, "x").gen
    consumed = (kernel.pages - before) * kernel.PAGE
    assert gen.precision_bytes == (0 if size == 1000 else 2 * 96 * MB)
    assert abs(gen.consumed_bytes - consumed) <= gen.precision_bytes
    assert gen.peak.precision_bytes == 96 * MB
    assert gen.peak.lo_bytes - 96 * MB <= highest * kernel.PAGE <= gen.peak.hi_bytes + 96 * MB
    assert kernel.walks == (2 if size == 1000 else 0)
