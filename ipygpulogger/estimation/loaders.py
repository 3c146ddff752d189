"""Data loaders in an estimate: in this process, and their indices for real."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def iterator(torch: ModuleType, _: Callable[..., Any]) -> Callable[..., Any]:
    """Return `DataLoader._get_iterator` without workers, which would be processes without fake tensors."""

    def _get_iterator(loader: Any) -> Any:
        from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

        own = {name: vars(loader)[name] for name in ("num_workers", "timeout") if name in vars(loader)}
        vars(loader).update(dict.fromkeys(own, 0))
        try:
            with torch.utils._mode_utils.no_dispatch():
                return _SingleProcessDataLoaderIter(loader)
        finally:
            vars(loader).update(own)

    return _get_iterator


def next_index(torch: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `_BaseDataLoaderIter._next_index` on real tensors: samplers draw numbers."""

    @functools.wraps(original)
    def _next_index(one: Any) -> Any:
        with torch.utils._mode_utils.no_dispatch():
            return original(one)

    return _next_index
