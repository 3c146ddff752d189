"""Lets torch note CUDA as the device of an operator's result in a build without CUDA.

`Answers` has autograd note "meta". Should it note CUDA all the same, it asks the device's guard for a stream,
and the process ends if there is none. torch has a table of guards
(`c10/core/impl/DeviceGuardImplInterface.h`). While a function is estimated, the entry for CUDA is the guard
of "meta", whose methods do nothing. CUDA builds of torch register a guard of their own, which raises an error
on a machine without a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_TABLE = "_ZN3c104impl26device_guard_impl_registryE"
_LIBRARY = {"linux": "libc10.so", "darwin": "libc10.dylib"}


@contextlib.contextmanager
def cuda_guard(torch: ModuleType) -> Iterator[bool]:
    """Have a guard for CUDA; give whether there is one."""
    is_built = bool(torch.backends.cuda.is_built())
    table = None if is_built else _table(torch)
    if table is None:
        yield is_built
        return
    kinds = torch.autograd.DeviceType
    cuda, meta = int(kinds.CUDA), int(kinds.Meta)
    own = table[cuda]
    table[cuda] = table[meta]
    try:
        yield bool(table[meta])
    finally:
        table[cuda] = own


def _table(torch: ModuleType) -> Any:
    """Return the table of guards by number of the kind of device; None where it is not found."""
    try:
        folder = Path(torch.__file__ or "").parent / "lib"
        library = ctypes.CDLL(str(folder / _LIBRARY[sys.platform]))
        return (ctypes.c_void_p * len(torch.autograd.DeviceType.__members__)).in_dll(library, _TABLE)
    except (KeyError, OSError, ValueError, AttributeError):
        return None
