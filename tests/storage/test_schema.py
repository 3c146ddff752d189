"""The published schema tells of every field."""

import dataclasses
import json
from datetime import datetime
from typing import Literal, Union, get_args, get_origin

import jsonschema
import pytest

from ipygpulogger import records as values
from ipygpulogger.records import CellRecord
from ipygpulogger.records.process import Process
from ipygpulogger.storage.decode import types_of
from ipygpulogger.storage.embed import SCHEMA

PUBLISHED = json.loads(SCHEMA.read_text(encoding="utf-8"))


def test_the_schema_is_a_schema():
    """It is what it says it is."""
    jsonschema.Draft202012Validator.check_schema(PUBLISHED)


KINDS = [Process, *filter(dataclasses.is_dataclass, (getattr(values, name) for name in values.__all__))]


@pytest.mark.parametrize(
    "kind", [k for k in KINDS if k.__name__ not in ("Measurement", "BatchEstimate", "Estimate")]
)
def test_the_schema_tells_of_every_field(kind):
    """Every field of every value stands in the published schema, with its type and a description."""
    told = (
        PUBLISHED["$defs"][kind.__name__]["properties"] if kind is not CellRecord else PUBLISHED["properties"]
    )
    more = {"left_out", "process"} if kind is CellRecord else set()
    hints = types_of(kind)
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
