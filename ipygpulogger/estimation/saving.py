"""`torch.save` in an estimate: refused before the file is opened, for fake tensors have no values."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING, Any

from ..runtime.frames import walk_stack
from .reach import Reach
from .user_lines import user_line
from .values import EstimateError, written

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from .own_threads import OwnThreads


class Saving:
    """Refuses to open files for writing, which would empty those that are there.

    In own threads always. Other threads may save a checkpoint meanwhile, unless fake tensors are in it: a
    thread pool can be given what a function saves.
    """

    def __init__(self, torch: ModuleType, threads: OwnThreads) -> None:
        self._torch, self._threads = torch, threads

    def open_zip(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what opens a file for `torch.save`."""

        @functools.wraps(original)
        def _open_zipfile_writer(*args: Any, **kwargs: Any) -> Any:
            self._check()
            return original(*args, **kwargs)

        return _open_zipfile_writer

    def open_file(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what opens files for `torch.load`, and for `torch.save` in its older format."""

        @functools.wraps(original)
        def _open_file_like(name_or_buffer: Any, mode: str, *args: Any, **kwargs: Any) -> Any:
            if "w" in mode:
                self._check()
            return original(name_or_buffer, mode, *args, **kwargs)

        return _open_file_like

    def _check(self) -> None:
        """Check that the file may be opened.

        Raises:
            EstimateError: It may not.
        """
        if self._threads.is_own() or self._is_fake(_saved()):
            raise EstimateError(
                f"torch.save at {written(user_line())} cannot be estimated: the tensors have no values to"
                " write, and the file is left as it is"
            )

    def _is_fake(self, value: Any) -> bool:
        from torch._subclasses.fake_tensor import FakeTensor

        with contextlib.closing(Reach(self._torch)) as reach:
            reach.walk(None, (value,), {})
            return any(isinstance(tensor, FakeTensor) for tensor, _ in reach.tensors)


def _saved() -> Any:
    """Return what the caller's `torch.save` is to write."""
    for frame in walk_stack(sys._getframe()):
        if frame.f_code.co_name == "save" and frame.f_globals.get("__name__") == "torch.serialization":
            return frame.f_locals.get("obj")
    return None
