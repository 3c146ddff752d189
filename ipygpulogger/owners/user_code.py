"""Tell the user's code from installed packages, the standard library, IPython and this package."""

from __future__ import annotations

import functools
import os
import sysconfig
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

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
