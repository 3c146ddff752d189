"""The batch size of code: by the name of a variable, or the leading dimension of its arrays."""

from __future__ import annotations

import re
from collections import Counter
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..runtime.shell import is_shell_code, is_users_file
from .exceptions import exception_chain, frames_of, locals_of
from .memory_blocks import holding_of
from .referents import own_attribute

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from ..sources import Framework

_NAME = re.compile(r"(?:\w+_)?batch_?size|bsz?", re.IGNORECASE)  # `batch` counts batches in many a loop
_SMALL = 1000  # names: a larger dict holds no settings


def is_a_batch_size(name: str) -> bool:
    """Return whether a variable with this name holds a batch size."""
    return _NAME.fullmatch(name) is not None


class Batch(NamedTuple):
    """A number that the memory of the failed code probably grows with.

    Attributes:
        name: The variable, "batch_size"; "" if it is the leading dimension of several arrays.
        size: The number.
    """

    name: str
    size: int

    def of_size(self, size: int) -> str:
        """Return another size of the batch as the report writes it: "`batch_size = 32`"."""
        return f"`{self.name} = {size}`" if self.name else f"a leading dimension of {size}"


def find_batch(error: BaseException | None, shell: Any, frameworks: Sequence[Framework]) -> Batch | None:
    """Return the variable nearest to the error, named like a batch size, or the arrays' leading dimension.

    Args:
        error: What ended the cell.
        shell: IPython's.
        frameworks: Those of this process.
    """
    frames = [
        frame
        for one in exception_chain(error)
        for frame in reversed(frames_of(one))
        if not is_shell_code(frame)
    ]
    users = [
        frame
        for frame in frames
        if frame.f_globals is shell.user_ns or is_users_file(frame.f_code.co_filename)
    ]
    for names in _namespaces(users):
        for name, value in names:
            if type(value) is int and value > 0 and type(name) is str and is_a_batch_size(name):
                return Batch(name, value)
    return _leading_dimension(users, shell, frameworks)


def _namespaces(frames: list[FrameType]) -> Iterator[list[tuple[Any, Any]]]:
    """Yield the names that each frame sees: its locals, those in its objects and dicts, its globals."""
    for frame in frames:
        names = locals_of(frame)
        yield names
        yield from (names_in(value) for _, value in names)
    for names in {id(frame.f_globals): list(frame.f_globals.items()) for frame in frames}.values():
        yield names
        yield from (names_in(value) for name, value in names if name[:1] != "_")


def names_in(value: Any) -> list[tuple[Any, Any]]:
    """Return the settings in a dict or in an object's own attributes, such as `args.batch_size`."""
    if type(value) is not dict:
        if issubclass(type(value), (type, ModuleType)):
            return []
        value = own_attribute(value, "__dict__")
    return list(value.items()) if type(value) is dict and len(value) <= _SMALL else []


def _leading_dimension(frames: list[FrameType], shell: Any, frameworks: Sequence[Framework]) -> Batch | None:
    """Return the leading dimension that the most arrays of these frames have, if two or more have it."""
    found: Counter[int] = Counter()
    seen = set()
    for frame in frames:
        for _, value in locals_of(frame) if frame.f_locals is not shell.user_ns else ():
            for framework in frameworks:
                holding = holding_of(value, (framework.holding,))
                if holding is not None and holding.key not in seen:
                    seen.add(holding.key)
                    size = framework.leading_dimension(value)
                    if size is not None and size > 1:
                        found[size] += 1
    for size, arrays in found.most_common(1):
        if arrays > 1:
            return Batch("", size)
    return None
