"""What each name of a shell is bound to, by identity: whether a cell bound it anew."""

from __future__ import annotations

import sys
from typing import Any


def bindings(shell: Any) -> dict[str, int]:
    """Return, by name as the walk calls it, the `id` of what it is bound to."""
    names = dict(shell.user_ns)  # another thread may change it meanwhile
    found = dict(zip(names, map(id, names.values()), strict=True))
    if not set(map(type, names)) <= {str}:
        found = {name: value for name, value in found.items() if type(name) is str}
    found["last traceback"] = id(getattr(sys, "last_value", None))
    outputs = shell.user_ns.get("_oh")
    if type(outputs) is dict:
        found |= {f"Out[{number}]": id(value) for number, value in list(outputs.items())}
    return found
