"""A notebook's parameters, as papermill has them: a cell of assignments after the one that is tagged."""

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
_DEPTH = 50  # Python itself reads no more than 200 brackets within each other


def typed(text: str) -> Any:
    """A value from the command line: None, a bool, an int, a float, else the text itself."""
    words = {"True": True, "False": False, "None": None}
    if text in words:
        return words[text]
    for kind in int, float:
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def read(path: Path) -> dict[str, Any]:
    """The parameters in a file of JSON, or of YAML where PyYAML is installed.

    Raises:
        ValueError: There is no such file, or it holds no parameters; in one sentence.
    """
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the parameters {path} cannot be read: {why(error)}") from error
    try:
        found = json.loads(source)
    except (ValueError, RecursionError) as problem:
        try:
            import yaml
        except ImportError as error:
            raise ValueError(f"{path} is no JSON ({problem}); to read YAML: pip install pyyaml") from error
        try:
            found = yaml.safe_load(source)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            said = " ".join(str(error).split())
            raise ValueError(f"{path} is neither JSON nor YAML: {said}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no parameters: write name: value, one a line")  # noqa: TRY004 - as above
    return found


def inject(notebook: Any, parameters: Mapping[Any, Any]) -> bool:
    """Put the parameters where papermill would.

    In the place of a cell tagged ``injected-parameters``, else after the first one tagged
    ``parameters``, else on top.

    Returns:
        Whether the notebook has a cell of either tag.

    Raises:
        ValueError: A name that no variable can have, or a value that no cell can hold.
    """
    for name in parameters:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"no variable can be called {name!r}")
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
    """The value as Python writes it; what has no such form, a date of YAML say, as text."""
    if depth > _DEPTH:
        raise ValueError("a parameter holds itself, or its lists and dicts lie too deep in each other")
    if isinstance(value, dict):
        members = (f"{_code(key)}: {_code(member, depth + 1)}" for key, member in value.items())
        return f"{{{', '.join(members)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_code(member, depth + 1) for member in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value if isinstance(value, (bool, int, float, str, type(None))) else str(value))
