"""The types of a record's fields, for those who read and write files.

The classes of records import neither `datetime` nor the rare parts of a record: few cells have any.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, get_type_hints

from .at_peak import AtPeak
from .line_usage import LineUsage
from .out_of_memory import OutOfMemory

# A class in a dict stays what it is while a test freezes time, which replaces those that modules name.
NAMES: dict[str, Any] = {
    "AtPeak": AtPeak,
    "datetime": datetime,
    "LineUsage": LineUsage,
    "OutOfMemory": OutOfMemory,
}


def types_of(kind: Any) -> dict[str, Any]:
    """Return the type of each field of a class of records, by name."""
    return get_type_hints(kind, localns=NAMES)
