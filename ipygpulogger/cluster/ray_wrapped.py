"""Functions and actor classes that measure each of their calls as a task of Ray.

Ray sends a function to its workers by value if its name leads to something else, which is so for a
decorated one. What is made here refers to nothing of this module: it imports the package in the worker,
within ``try``, and where it is missing the task runs unmeasured and the driver is told.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from ..runtime.calls import around_calls

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_MARK = "_ipygpulogger_measured"  # of what is wrapped already
_SPECIAL = frozenset(("__init__", "__call__"))  # those special methods that may be a task


def is_measured(declared: Any) -> bool:
    """Return whether a function or class is one that `measured` returned."""
    return _MARK in getattr(declared, "__dict__", ())


def measured(declared: Any, *, at_once: bool = False) -> Any:
    """Return a function or class like the given one whose calls as tasks of Ray are measured.

    Name, signature, documentation and attributes stay. Anything but a Python function or class is returned
    as it is; so is what belongs to Ray itself.

    Args:
        declared: The function or class.
        at_once: Have each record sent before the task ends, for Ray may end the process with it.
    """
    module = getattr(declared, "__module__", None) or ""
    if is_measured(declared) or module.partition(".")[0] == "ray":
        return declared
    if inspect.isclass(declared):
        return _measured_class(declared)
    if inspect.isfunction(declared):
        return _measured_function(declared, declared.__name__, at_once=at_once)
    return declared


def _measured_class(declared: type) -> type:
    """Return a subclass with every method wrapped; the class itself may be in use elsewhere."""
    methods = {}
    for name, _ in inspect.getmembers(declared, inspect.isroutine):
        method = inspect.getattr_static(declared, name)
        function = getattr(method, "__func__", method)  # of a class or static method
        if not inspect.isfunction(function) or (name.startswith("__") and name not in _SPECIAL):
            continue
        wrapped = _measured_function(function, f"{declared.__name__}.{name}")
        methods[name] = wrapped if function is method else type(method)(wrapped)
    kept = {name: getattr(declared, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(declared)(declared.__name__, (declared,), {**methods, **kept, _MARK: True})


def _measured_function(function: Any, name: str, *, at_once: bool = False) -> Any:
    context = _context_of(name, at_once)
    if inspect.isasyncgenfunction(function):
        wrapper = _async_generator(function, context)
    else:
        wrapper = around_calls(function, context, "watch")
    setattr(wrapper, _MARK, True)
    return wrapper


def _async_generator(function: Any, context: Callable[[], AbstractContextManager[Any]]) -> Any:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with context():
            items = function(*args, **kwargs)
            try:
                async for item in items:
                    yield item
            finally:
                await items.aclose()

    return wrapper


def _context_of(name: str, at_once: bool) -> Callable[[], AbstractContextManager[Any]]:
    """Return what makes the context of one call; sent by value, so it must use nothing of this module."""
    told: list[bool] = []

    def context() -> Any:
        try:
            from ipygpulogger.cluster.ray_worker import Task

            return Task(name, at_once)
        except Exception as error:  # also where the package there is of an older version
            from contextlib import nullcontext

            if not told:
                told.append(True)
                try:
                    import platform

                    import ray

                    job = ray.get_runtime_context().get_job_id()
                    mailbox = ray.get_actor(f"ipygpulogger-{job}")
                    mailbox.cannot.remote(platform.node(), f"{type(error).__name__}: {error}"[:200])
                except Exception:
                    pass
            return nullcontext()

    return context
