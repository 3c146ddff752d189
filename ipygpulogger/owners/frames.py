"""Exceptions, their tracebacks and frames, read without running any code of the user's.

Whose code a frame runs, what its variables are, and emptying it.
"""

from __future__ import annotations

import builtins
import functools
import gc
import inspect
import sys
import sysconfig
from collections import Counter
from pathlib import Path
from types import CellType, FrameType, FunctionType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

SHELLS_PACKAGES = {"IPython", "ipykernel", __name__.partition(".")[0]}
CODE_WITH_FAST_LOCALS = 1  # CO_OPTIMIZED: of a function; a cell's own code has its names in a dict
_CODE_THAT_WAITS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_SNAPSHOTS = sys.version_info < (3, 13)  # reading a frame's locals leaves a copy of them in the frame

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
    if _SNAPSHOTS:
        _empty_if_unshared(found)
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
    found = []
    while isinstance(traceback, TracebackType):
        found.append(traceback)
        traceback = traceback.tb_next
    return found


def unique_frames(links: list[TracebackType]) -> list[FrameType]:
    """The frames of these links, each once."""
    return list({id(link.tb_frame): link.tb_frame for link in links}.values())


def empty_frames(errors: list[BaseException]) -> None:
    """Drop the local variables of calls that are over, which these exceptions' tracebacks keep alive.

    The lines of the tracebacks stay readable. Left alone are calls that run, on any thread, generators and
    coroutines that may go on, a module's own names, and the copy that somebody holds from `locals()`.
    """
    emptied = []
    for frame in unique_frames([link for error in errors for link in linked(traceback_of(error))]):
        if _is_modules(frame) or _goes_on(frame):
            continue
        try:
            frame.clear()
        except RuntimeError:  # it goes on; so says Python itself, from 3.13 on
            continue
        emptied.append(frame)
        if _SNAPSHOTS:  # which `clear` leaves there, up to 3.11.7 and 3.12.1 (cpython#113939)
            left = gc.get_referents(frame)
            while left:
                value = left.pop()
                if value is not frame.f_globals and value is not frame.f_builtins:
                    _empty_if_unshared(value)
    _empty_functions(emptied)


def _empty_functions(emptied: list[FrameType]) -> None:
    """Drop what the frames' functions hold, which an emptied frame keeps from Python 3.11 on.

    That is the variables of closures, and default values. A function that somebody else can still reach is
    left alone: as the garbage collector does, we count the references that do not come from among these.
    """
    parts, inner = _functions_of(emptied)
    reached = [key for key in parts if sys.getrefcount(parts[key]) - _IN_DICT > inner[key]]
    while reached:
        part = parts.pop(reached.pop(), None)
        reached += [id(value) for value in _parts_of_function(part) if id(value) in parts]
    for part in parts.values():
        if type(part) is FunctionType:
            part.__defaults__ = part.__kwdefaults__ = None
        elif type(part) is CellType:
            del part.cell_contents


def _functions_of(emptied: list[FrameType]) -> tuple[dict[int, Any], Counter[int]]:
    """By id, the frames' functions with their parts, and how often they are referred to by each other."""
    values = [value for frame in emptied for value in gc.get_referents(frame)]
    found = [value for value in values if type(value) is FunctionType]
    parts: dict[int, Any] = {}
    inner: Counter[int] = Counter()
    while found:
        part = found.pop()
        inner[id(part)] += 1
        if id(part) not in parts:
            parts[id(part)] = part
            found += _parts_of_function(part)
    return parts, inner


def _parts_of_function(part: Any) -> list[Any]:
    """What a function is made of: its closure, the cells in that, the functions in these; its defaults."""
    values = gc.get_referents(part)
    if type(part) is FunctionType:
        names = part.__globals__, vars(builtins)
        values = [value for value in values if not any(value is shared for shared in names)]
        return [value for value in values if type(value) in (tuple, dict)]
    return [value for value in values if type(value) in (FunctionType, CellType)]


def _is_modules(frame: FrameType) -> bool:
    return not frame.f_code.co_flags & CODE_WITH_FAST_LOCALS and frame.f_locals is frame.f_globals


def _goes_on(frame: FrameType) -> bool:
    """Whether its call runs, or is a generator's that waits: up to Python 3.12 `clear` would end that one."""
    if sys.version_info >= (3, 13):
        return False
    if sys.version_info >= (3, 11):  # the variables, and the code, become the frame's own as the call ends
        return not any(value is frame.f_code for value in gc.get_referents(frame))
    if not frame.f_code.co_flags & _CODE_THAT_WAITS:
        return False  # it is over, or `clear` refuses
    try:
        frame.f_lineno = 0  # type: ignore[misc] # never allowed; why not tells of the frame's state
    except ValueError as refusal:
        return "'line' trace event" not in str(refusal)
    return True


def is_shells(frame: FrameType) -> bool:
    """Whether it runs code of IPython's or ours."""
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.partition(".")[0] in SHELLS_PACKAGES


def _empty_if_unshared(snapshot: Any) -> None:
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


_AS_VALUE = {"": object()}
_IN_DICT = sys.getrefcount(_AS_VALUE[""])  # of a value that one dict holds, asked so


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
