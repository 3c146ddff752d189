"""The notebook that is run, and its kernel."""

from __future__ import annotations

import contextlib
import importlib
import json
import warnings
from typing import TYPE_CHECKING, Any

from ..records.units import is_utf8
from ..runtime.errors import first_line, why
from .arguments import BadRequest

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path) -> Any:
    """Return a notebook that can be executed, as nbformat represents it.

    Raises:
        BadRequest: It is missing or broken, or nbformat is not installed.
    """
    nbformat = installed("nbformat")
    try:
        source = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BadRequest(f"notebook not found: {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} cannot be read: {why(error)}") from error
    try:
        raw = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{path} is not a notebook: no JSON ({first_line(error)})") from error
    if not isinstance(raw, dict) or "nbformat" not in raw:
        raise BadRequest(f"{path} is not a notebook: it names no nbformat")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nbformat warns when it gives a cell its missing id
            notebook = nbformat.reads(source, as_version=4)
            nbformat.validate(notebook)
    except Exception as error:  # nbformat raises many kinds for a broken notebook
        raise BadRequest(f"{path} is a broken notebook: {first_line(error)}") from error
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type == "code" and not is_utf8(cell.source):
            raise BadRequest(
                f"{path}: cell {number} has an unpaired surrogate, which cannot be encoded as UTF-8"
            )
    return notebook


def text_of(notebook: Any) -> str:
    """Return the notebook as its file has it."""
    text: str = installed("nbformat").writes(notebook)
    return text


def installed(name: str) -> Any:
    """Import a library of the extra ``run``.

    Raises:
        BadRequest: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadRequest(f"run needs {error.name}: pip install 'ipygpulogger[run]'") from error


def check_kernel(specs: Any, name: str, wanted_by: str) -> None:
    """Refuse a kernel that is not installed, or not for Python.

    Raises:
        BadRequest: It is refused; where another one can be chosen, the message has the names.
    """
    if name not in specs.find_kernel_specs():
        lacks = f"{wanted_by} asks for the kernel {name!r}, which" if wanted_by else f"the kernel {name!r}"
        raise BadRequest(f"{lacks} is not installed here; {_choice(specs)}")
    language = specs.get_kernel_spec(name).language
    if not _is_python(language):
        raise BadRequest(f"the kernel {name!r} speaks {language}; only Python can be measured")


def _choice(specs: Any) -> str:
    found = []
    for name in sorted(specs.find_kernel_specs()):
        with contextlib.suppress(Exception):  # a broken one
            if _is_python(specs.get_kernel_spec(name).language):
                found.append(name)
    if not found:
        return "install one with pip install ipykernel"
    return f"choose one with --kernel: {', '.join(found)}"


def _is_python(language: str) -> bool:
    return language.lower() in ("python", "")
