"""`watch`: recognizes the engine of a client, and shows a table after each cell that it worked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .watcher import Watch

_WATCHES = {  # by the package that the client's class is of: the file, and what makes its watch
    "ipyparallel": (".ipyparallel", "watch_client"),
    "ray": (".ray", "watch_ray"),
    "distributed": (".dask", "watch_client"),
}


def watch(client: Any, **options: Any) -> Watch:
    """Measure what other processes do for each cell, and show one table for all of them.

    Args:
        client: An ``ipyparallel.Client``, the module ``ray``, or a ``distributed.Client`` of Dask.
        options: What the engine's own file offers besides.

    Returns:
        The running watch: ``records[-1]`` are the records of the last such cell, ``stop()`` ends it.

    Raises:
        TypeError: The argument is none of these.
    """
    package = _package(client)
    if package is None:
        raise TypeError(
            "watch() takes an ipyparallel.Client, the module ray, or a distributed.Client of Dask, "
            f"not {client!r}"
        )
    file, name = _WATCHES[package]
    found: Watch = getattr(import_module(file, __package__), name)(client, **options)
    return found


def _package(client: Any) -> str | None:
    """Return the engine's package, also of a client whose class is derived; None if unknown."""
    names = [getattr(client, "__name__", None), *(base.__module__ for base in type(client).__mro__)]
    packages = (name.partition(".")[0] for name in names if isinstance(name, str))
    return next((package for package in packages if package in _WATCHES), None)
