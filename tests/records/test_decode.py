"""Records as JSON: within two kilobytes, and the same again."""

import dataclasses
import json
import re
from datetime import datetime
from typing import Literal, Union, get_args, get_origin, get_type_hints

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import SIZES, TEXTS, UNSHRUNK, plain, records

from ipygpulogger import records as values
from ipygpulogger.records import CellRecord, DeviceUsage, Peak, RamUsage
from ipygpulogger.records.decode import record_from
from ipygpulogger.records.embed import LIMIT_BYTES, SCHEMA, embedded

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
    """At most 2048 bytes in either encoding, valid, and of every record the essential figures, unaltered."""
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
    assert set(again.gen.timeline) <= set(record.gen.timeline)
    if record.cell_id is None or record.cell_id.isascii():
        assert again.cell_id == record.cell_id
    changed = {
        name for name in CellRecord.__dataclass_fields__ if getattr(again, name) != getattr(record, name)
    }
    assert changed <= told | ({"gen", "gpus"} if "timeline" in told else set())
    assert bool(told) == bool(changed)


@slow
@given(records())
def test_the_full_form_comes_back_whole(record):
    """A record is its `to_dict` again, directly and through JSON, and that is valid too."""
    assert record_from(record.to_dict()) == record
    assert record_from(through_json(record.to_dict())) == record
    VALIDATOR.validate(through_json(record.to_dict()))


@slow
@given(records())
def test_plain_values_are_those_of_the_standard_library(record):
    """`to_dict` says what `dataclasses.asdict` says."""
    asdict = dataclasses.asdict(record) | {"started_at": record.started_at.isoformat()}
    assert record.to_dict() == asdict
    assert json.dumps(record.to_dict()) == json.dumps(asdict)


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


@pytest.mark.parametrize(
    ("quality", "hi_bytes"), [("exact", None), ("exact", 9), ("sampled", 5), ("bounded", None)]
)
def test_a_peak_without_its_usual_bound(quality, hi_bytes):
    """What bounds a peak is left unsaid only where the quality says it."""
    record = plain(gen=RamUsage(0, 1, Peak(5, hi_bytes, quality)))
    assert record_from(embedded(record)) == record


@pytest.mark.parametrize("count", [1, 4, 8, 16])
def test_what_goes_first_is_what_matters_least(count):
    """Long courses go before devices' ladders, and those before any device."""
    course = tuple((i * 1.375, (1 << 47) + i) for i in range(64))
    gpu = DeviceUsage(
        1 << 46,
        1 << 46,
        Peak(1 << 46, 1 << 46, "exact"),
        0,
        "NVIDIA H100",
        total_bytes=80 << 30,
        free_bytes=1,
        timeline=course,
    )
    gpus = tuple(dataclasses.replace(gpu, index=index, used_bytes=index) for index in range(count))
    ram = RamUsage(0, 1, Peak(1, 1, "exact"), timeline=course)
    found = embedded(plain(gen=ram, gpus=gpus))
    again = record_from(found)
    assert "timeline" in found["left_out"]
    assert [gpu.used_bytes for gpu in again.gpus] == list(range(count))
    assert ("gpus" in found["left_out"]) == (count > 8)
    if count == 1:
        (kept,) = again.gpus
        assert set(kept.timeline) < set(course)
        assert {course[0], course[-1]} <= set(kept.timeline)
        assert dataclasses.replace(kept, timeline=course) == gpus[0]


def test_sixteen_of_everything_at_its_longest():
    """Sixteen devices with the longest figures, no two alike, in a cell that died badly: all their figures stay."""
    sizes = iter(range(1 << 40, 1 << 41))
    gpus = tuple(
        DeviceUsage(
            next(sizes),
            next(sizes),
            Peak(next(sizes), next(sizes), "bounded"),
            index,
            "\0" * 99,
            "u" * 40,
            "nvml" if index % 3 else "cuda",
            attributed=False,
            used_bytes=next(sizes),
            total_bytes=next(sizes),
        )
        for index in range(16)
    )
    text = "\0\u2028\ud800" * 99
    record = plain(
        label=text,
        source=text,
        error=text,
        notes=(text,) * 9,
        cell_id=36 * "x",
        gpus=gpus,
        current_gpu=9,
        time_s=100 / 3,
    )
    found = embedded(record)
    assert len(json.dumps(found, separators=(",", ":"))) <= LIMIT_BYTES
    again = record_from(found)
    assert list(map(essential, again.gpus)) == list(map(essential, gpus))
    assert [peak(gpu.peak) for gpu in again.gpus] == [peak(gpu.peak) for gpu in gpus]
    assert again.cell_id == record.cell_id


