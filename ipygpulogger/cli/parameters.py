"""A notebook's parameters, as in papermill: a cell of assignments after the cell tagged ``parameters``."""

from __future__ import annotations

import contextlib
import json
import keyword
import math
from typing import TYPE_CHECKING, Any

from ..runtime.errors import why

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEFAULTS, INJECTED = "parameters", "injected-parameters"  # tags
_DEPTH = 50  # Python's own parser allows 200 nested brackets


def typed(text: str) -> Any:
    """Return a value from the command line as None, a bool, an int, a float, or else as the text itself."""
    words = {"True": True, "False": False, "None": None}
    if text in words:
        return words[text]
    for kind in int, float:
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def read(path: Path) -> dict[str, Any]:
    """Return the parameters in a file of JSON, or of YAML if PyYAML is installed.

    Raises:
        ValueError: The file is missing, or does not hold parameters; in one sentence.
    """
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the file of parameters {path} cannot be read: {why(error)}") from error
    try:
        found = json.loads(source)
    except (ValueError, RecursionError) as problem:
        try:
            import yaml
        except ImportError as error:
            raise ValueError(f"{path} is not JSON ({problem}); to read YAML: pip install pyyaml") from error
        try:
            found = yaml.safe_load(source)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            said = " ".join(str(error).split())
            raise ValueError(f"{path} is neither JSON nor YAML: {said}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no parameters: write them as name: value, one a line")  # noqa: TRY004 - as above
    return found


def inject(notebook: Any, parameters: Mapping[Any, Any]) -> bool:
    """Put the parameters where papermill does.

    That is in place of a cell tagged ``injected-parameters``, else after the first cell tagged
    ``parameters``, else on top.

    Returns:
        Whether the notebook has a cell of either tag.

    Raises:
        ValueError: A name is not a valid identifier, or a value is nested too deep.
    """
    for name in parameters:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"{name!r} is not a valid name of a variable")
    from nbformat.v4 import new_code_cell

    lines = [f"{name} = {_code(value)}" for name, value in parameters.items()]
    cell: Any = new_code_cell(  # type: ignore[no-untyped-call, unused-ignore]
        "\n".join(["# Parameters", *lines]), metadata={"tags": [INJECTED]}
    )
    if (notebook.nbformat, notebook.nbformat_minor) < (4, 5):
        del cell["id"]
    else:
        cell["id"] = INJECTED  # the same in every run, so that two runs can be compared
    tags = [set(other.metadata.get("tags", ())) for other in notebook.cells]
    injected = next((i for i, found in enumerate(tags) if INJECTED in found), None)
    defaults = next((i for i, found in enumerate(tags) if DEFAULTS in found), None)
    if injected is not None:
        notebook.cells[injected] = cell
    else:
        notebook.cells.insert(0 if defaults is None else defaults + 1, cell)
    return (injected, defaults) != (None, None)


def _code(value: Any, depth: int = 0) -> str:
    """Return the value as Python code; a value without a literal, such as a date of YAML, as a string."""
    if depth > _DEPTH:
        raise ValueError("a parameter refers to itself, or its lists and dicts are nested too deep")
    if isinstance(value, dict):
        members = (f"{_code(key)}: {_code(member, depth + 1)}" for key, member in value.items())
        return f"{{{', '.join(members)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_code(member, depth + 1) for member in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value if isinstance(value, (bool, int, float, str, type(None))) else str(value))
