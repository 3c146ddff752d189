"""Operators without an implementation for fake tensors, which torch would run on real ones."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def none_on_a_device(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `run_fallback_kernel` for the CPU alone: on a device it would allocate real tensors there."""
    from torch._subclasses import fake_tensor

    @functools.wraps(original)
    def run_fallback_kernel(mode: Any, func: Any, flat_args: Any, *rest: Any) -> Any:
        fake = [one for one in flat_args if isinstance(one, fake_tensor.FakeTensor)]
        if all(one.fake_device.type == "cpu" for one in fake):
            return original(mode, func, flat_args, *rest)
        if not func._schema.returns:  # it writes to its arguments: the kernels of fused optimizers
            return None
        raise fake_tensor.UnsupportedOperatorException(func)

    return run_fallback_kernel
