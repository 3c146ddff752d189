"""The variable that held a block at the peak and was deleted before the end, where the cell's text proves it.

Its statement is `a = ` and what a library's function or an operator returns, or a helper that returns it. The
peak came after that statement and before the next one that binds or deletes `a`, and the block was there.
"""

from __future__ import annotations

import ast
import builtins
import linecache
from contextlib import suppress
from itertools import chain
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..allocator.places import is_top, is_users

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..allocator.places import Frame

DELETED = " (deleted)"


class Deleted:
    """Finds such variables at the peak: the stacks are those of what was alive then, the latest first."""

    def __init__(self, stacks: Iterable[Sequence[Frame]], shell: Any) -> None:
        self._names = vars(builtins) | ({} if shell is None else shell.user_ns)
        self._peak = next(filter(is_top, chain.from_iterable(stacks)), ("", 0, ""))
        self._body: list[ast.stmt] = []
        with suppress(SyntaxError, ValueError):
            self._body = ast.parse("".join(linecache.getlines(self._peak[0]))).body

    def name_of(self, stack: Sequence[Frame]) -> str:
        """Return "a (deleted)" for a block with this stack that `a` held; "" where that is not certain."""
        top = next(filter(is_top, stack), None)
        if top is None or top[0] != self._peak[0]:
            return ""
        made, peak = self._at(top[1]), self._at(self._peak[1])
        statement = self._body[made] if 0 <= made < peak else None
        if not (isinstance(statement, ast.Assign) and len(statement.targets) == 1):
            return ""
        name, value = getattr(statement.targets[0], "id", ""), statement.value
        for file, line, function in reversed(stack[: stack.index(top)]):
            if is_users(file):
                if not isinstance(value, ast.Call) or ast.unparse(value.func) != function:
                    return ""
                value = _returned(file, line)
        rebound = next((at for at in range(made + 1, len(self._body)) if _rebinds(self._body[at], name)), 0)
        return name + DELETED if name and peak < rebound and self._is_librarys(value) else ""

    def _at(self, line: int) -> int:
        """Return which statement of the cell stands on a line; -1 for none and for several."""
        found = [at for at, one in enumerate(self._body) if one.lineno <= line <= (one.end_lineno or 0)]
        return found[0] if len(found) == 1 else -1

    def _is_librarys(self, value: ast.expr) -> bool:
        """Return whether only operators and functions of modules and of Python make a value."""
        calls = [node.func for node in ast.walk(value) if isinstance(node, ast.Call)]
        roots = [self._names.get(ast.unparse(function).partition(".")[0]) for function in calls]
        return isinstance(value, (ast.Call, ast.BinOp)) and all(
            isinstance(root, (ModuleType, type, type(len))) for root in roots
        )


def _returned(file: str, line: int) -> Any:
    """Return what a line returns; a constant for any other line."""
    with suppress(SyntaxError, ValueError):
        match ast.parse(linecache.getline(file, line).strip()).body:
            case [ast.Return(value=value)] | [ast.FunctionDef(body=[ast.Return(value=value)])]:
                return value or ast.Constant(None)
    return ast.Constant(None)


def _rebinds(statement: ast.stmt, name: str) -> bool:
    names = (node for node in ast.walk(statement) if isinstance(node, ast.Name) and node.id == name)
    return any(not isinstance(node.ctx, ast.Load) for node in names)