def test_the_highest_point_survives_the_thinning():
    """A course that loses points keeps both ends and its highest."""
    course = tuple((i * 1.5, 1 << 45 if i == 41 else 1 << 44) for i in range(64))
    record = plain(gen=RamUsage(0, 1, Peak(1, 1, "exact"), timeline=course), notes=("n" * 190,) * 3)
    found = embedded(record)
    kept = record_from(found).gen.timeline
    assert found["left_out"] == ["timeline"]
    assert 3 <= len(kept) < 64
    assert {course[0], course[41], course[-1]} <= set(kept) <= set(course)


@settings(deadline=None, max_examples=30)
@given(st.integers(17, 400), st.integers(1, (1 << 63) - 1), TEXTS, st.text(max_size=50_000))
def test_more_than_anybody_has(count, size_bytes, text, cell_id):
    """Hundreds of devices, the longest names: as many devices as have room, and it is said."""
    gpu = DeviceUsage(
        size_bytes, size_bytes, Peak(size_bytes, None, "sampled"), 0, text, used_bytes=size_bytes
    )
    gpus = tuple(dataclasses.replace(gpu, index=i, before_bytes=i) for i in range(count))
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


# -- what is no record -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"label": None}, "label is not a text"),
        ({"label": 3}, "label is not a text"),
        ({"time_s": "1"}, "time_s is not a number"),
        ({"time_s": float("nan")}, "time_s is not a number"),
        ({"time_s": 10**400}, "time_s is a number that no machine can have measured"),
        ({"time_s": -1}, "time_s is a number that no machine can have measured"),
        ({"execution_count": 2**63}, "execution_count is a number that no machine can have measured"),
        ({"time_s": True}, "time_s is not a number"),
        ({"started_at": "yesterday"}, "started_at is not a time"),
        ({"started_at": 0}, "started_at is not a time"),
        ({"started_at": "2026-01-01T00:00:00"}, "started_at is a time without a zone"),
        ({"status": "fine"}, "status is none of ok, error, interrupted"),
        ({"status": ["ok"]}, "status is none of ok, error, interrupted"),
        ({"execution_count": "4"}, "execution_count is not a whole number"),
        ({"gen": None}, "gen is no object"),
        ({"gen": {"before_bytes": 1, "after_bytes": 2}}, "gen.peak is missing"),
        ({"gen": {"before_bytes": 1.5, "after_bytes": 2}}, "gen.before_bytes is not a whole number"),
        ({"gen": {"before_bytes": True, "after_bytes": 2}}, "gen.before_bytes is not a whole number"),
        ({"gpus": {}}, "gpus is no list"),
        ({"gpus": "GPU"}, "gpus is no list"),
        ({"gpus": [None]}, "gpus[0] is no object"),
        ({"notes": [1]}, "notes[0] is not a text"),
        (
            {"owners": [{"name": "x", "size_bytes": 1, "device": "cpu", "kind": "?"}]},
            "owners[0].kind is none of",
        ),
        ({"gpu_columns": []}, "gpu_columns is no object with an index"),
        (
            {"gpu_columns": {"index": [0, 1], "used_bytes": [1]}},
            "gpu_columns.used_bytes is of another length",
        ),
        ({"gpu_columns": {"index": [0], "before_bytes": 1}}, "gpus[0].after_bytes is missing"),
    ],
)
def test_what_is_wrong_is_named(change, says):
    """One sentence with the field that is wrong."""
    with pytest.raises(ValueError, match=rf"^this is no record of a cell: {re.escape(says)}[^\n]*$"):
        record_from(embedded(plain()) | change)


@pytest.mark.parametrize("found", [None, 3, "x", [], [1], {}, {"label": "In [1]"}])
def test_what_is_no_record_at_all(found):
    """Any other value: `ValueError`, in one sentence."""
    with pytest.raises(ValueError, match=r"^this is no record of a cell: [^\n]+$"):
        record_from(found)


