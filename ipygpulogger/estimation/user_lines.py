"""Which line of the user's code is running."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ..breakdown.places import is_users
from ..runtime.frames import walk_stack

if TYPE_CHECKING:
    from types import FrameType

    from ..breakdown.places import Frame

_RECOMPUTES = frozenset(("recompute_fn", "unpack_hook"))
_OURS = f"{__name__.rpartition('.')[0]}."
_CHECKING = ("torch.nn.", "torch.distributions.")
_DISPATCH = ("_ops.py", "_compile.py", "eval_frame.py", "_stats.py", "_python_dispatch.py", "_device.py")


def user_line() -> Frame:
    """Return file, line and function of the user's that is running; else of the outermost code."""
    frame = None
    for frame in walk_stack(sys._getframe(1)):
        if is_users(frame.f_code.co_filename):
            break
    return ("", 0, "") if frame is None else (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def is_recomputed() -> bool:
    """Return whether checkpointing computes an activation again."""
    for frame in walk_stack(sys._getframe(1)):
        if frame.f_code.co_name in _RECOMPUTES and frame.f_code.co_filename.endswith("checkpoint.py"):
            return True
        if frame.f_code.co_name == "_engine_run_backward":
            return False
    return False


def is_called_by_user() -> bool:
    """Return whether a line of the user's itself called the operator that is being dispatched."""
    caller = _caller()
    return caller is not None and is_users(caller.f_code.co_filename)


def is_called_by_check() -> bool:
    """Return whether a module of torch called the operator that is being dispatched, to check a value."""
    caller = _caller()
    return caller is not None and str(caller.f_globals.get("__name__", "")).startswith(_CHECKING)


def _caller() -> FrameType | None:
    """Return the frame that called the operator that is being dispatched."""
    for one in walk_stack(sys._getframe(1)):
        is_ours = one.f_globals.get("__name__", "").startswith(_OURS)
        if not (is_ours or one.f_code.co_filename.endswith(_DISPATCH)):
            return one
    return None
