"""What a record prints as: one readable line, with the figures that matter."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from made import UNSHRUNK, records
from memory import MB

from ipygpulogger import CellRecord, DeviceUsage, History, Measurement, OutOfMemory, Peak, RamUsage
from ipygpulogger.records.explained import requested
from ipygpulogger.runtime import clock

GIB = 1024 * MB

SERIES = tuple((i / 10, i * MB) for i in range(64))
GEN = RamUsage(42 * MB, 170 * MB, Peak(170 * MB, 170 * MB, "exact"), timeline=SERIES)
GPU = DeviceUsage(
    0, 2467 * MB, Peak(3904 * MB, None, "sampled"), 0, "A100", total_bytes=16384 * MB, used_bytes=5465 * MB,
    timeline=SERIES,
)  # fmt: skip
COMMON = {"started_at": clock.utc_now(), "time_s": 0.8071, "gen": GEN}
CELL = {"execution_count": 4, "cell_id": "ab", "source": "x = 1", "status": "error", "error": "ValueError"}
CARD = OutOfMemory(
    "cuda:0", 8000 * MB, 4900 * MB, None, None, None, None, 0, 0, (), "`%gpulog free` gives 3500 MB back."
)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (GEN, "<RamUsage: consumed 128 MB, needed 128 MB, used 170 MB>"),
        (GPU, "<DeviceUsage cuda:0: consumed 2467 MB, needed at least 3904 MB, used 5465 of 16384 MB>"),
        (
            Measurement(label="load", gpus=(GPU,), **COMMON),
            (
                "<Measurement load, 0.807 s: RAM consumed 128 MB, needed 128 MB, used 170 MB;"
                " cuda:0 consumed 2467 MB, needed at least 3904 MB, used 5465 of 16384 MB>"
            ),
        ),
        (
            CellRecord(label="In [4]", **COMMON, **CELL),
            "<CellRecord In [4], 0.807 s, failed: ValueError: RAM consumed 128 MB, needed 128 MB, used 170 MB>",
        ),
        (History(), "<History: 0 cells>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_one_line(value, said):
    """The name, and what a report says of it; printed the same."""
    assert repr(value) == str(value) == said


def test_other_ends():
    """An interrupt is said; what is unknown is left out."""
    cell = CELL | {"status": "interrupted", "error": None}
    assert ", 0.807 s, interrupted: RAM" in repr(CellRecord(label="In [4]", **COMMON, **cell))
    assert ", 0.807 s: RAM" in repr(CellRecord(label="In [4]", **COMMON, **cell | {"status": "ok"}))
    other = replace(GPU, attributed=False, total_bytes=None)
    assert repr(other) == "<DeviceUsage cuda:0: per-process usage unavailable, used 5465 MB>"


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=60, phases=UNSHRUNK)
@given(records())
def test_any_record_is_one_short_line(given):
    """Whatever it holds: no control character of foreign text reaches the terminal."""
    for value in (given, given.gen, *given.gpus):
        said = repr(value)
        assert said.isprintable()
        assert len(said) < 1000
    assert repr((given.lines, given.out_of_memory)).isprintable()


@pytest.mark.parametrize(
    ("asked_bytes", "said"),
    [
        (8000 * MB, "8000 MB"),
        (round(7.81 * GIB), "7.81 GiB"),  # what torch's message says of 8000 MB
        (8 * GIB, "8.00 GiB"),
        (8002 * MB, "8002 MB"),
        (GIB, "1024 MB"),
        (1 << 60, "1.0 EB"),
        (22 * MB, "22 MB"),
        (512, "0 MB"),
    ],
)
def test_a_failed_allocation_is_written_no_more_exactly_than_known(asked_bytes, said):
    """A size with all its digits is told in MB; hundredths of a GiB stay; 1000 GiB are TB."""
    assert requested(asked_bytes) == said


def test_a_notebook_shows_more():
    """HTML, made by what is loaded when a record is first displayed; of a value without any its `repr` alone."""
    assert "In [4]" in CellRecord(label="In [4]", **COMMON, **CELL)._repr_html_()
    assert "8000 MB" in CARD._repr_html_()
