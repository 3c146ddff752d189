"""A record as a notebook output embeds it: within sixteen kilobytes, and true."""

import json
from dataclasses import replace

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import TEXTS, UNSHRUNK, plain, records

from ipygpulogger.records import (
    AtPeak,
    CellRecord,
    DeviceUsage,
    LineUsage,
    OutOfMemory,
    Owner,
    Peak,
    RamUsage,
)
from ipygpulogger.records.explained import CallStack
from ipygpulogger.storage.decode import record_from
from ipygpulogger.storage.embed import LIMIT_BYTES, SCHEMA, embedded

PUBLISHED = json.loads(SCHEMA.read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(PUBLISHED)
slow = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=60, phases=UNSHRUNK)


def through_json(found):
    return json.loads(json.dumps(found))


def essential(gpu):
    return gpu.index, gpu.backend, gpu.attributed, gpu.before_bytes, gpu.after_bytes, gpu.used_bytes


def peak(found):
    return found.lo_bytes, found.hi_bytes, found.quality


@slow
@given(records())
def test_the_embedded_form_is_small_and_what_it_says_is_true(record):
    """At most 16384 bytes in either encoding, valid, and of every record the essential figures, unaltered."""
    found = embedded(record)
    for ascii_only in (True, False):
        assert len(json.dumps(found, separators=(",", ":"), ensure_ascii=ascii_only).encode()) <= LIMIT_BYTES
    VALIDATOR.validate(through_json(found))
    again = record_from(through_json(found))
    told = set(found.get("left_out", ()))
    for name in ("started_at", "time_s", "execution_count", "status", "current_gpu"):
        assert getattr(again, name) == getattr(record, name)
    for name in ("before_bytes", "after_bytes"):
        assert getattr(again.gen, name) == getattr(record.gen, name)
    assert peak(again.gen.peak) == peak(record.gen.peak)
    assert again.gen.peak.precision_bytes == record.gen.peak.precision_bytes
    assert list(map(essential, again.gpus)) == list(map(essential, record.gpus))
    assert [peak(gpu.peak) for gpu in again.gpus] == [peak(gpu.peak) for gpu in record.gpus]
    assert again.gen.timeline in (record.gen.timeline, ())
    if record.cell_id is None or record.cell_id.isascii():
        assert again.cell_id == record.cell_id
    changed = {
        name for name in CellRecord.__dataclass_fields__ if getattr(again, name) != getattr(record, name)
    }
    assert changed <= told
    assert bool(told) == bool(changed)


def test_a_small_record_is_kept_whole_and_without_what_says_nothing():
    """Nothing left out, nothing None, empty or a default; and the same record again."""
    record = plain()
    assert embedded(record) == {
        "label": "In [4]",
        "started_at": "2026-11-21T00:00:00+00:00",
        "time_s": 0.5,
        "gen": {"before_bytes": 0, "after_bytes": 1, "peak": {"lo_bytes": 1, "quality": "exact"}},
        "execution_count": 4,
        "cell_id": "abc",
        "source": "x = 1",
        "status": "ok",
    }
    assert record_from(embedded(record)) == record


@pytest.mark.parametrize(("quality", "hi_bytes"), [("exact", 9), ("sampled", 5), ("bounded", None)])
def test_a_peak_without_its_usual_bound(quality, hi_bytes):
    """What bounds a peak is left unsaid only where the quality says it."""
    record = plain(gen=RamUsage(0, 1, Peak(5, hi_bytes, quality)))
    assert record_from(embedded(record)) == record


COURSE = tuple((i * 1.375, (1 << 47) + i) for i in range(64))
GPU = DeviceUsage(1 << 46, 1 << 46, Peak(1 << 46, 1 << 46, "bounded"), 0, "NVIDIA H100", timeline=COURSE)


