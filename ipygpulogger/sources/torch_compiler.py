"""torch's compiler (dynamo) and functions of ours that it comes across: it leaves them alone.

Only its core in C is asked, which is there with torch. Importing the compiler takes seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType


def set_compiler(torch: ModuleType) -> Callable[[Any], Any]:
    """Return the function that sets what compiles this thread's frames, None for nothing.

    It returns what was set before.
    """
    found: Callable[[Any], Any] = getattr(_core(torch), "set_eval_frame", lambda _: None)
    return found


def leave_alone(torch: ModuleType, function: Callable[..., Any]) -> bool:
    """Let the compiler run a function as it is, but for what it calls; return whether that is possible."""
    core = _core(torch)
    code: CodeType = function.__code__
    try:
        if hasattr(core, "skip_code"):  # torch 2.6
            core.skip_code(code)
        else:
            action = core._FrameAction
            core.set_code_exec_strategy(code, core._FrameExecStrategy(action.SKIP, action.DEFAULT))
    except (AttributeError, TypeError):
        return False
    return True


def _core(torch: ModuleType) -> Any:
    return getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