ESSENTIAL = ("label", "started_at", "time_s", "gen", "status", "source")


@pytest.mark.parametrize("name", ESSENTIAL)
def test_no_record_without_its_essentials(name):
    """What every record has must be there, and the published schema says the same."""
    found = embedded(plain())
    del found[name]
    with pytest.raises(ValueError, match=f"{name} is missing"):
        record_from(found)
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(found)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | SIZES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@slow
@given(records(), st.data())
def test_a_damaged_record_is_refused_or_read_but_nothing_else(record, data):
    """Any value in any place: a record or `ValueError`, and what is read is valid by the published schema."""
    found = through_json(data.draw(st.sampled_from([embedded(record), record.to_dict()])))
    holder = found
    while True:
        key = data.draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
        inner = holder[key]
        if not isinstance(inner, (dict, list)) or not inner or data.draw(st.booleans()):
            break
        holder = inner
    holder[key] = data.draw(json_values)
    try:
        again = record_from(found)
    except ValueError as error:
        assert str(error).startswith("this is no record of a cell: ")
        assert "\n" not in str(error)
    else:
        assert record_from(again.to_dict()) == again
        VALIDATOR.validate(through_json(again.to_dict()))


def test_later_versions_may_say_more():
    """Unknown fields are ignored, wherever they stand; the schema allows them."""
    found = embedded(plain())
    found["novel"] = {"a": 1}
    found["gen"]["novel"] = 2
    found["gen"]["peak"]["novel"] = [3]
    assert record_from(found) == plain()
    VALIDATOR.validate(found)


def test_times_as_other_languages_write_them():
    """A Z for UTC, and whole seconds for a time that took no fraction."""
    found = embedded(plain()) | {"started_at": "2026-11-21T00:00:00Z", "time_s": 1}
    again = record_from(found)
    assert again.started_at == plain().started_at
    assert again.time_s == 1.0
    assert type(again.time_s) is float


# -- the published schema ----------------------------------------------------------------------


def test_the_schema_is_a_schema():
    """It is what it says it is."""
    jsonschema.Draft202012Validator.check_schema(PUBLISHED)


KINDS = [kind for kind in vars(values).values() if dataclasses.is_dataclass(kind)]


@pytest.mark.parametrize("kind", [k for k in KINDS if k.__name__ not in ("Measurement", "Diagnosis")])
def test_the_schema_tells_of_every_field(kind):
    """Every field of every value stands in the published schema, with its type and a description."""
    told = (
        PUBLISHED["$defs"][kind.__name__]["properties"] if kind is not CellRecord else PUBLISHED["properties"]
    )
    more = {"left_out", "gpu_columns"} if kind is CellRecord else set()
    hints = get_type_hints(kind, localns={"datetime": datetime})
    assert set(told) == set(hints) | more
    for name, hint in hints.items():
        assert told[name].get("description"), name
        assert {k: v for k, v in told[name].items() if k != "description"} == schema_of(hint), name


def schema_of(hint):
    """The schema of a type."""
    options = get_args(hint)
    if dataclasses.is_dataclass(hint):
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if get_origin(hint) is Literal:
        return {"enum": list(options)}
    if get_origin(hint) is Union or type(hint).__name__ == "UnionType":
        (inner,) = (schema_of(option) for option in options if option is not type(None))
        if "type" in inner:
            return {**inner, "type": [inner["type"], "null"]}
        return {"anyOf": [inner, {"type": "null"}]}
    if get_origin(hint) is tuple and options[-1] is ...:
        return {"type": "array", "items": schema_of(options[0])}
    if get_origin(hint) is tuple:
        items = list(map(schema_of, options))
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if hint is datetime:
        return {"type": "string", "format": "date-time"}
    return {"type": {int: "integer", float: "number", str: "string", bool: "boolean"}[hint]}


def test_the_schema_goes_with_the_package():
    """It is package data, where the package says."""
    import importlib.resources

    assert (
        json.loads(importlib.resources.files("ipygpulogger.records").joinpath(SCHEMA.name).read_text())
        == PUBLISHED
    )