@pytest.mark.parametrize(("count", "more", "lost"), [
    (1, {}, None),
    (16, {}, {"gen", "gpus"}),
    (32, {"lines": (LineUsage(1, "x", 1, 0.1, GPU, (GPU,) * 9),) * 9}, {"gen", "gpus", "lines"}),
])  # fmt: skip
def test_what_goes_first_is_what_matters_least(count, more, lost):
    """Series, then whole fields: every device's figures stay."""
    gpus = tuple(replace(GPU, index=index, used_bytes=index) for index in range(count))
    ram = RamUsage(0, 1, Peak(1, 1, "exact"), timeline=COURSE)
    owners = tuple(Owner("x", 1, "cpu", "variable") for _ in range(9))
    record = plain(gen=ram, gpus=gpus, owners=owners, notes=("n",) * 9, **more)
    found = embedded(record)
    assert set(found.get("left_out", ())) == (lost or set())
    again = record_from(found)
    assert [one.used_bytes for one in again.gpus] == list(range(count))
    assert (again == record) == (lost is None)
    if lost:
        assert (again.gen.timeline, len(again.owners), again.lines) == ((), 9, ())


@settings(deadline=None, max_examples=30)
@given(st.integers(60, 400), st.integers(1, (1 << 63) - 1), TEXTS, st.text(max_size=50_000))
def test_more_than_anybody_has(count, size_bytes, text, cell_id):
    """Hundreds of devices, the longest names: as many devices as have room, and it is said."""
    gpu = DeviceUsage(
        size_bytes, size_bytes, Peak(size_bytes, None, "sampled"), 0, text, used_bytes=size_bytes
    )
    gpus = tuple(replace(gpu, index=i, before_bytes=i) for i in range(count))
    record = plain(label=text * 9, source=text * 9, cell_id=cell_id, error=text * 9, gpus=gpus)
    found = embedded(record)
    assert len(json.dumps(found, separators=(",", ":"))) <= LIMIT_BYTES
    VALIDATOR.validate(found)
    again = record_from(found)
    assert list(map(essential, again.gpus)) == list(map(essential, gpus[: len(again.gpus)]))
    assert again.gpus
    assert len(again.gpus) == count or "gpus" in found["left_out"]
    if len(again.cell_id) < len(cell_id):
        assert "cell_id" in found["left_out"]


def test_half_a_character_does_not_stop_a_message():
    """A lone surrogate, which has no UTF-8, is replaced and that is said."""
    found = embedded(plain(source="'\ud800'", cell_id="\udfff"))
    assert found["left_out"] == ["cell_id", "source"]
    json.dumps(found, ensure_ascii=False).encode()


KINDS = ("parameters", "activations", "temporaries")
ROWS = tuple(
    AtPeak(f"cuda:{n // 90}", KINDS[n % 3], f"x{n} = f(x)", f"In [7]:{n}", (180 - n) << 20, 1 + n)
    for n in range(180)
)


@pytest.mark.parametrize(
    ("record", "name", "rows_of"),
    [
        (plain(at_peak=ROWS), "at_peak", lambda record: record.at_peak),
        (
            plain(out_of_memory=OutOfMemory("cuda:0", *[None] * 6, 0, 0, (), "Use less.", ROWS)),
            "out_of_memory",
            lambda record: record.out_of_memory.alive,
        ),
    ],
    ids=["at the peak", "when an allocation failed"],
)
def test_of_many_rows_the_sums_by_kind_stay(record, name, rows_of):
    """The largest rows stay, the others are added up by device and kind; no byte and no block is lost."""
    found = embedded(record)
    assert found["left_out"] == [name]
    again = rows_of(record_from(through_json(found)))
    assert set(ROWS[:6]) < set(again)
    assert {row.name for row in again if not row.place} == {"others"}
    for size in ("size_bytes", "blocks"):
        assert sums(again, size) == sums(ROWS, size)


def test_the_calls_behind_rows_go_first():
    """All rows stay, and nothing but their calls is lost; where there is room the calls stay too."""
    calls = tuple(CallStack(1 << 20, (f"In [7]:{n}", "train.py:41 step" * 9)) for n in range(3))
    rows = tuple(replace(row, stacks=calls) for row in ROWS[:40])
    for record in (
        plain(at_peak=rows),
        plain(out_of_memory=OutOfMemory("cuda:0", *[None] * 6, 0, 0, (), "", rows)),
    ):
        found = embedded(record)
        assert found["left_out"] == ["at_peak" if record.at_peak else "out_of_memory"]
        again = record_from(through_json(found))
        assert (again.at_peak or again.out_of_memory.alive) == ROWS[:40]
    few = plain(at_peak=rows[:9])
    assert record_from(through_json(embedded(few))) == few


def sums(rows, size):
    found = {}
    for row in rows:
        found[row.device, row.kind] = found.get((row.device, row.kind), 0) + getattr(row, size)
    return found
