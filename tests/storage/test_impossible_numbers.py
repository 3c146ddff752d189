"""A number that no machine can have measured costs its record, and nothing else."""

import json
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import UNSHRUNK, plain

from ipygpulogger import History
from ipygpulogger.records import (
    ChildrenUsage,
    DeviceUsage,
    Heap,
    LineUsage,
    Metric,
    OutOfMemory,
    Owner,
    Peak,
    RamUsage,
    Usage,
)
from ipygpulogger.render import html, text
from ipygpulogger.render.summary import summary
from ipygpulogger.storage.decode import ImpossibleNumberError, from_json, record_from
from ipygpulogger.storage.embed import embedded
from ipygpulogger.storage.formats import json_line

slow = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=25, phases=UNSHRUNK)
HUGE = ["1e300", "NaN", "-Infinity", "1e999", str(2**63), str(-(2**63) - 1), "1" * 4000, "-" + "9" * 5000]
WHOLE = ["0.5", "7.0"]  # where a whole number is due
NEGATIVE = ["-1"]
FULL = plain(
    gen=RamUsage(1, 2, Peak(3, 4, "bounded", 5), Heap(6, 7), Heap(8, 9), ((0.5, 10), (1.5, 11))),
    gpus=(
        DeviceUsage(
            12,
            13,
            Peak(14, 15, "bounded", 16),
            index=0,
            name="x",
            **{
                name: 17
                for name in DeviceUsage.__dataclass_fields__
                if name.endswith("_bytes") and name not in ("before_bytes", "after_bytes")
            },
            reserved_peak=Peak(18, 18, "exact"),
            metrics=(Metric("energy", 19.5, "J"),),
            timeline=((0.5, 20),),
        ),
    ),
    children=ChildrenUsage(21, 22, Peak(23, 24, "bounded"), count=25),
    pinned=Usage(26, 27, Peak(28, 28, "exact")),
    execution_count=29,
    current_gpu=30,
    owners=(Owner("x", 31, "cpu", "variable"),),
    unexplained=(("cpu", 32),),
    lines=(LineUsage(33, "x", 34, 35.5, Usage(36, 37, Peak(38, 38, "exact")), risen=(("cpu", 39),)),),
    out_of_memory=OutOfMemory("cuda:0", 40, 41, 42, 43, 44, 45, 46, 47, (), ""),
)


NEVER_NEGATIVE = {
    *("time_s", "execution_count", "current_gpu", "gpus.0.index", "children.count"),
    *("gen.before_bytes", "gen.after_bytes", "gen.peak.lo_bytes", "gen.peak.precision_bytes"),
    *("children.before_bytes", "children.after_bytes", "children.peak.lo_bytes"),
    *("gen.heap_before.in_use_bytes", "gen.heap_after.kept_bytes", "lines.0.lineno", "lines.0.hits"),
    *(f"gpus.0.{name}_bytes" for name in ("total", "used", "free", "allocated", "reserved", "limit")),
}


def numbers_in(values, before=()):
    """The path of every number in plain values."""
    if isinstance(values, (dict, list, tuple)):
        for key, member in values.items() if isinstance(values, dict) else enumerate(values):
            yield from numbers_in(member, (*before, key))
    elif isinstance(values, (int, float)) and not isinstance(values, bool):
        yield before


def with_number(values, path, number):
    """A record's JSON with this number, as text, in that place."""
    values = json.loads(json.dumps(values))
    holder = values
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = "@"
    return json.dumps(values).replace('"@"', number)


def loaded_with_warnings(path):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        return list(History.load(path)), [str(warning.message) for warning in said]


NUMBERS = list(numbers_in(FULL.to_dict()))


def test_a_negative_number_is_looked_for_where_there_is_one():
    """The list of this test speaks of fields that exist."""
    assert {".".join(map(str, path)) for path in NUMBERS} >= NEVER_NEGATIVE


def impossible_in(path):
    """The numbers that cannot stand at a path."""
    dotted = ".".join(map(str, path))
    is_time = dotted.endswith(("time_s", "value")) or (
        dotted.split(".")[-3:-2] == ["timeline"] and path[-1] == 0
    )
    return HUGE + ([] if is_time else WHOLE) + (NEGATIVE if dotted in NEVER_NEGATIVE else [])


def test_an_impossible_number_is_found_wherever_it_stands():
    """In either form of a record: an error of its own kind."""
    for values in (FULL.to_dict(), embedded(FULL)):
        for path in numbers_in(values):
            for number in impossible_in(path):
                with pytest.raises(ImpossibleNumberError):
                    record_from(from_json(with_number(values, path, number)))


@slow
@given(
    st.sampled_from(NUMBERS),
    st.one_of(
        st.integers(), st.floats(), st.integers(-(10**400), 10**400), st.booleans(), st.text(max_size=3)
    ),
)
def test_any_number_is_read_or_costs_its_record_or_is_refused(tmp_path_factory, path, number):
    """Whatever stands where a number is due: every other record loads, or a ValueError names file and line."""
    log = tmp_path_factory.mktemp("any") / "run.jsonl"
    bad = with_number(FULL.to_dict(), path, json.dumps(number))
    log.write_text(f"{json_line(plain(1))}{bad}\n{json_line(plain(2))}")
    try:
        found, said = loaded_with_warnings(log)
    except ValueError as error:
        assert isinstance(number, (str, bool))
        assert str(error).startswith(f"{log}, line 2: not a valid cell record: ")
    else:
        assert len(found) + len(said) == 3
        assert [found[0], found[-1]] == [plain(1), plain(2)]
        for words in said:
            assert words.startswith(f"{log}, line 2: not a valid cell record: ")
            assert words.endswith("; it is left out") and "\n" not in words and len(words) < 300
        for record in found:
            text.report(record), html.report(record), summary([record], "peak")
