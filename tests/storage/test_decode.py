"""Records from JSON: the same again, or one sentence about what is wrong."""

import json
import re

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import SIZES, TEXTS, UNSHRUNK, plain, records

from ipygpulogger.storage.decode import record_from
from ipygpulogger.storage.embed import SCHEMA, embedded

PUBLISHED = json.loads(SCHEMA.read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(PUBLISHED)
slow = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=60, phases=UNSHRUNK)


def through_json(found):
    return json.loads(json.dumps(found))


@slow
@given(records())
def test_the_full_form_comes_back_whole(record):
    """A record is its `to_dict` again, directly and through JSON, and that is valid too."""
    assert record_from(record.to_dict()) == record
    assert record_from(through_json(record.to_dict())) == record
    VALIDATOR.validate(through_json(record.to_dict()))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"label": 3}, "label is not a text"),
        ({"time_s": "1"}, "time_s is not a number"),
        ({"time_s": float("nan")}, "time_s is a number that no machine can have measured"),
        ({"time_s": 10**400}, "time_s is a number that no machine can have measured"),
        ({"execution_count": 2**63}, "execution_count is a number that no machine can have measured"),
        ({"time_s": True}, "time_s is not a number"),
        ({"started_at": "yesterday"}, "started_at is not a time"),
        ({"started_at": "2026-01-01T00:00:00"}, "started_at is a time without a zone"),
        ({"status": "fine"}, "status is none of ok, error, interrupted"),
        ({"execution_count": "4"}, "execution_count is not a whole number"),
        ({"gen": None}, "gen is not an object"),
        ({"gen": {"before_bytes": 1, "after_bytes": 2}}, "gen.peak is missing"),
        ({"gen": {"before_bytes": 1.5, "after_bytes": 2}}, "gen.before_bytes is not a whole number"),
        ({"gpus": "GPU"}, "gpus is not a list"),
        ({"gpus": [None]}, "gpus[0] is not an object"),
        ({"notes": [1]}, "notes[0] is not a text"),
        (
            {"owners": [{"name": "x", "size_bytes": 1, "device": "cpu", "kind": "?"}]},
            "owners[0].kind is none of",
        ),
        ({"gpus": [{"index": 0, "before_bytes": 1}]}, "gpus[0].after_bytes is missing"),
    ],
)
def test_what_is_wrong_is_named(change, says):
    """One sentence with the field that is wrong."""
    with pytest.raises(ValueError, match=rf"^not a valid cell record: {re.escape(says)}[^\n]*$"):
        record_from(embedded(plain()) | change)


@pytest.mark.parametrize("name", ["label", "started_at", "time_s", "gen", "status", "source"])
def test_no_record_without_its_essentials(name):
    """What every record has must be there, and the published schema says the same; nor is another value one."""
    found = embedded(plain())
    del found[name]
    with pytest.raises(ValueError, match=f"{name} is missing"):
        record_from(found)
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(found)
    for other in (None, 3, name, [], [1]):
        with pytest.raises(ValueError, match=r"^not a valid cell record: it is not an object$"):
            record_from(other)


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
        assert str(error).startswith("not a valid cell record: ")
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
