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
    package = (getattr(client, "__name__", None) or type(client).__module__).partition(".")[0]
    if package not in _WATCHES:
        raise TypeError(
            "watch() takes an ipyparallel.Client, the module ray, or a distributed.Client of Dask, "
            f"not {client!r}"
        )
    file, name = _WATCHES[package]
    found: Watch = getattr(import_module(file, __package__), name)(client, **options)
    return found
