"""Exceptions, their tracebacks and frames, read without running any code of the user's.

Whose code a frame runs, and what its variables are.
"""

from __future__ import annotations

import builtins
import functools
import sys
import sysconfig
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from ..runtime.frames import walk_tb

if TYPE_CHECKING:
    from collections.abc import Callable

SHELLS_PACKAGES = {"IPython", "ipykernel", __name__.partition(".")[0]}
CODE_WITH_FAST_LOCALS = 1  # CO_OPTIMIZED: of a function; a cell's own code has its names in a dict
LOCALS_LEAVE_A_COPY = sys.version_info < (
    3,
    13,
)  # reading a frame's locals leaves a copy of them in the frame

# C accessors, which no class of the user's can override.
namespace_of_module: Callable[[Any], Any] = vars(ModuleType)["__dict__"].__get__
parts_of: Callable[[Any], Any] = vars(BaseException)["args"].__get__
_cause: Callable[[Any], Any] = vars(BaseException)["__cause__"].__get__
_context: Callable[[Any], Any] = vars(BaseException)["__context__"].__get__
traceback_of: Callable[[Any], Any] = vars(BaseException)["__traceback__"].__get__


def chain(error: BaseException | None) -> list[BaseException]:
    """An exception, its causes, its contexts and its group's, each once, the exception itself first."""
    found: list[BaseException] = []
    known: set[int] = set()
    waiting = [error]
    while waiting:
        error = waiting.pop(0)
        if error is None or id(error) in known:
            continue
        known.add(id(error))
        found.append(error)
        waiting += [_cause(error), _context(error)]
        group = getattr(builtins, "BaseExceptionGroup", None)
        if group is not None and issubclass(type(error), group):
            waiting += group.exceptions.__get__(error)
    return found


def frames_of(error: BaseException) -> list[FrameType]:
    """The frames of its traceback, the outermost first."""
    return unique_frames(linked(traceback_of(error)))


def locals_of(frame: FrameType) -> list[tuple[str, Any]]:
    """A frame's local variables; reading them leaves nothing behind in the frame."""
    found = frame.f_locals
    if not frame.f_code.co_flags & CODE_WITH_FAST_LOCALS:
        return list(found.items()) if type(found) is dict else []
    pairs = list(found.items())
    if LOCALS_LEAVE_A_COPY:
        empty_if_unshared(found)
    return pairs


def function_name(frame: FrameType) -> str:
    """The name of its function: "step", or "Net.forward" from Python 3.11 on."""
    name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
    return str(name).replace("<locals>.", "")


def message_of(error: BaseException) -> str:
    """Its text, without asking a class of the user's for it."""
    return " ".join(part for part in parts_of(error) if type(part) is str)


def linked(traceback: Any) -> list[TracebackType]:
    """A traceback, link by link."""
    return list(walk_tb(traceback))


def unique_frames(links: list[TracebackType]) -> list[FrameType]:
    """The frames of these links, each once."""
    return list({id(link.tb_frame): link.tb_frame for link in links}.values())


def is_shells(frame: FrameType) -> bool:
    """Whether it runs code of IPython's or ours."""
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.partition(".")[0] in SHELLS_PACKAGES


def empty_if_unshared(snapshot: Any) -> None:
    """Empty a frame's copy of its locals, unless the user has got hold of it through `locals()`."""
    if type(snapshot) is dict and _references(snapshot) <= _unshared():
        snapshot.clear()


def _references(value: Any) -> int:
    return sys.getrefcount(value)


def _unshared() -> int:
    """How many references a value has that one object holds, asked as above; a debugger adds some."""
    holder: list[dict[str, Any]] = [{}]
    found = holder[0]

    def ask(snapshot: Any) -> int:
        return _references(snapshot)

    return ask(found)


def is_users_module(module: Any) -> bool:
    """Whether a module is neither installed nor the standard library's nor the notebook itself."""
    if not issubclass(type(module), ModuleType):
        return False
    namespace = namespace_of_module(module)
    name, file = namespace.get("__name__"), namespace.get("__file__")
    if type(name) is not str or type(file) is not str or name in ("__main__", "__mp_main__"):
        return False
    return name.partition(".")[0] not in SHELLS_PACKAGES and is_users_file(file)


@functools.cache
def is_users_file(file: str) -> bool:
    """Whether code lies neither where packages are installed nor where the standard library is."""
    path = Path(file)
    if "<" in file or {"site-packages", "dist-packages"}.intersection(path.parts):
        return False
    return not any(path.is_relative_to(library) for library in _LIBRARY)


_LIBRARY = tuple({path for name, path in sysconfig.get_paths().items() if name.endswith(("stdlib", "lib"))})
