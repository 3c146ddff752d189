"""Classes as the interpreter has them, read through accessors in C.

What a metaclass of the user's defines under these names is neither seen nor run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: set for every class that Python code made

bases_of: Callable[[Any], tuple[type, ...]] = vars(type)["__mro__"].__get__
namespace_of: Callable[[Any], Any] = vars(type)["__dict__"].__get__
module_of: Callable[[Any], Any] = vars(type)["__module__"].__get__
_flags_of: Callable[[Any], int] = vars(type)["__flags__"].__get__


def is_made_in_python(kind: type) -> bool:
    """Return whether Python code made a class; some classes of C libraries look the same."""
    return bool(_flags_of(kind) & _HEAP_TYPE)
