"""The IPython shell of this process, the cells that run in it, and which code is the user's."""

from __future__ import annotations

import functools
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

from .objects import walk_stack

_SOURCE_CHARACTERS = 120


def current_shell() -> Any:
    """Return the IPython shell of this process, or None; IPython is not imported to find out."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module else None


def cells_behind(frame: FrameType | None) -> Iterator[tuple[Any, int | None]]:
    """Yield the `ExecutionInfo` and the execution count of each cell that led to a frame, innermost first."""
    for caller in walk_stack(frame):
        if caller.f_code.co_name == "run_cell_async":
            names = caller.f_locals
            if names.get("info") is not None:
                yield names["info"], getattr(names.get("result"), "execution_count", None)


def first_line(source: str) -> str:
    """Return the first line of a cell's text, shortened."""
    lines = source.strip().splitlines()
    return lines[0][:_SOURCE_CHARACTERS] if lines else ""


def error_of(result: Any) -> BaseException | None:
    """Return what ended a cell, from IPython's result, which is None while that goes through IPython."""
    if result is None:
        return sys.exc_info()[1]
    return getattr(result, "error_before_exec", None) or getattr(result, "error_in_exec", None)


def was_interrupted(error: BaseException) -> bool:
    """Return whether a cell's exception is the user's interrupt: during `await` its task is cancelled."""
    module: Any = sys.modules.get("asyncio.exceptions")  # nothing is cancelled before it is imported
    return isinstance(error, (KeyboardInterrupt, *((module.CancelledError,) if module else ())))


OUR_PACKAGE = __name__.partition(".")[0]
_SHELL_PACKAGES = {"IPython", "ipykernel", OUR_PACKAGE}

# A C accessor, which no class of the user's can override.
module_namespace: Callable[[Any], Any] = vars(ModuleType)["__dict__"].__get__


def is_shell_code(frame: FrameType) -> bool:
    """Return whether a frame runs code of IPython's or ours."""
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.partition(".")[0] in _SHELL_PACKAGES


def is_users_module(module: Any) -> bool:
    """Return whether a module is the user's own; the notebook itself is none."""
    if not issubclass(type(module), ModuleType):
        return False
    namespace = module_namespace(module)
    file = namespace.get("__file__")
    if type(file) is not str or not is_users_file(file):  # first: nearly all end here
        return False
    name = namespace.get("__name__")
    if type(name) is not str or name in ("__main__", "__mp_main__"):
        return False
    return name.partition(".")[0] not in _SHELL_PACKAGES


@functools.cache
def is_users_file(file: str) -> bool:
    """Return whether a file of code is neither installed nor the standard library's."""
    path = os.path.normcase(file)
    if "<" in path or any(folder in path for folder in _INSTALLED):
        return False
    return not path.startswith(_LIBRARY)


_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
# The folders of the standard library and of packages. As texts: a `Path` for each of a kernel's six hundred
# modules takes 4 ms.
_LIBRARY = tuple(
    {
        os.path.join(os.path.normcase(path), "")  # noqa: PTH118 - with a separator at its end
        for name, path in sysconfig.get_paths().items()
        if name.endswith(("stdlib", "lib"))
    }
)


_NUMBERED = re.compile(r"<ipython-input-(\d+)-")
_NEWLINE = re.compile("\r\n|\r|\n")  # as Python counts lines; `splitlines` knows more ends


def is_a_cells(shell: Any, file: str) -> bool:
    """Return whether a file name is that of a cell's code, which only IPython's compiler knows."""
    known: Any = getattr(shell.compile, "_filename_map", None)
    if known is None:  # before IPython 8
        known = getattr(linecache, "_ipython_cache", {})
    return file in known


def place_of(file: str) -> tuple[str, int]:
    """Return the label of the cell whose code a file is, else the file's name; and the lines above it."""
    shell = current_shell()
    if shell is not None and is_a_cells(shell, file):
        return place_of_cell(shell, file)
    return os.path.basename(file), 0  # noqa: PTH119 - as below


def place_of_cell(shell: Any, file: str) -> tuple[str, int]:
    """Return the label of a cell's file, and how many lines of the cell come before the first compiled."""
    code = "".join(linecache.getlines(file)).rstrip()
    number = _number(shell, file, code)
    if number is None:
        return "an earlier cell", 0
    inputs, compiled = shell.history_manager.input_hist_raw, lines_of(code)
    # The body of `%%capture` runs as a cell of its own, to which IPython 9 gives the number of the next one.
    for candidate in (number, number - 1):
        if 0 < candidate < len(inputs):
            written = lines_of(inputs[candidate])
            above = len(written) - len(compiled)
            own = written[max(0, above) :]
            # A magic may have changed the first of several lines.
            if own[1:] == compiled[1:] and (len(compiled) > 1 or own == compiled) and above >= 0:
                return f"In [{candidate}]", above
    return f"In [{number}]", 0


def lines_of(text: str) -> list[str]:
    """Return the lines of a text as Python counts them, without the empty ones at its end."""
    return _NEWLINE.split(text.rstrip())


def _number(shell: Any, file: str, compiled: str) -> int | None:
    """Return the number of the cell that was compiled under this name, of several the latest."""
    known = getattr(shell.compile, "_filename_map", {})
    if file in known:
        return int(known[file])
    if found := _NUMBERED.match(file):
        return int(found[1])
    inputs = shell.history_manager.input_hist_parsed  # ipykernel with IPython 7
    return next((n for n in reversed(range(len(inputs))) if inputs[n].rstrip() == compiled), None)
