"""A warning before the kernel kills the notebook: in a cell's report, while it runs, and for a budget."""

import pytest
from handmade import MB, cell, ram
from limited import GB, container
from memory import blip
from places import TIMEOUT_S
from reports import run

from ipygpulogger import IPyGPULogger
from ipygpulogger.engine.machine import machine
from ipygpulogger.notebook.enrichers import little_left
from ipygpulogger.records import ChildrenUsage, Peak
from ipygpulogger.sources.system.ram_limit import RamLimits


@pytest.fixture
def box(tmp_path, monkeypatch):
    """This process lives in a simulated container of 8 GB; returns what sets how much is in use there."""
    simulated = container(tmp_path / "machine")
    monkeypatch.setattr(machine(), "limits", RamLimits(simulated.root))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)

    def uses(size_bytes, **more):
        simulated.group_of_v2(current=int(size_bytes), max=8 * GB, **more)

    return uses


def peaking(peak_mb, after_mb=100, **fields):
    """A cell that began with 100 MB."""
    return cell(ram(100 * MB, after_mb * MB, peak_mb * MB), **fields)


LEFT, AT_PEAK, OF = "RAM left", "RAM left at the peak", "of 8.0 GB (container limit)"
CELLS = [
    (4096, peaking(1100), None),
    (7800, peaking(110), f"{LEFT}: 392 MB {OF}"),
    (7800, peaking(1000), f"{LEFT}: 392 MB {OF}; this cell needs 900 MB"),
    (7100, peaking(900), f"{AT_PEAK}: 292 MB {OF}"),
    (7100, peaking(900, after_mb=900), None),  # what it took is in use now, and there is enough
    (7800, peaking(102), None),  # a quiet cell
    (7800, peaking(100, after_mb=10), None),  # one that gave memory back
    (7100, peaking(100, children=ChildrenUsage(0, 0, Peak(900 * MB, None, "sampled"), 2)),
     f"{AT_PEAK}: 192 MB {OF}"),
]  # fmt: skip


@pytest.mark.parametrize(("used_mb", "record", "note"), CELLS)
def test_what_is_said_of_a_cell(box, used_mb, record, note):
    """Little is left, less than the next run needs, or little was left at the peak; children count."""
    box(used_mb * MB)
    assert little_left(record, None) == (() if note is None else (note,))


def test_what_was_seen_while_it_ran_is_said(box):
    """The least of it, even where there is enough in the end, and of a cell that itself took nothing."""
    box(8000 * MB)
    seen = machine().limits.short(0, 0)
    box(4096 * MB)
    assert little_left(peaking(100), seen) == ("RAM left at the peak: 192 MB of 8.0 GB (container limit)",)
    assert little_left(peaking(1100), seen) == little_left(peaking(100), seen)


def test_a_cell_in_a_tight_container(shell, box, capsys, fresh_mark):
    """A real cell: its report and its record say it, under `quiet` as well; with room nothing is said."""
    il = IPyGPULogger(report="text", quiet="1GB").start()
    shell.user_ns["blip"] = blip
    box(4096 * MB)
    run(shell, "blip(32)")
    assert il.record.notes == ()
    box(8180 * MB)
    capsys.readouterr()
    fresh_mark()
    run(shell, "blip(32)")
    il.stop()
    (note,) = il.record.notes
    assert note.startswith("RAM left: 12 MB of 8.0 GB (container limit); this cell needs 3")
    assert note in capsys.readouterr().out


NUMPYS = "try:\n    raise type('_ArrayMemoryError', (MemoryError,), {})\nexcept MemoryError:\n    1 / 0"
FAILED = {
    **dict.fromkeys(("raise MemoryError", NUMPYS, "raise OSError(12, 'Cannot allocate memory')"), True),
    'raise RuntimeError("DefaultCPUAllocator: can\'t allocate memory: you tried")': True,
    "raise MemoryError('std::bad_alloc: out_of_memory: CUDA error')": False,  # a device's
    "raise RuntimeError('odd')": False,
    "try:\n    raise MemoryError\nexcept MemoryError:\n    pass": False,
}


@pytest.mark.parametrize(("code", "is_told"), FAILED.items())
def test_a_cell_that_failed_for_lack_of_ram(shell, il, box, code, is_told):
    """The allocation consumed nothing; a container's limit would have killed, so that is not why."""
    box(8000 * MB)
    run(shell, code)
    card = il.record.out_of_memory
    said = card and (card.device, card.free_bytes, card.advice)
    told = (
        "Use less at once: it is not known how much was asked for, and the limit is 64.0 GB (this machine)."
    )
    assert (said == ("cpu", 60 * GB, told)) == is_told
    assert not any("left" in note for note in il.record.notes)


def test_a_long_cell_is_warned_while_it_runs(box, running):
    """On its live line, as soon as a twentieth is left; the least of it is kept for the report."""
    place = running.place
    assert place.shown.acquire(timeout=TIMEOUT_S)
    assert place.told[0].notes == ("Over budget",)
    for used_bytes in (8100 * MB, 7900 * MB):
        box(used_bytes)
        for _ in range(2):
            assert place.shown.acquire(timeout=TIMEOUT_S)
    assert place.shown.acquire(timeout=TIMEOUT_S)
    running.cell.end()
    notes = {measurement.notes for measurement in place.told if not isinstance(measurement, str)}
    assert ("Over budget", "RAM left: 92 MB of 8.0 GB (container limit)") in notes
    assert running.cell.tightest.left_bytes == 92 * MB


def test_what_was_killed_is_said_once_by_the_next_kernel(shell, box, capsys):
    """When the logger starts; not with reports switched off, which leaves it to the next."""
    box(GB, kills=1)
    said = "Linux killed 1 process of this container for lack of memory (limit 8.0 GB).\n"
    for report, count in (("none", 0), ("text", 1), ("text", 0)):
        IPyGPULogger(report=report).start().stop()
        assert capsys.readouterr().out.count(said) == count
