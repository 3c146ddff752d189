"""Framework objects that a forked child got from its parent, and must not ask.

JAX's clients and TensorFlow's context have threads. In a forked child these are gone, and a lock that one
of them held is never released.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_inherited: list[Any] = []


def is_inherited(found: Any) -> bool:
    """Return whether the object existed when this process was forked."""
    return any(found is one for one in _inherited)


def jax_clients() -> list[Any]:
    """Return the clients of the backends that JAX has initialised; a fork's parent's are among them."""
    backends = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None)
    # Not JAX's own `backends_are_initialized`: it waits while another thread initialises one.
    return list(backends.values()) if isinstance(backends, dict) else []


def tensorflow_context() -> Any:
    """Return TensorFlow's eager context, initialised or not; None while there is none."""
    # Not TensorFlow's own `context()`, which makes one.
    return getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)


def _after_fork_in_child() -> None:
    _inherited.extend(jax_clients())
    context = tensorflow_context()
    if context is not None:
        _inherited.append(context)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
