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
    from collections.abc import Iterable, Mapping, Sequence

    from ..allocator.places import Frame


DELETED = " (deleted)"


class Deleted:
    """Finds such variables at the peak: the stacks are those of what was alive then, the latest first."""

    def __init__(self, stacks: Iterable[Sequence[Frame]], names: Mapping[str, Any]) -> None:
        self._names = names
        self._peak = next(filter(is_top, chain.from_iterable(stacks)), ("", 0, ""))
        self._known: dict[tuple[Frame, ...], str] = {}
        self._body: list[ast.stmt] = []
        with suppress(SyntaxError, ValueError):
            self._body = ast.parse("".join(linecache.getlines(self._peak[0]))).body

    def name_of(self, stack: Sequence[Frame]) -> str:
        """Return "a (deleted)" for a block with this stack that `a` held; "" where that is not certain."""
        key = tuple(stack)
        if key not in self._known:
            name = self._name_of(stack)
            self._known[key] = name + DELETED if name else ""
        return self._known[key]

    def _name_of(self, stack: Sequence[Frame]) -> str:
        top = next(filter(is_top, stack), None)
        if top is None or top[0] != self._peak[0]:
            return ""
        made, peak = self._at(top[1]), self._at(self._peak[1])
        match self._body[made] if 0 <= made < peak else None:
            case ast.Assign(targets=[ast.Name(id=name)], value=made_by):
                value: ast.expr | None = made_by
            case _:
                return ""
        users = [frame for frame in stack[: stack.index(top)] if is_users(frame[0])]
        for file, line, function in reversed(users):
            if not (isinstance(value, ast.Call) and getattr(value.func, "id", "") == function):
                return ""
            value = _returned(file, line)
        rebound = (at for at in range(made + 1, len(self._body)) if _rebinds(self._body[at], name))
        return name if self._is_librarys(value) and peak < next(rebound, -1) else ""

    def _at(self, line: int) -> int:
        """Return which statement of the cell stands on a line; -1 for none and for several."""
        found = [at for at, one in enumerate(self._body) if one.lineno <= line <= (one.end_lineno or 0)]
        return found[0] if len(found) == 1 else -1

    def _is_librarys(self, value: ast.expr | None) -> bool:
        """Return whether only operators and functions of modules and of Python make a value."""
        nodes = [] if value is None else list(ast.walk(value))
        roots = [_root(node.func) for node in nodes if isinstance(node, ast.Call)]
        return isinstance(value, (ast.Call, ast.BinOp)) and all(
            isinstance(self._names.get(root, vars(builtins).get(root)), (ModuleType, type(len), type))
            for root in roots
        )


def _returned(file: str, line: int) -> ast.expr | None:
    """Return what a line returns; None for any other line."""
    with suppress(SyntaxError, ValueError):
        match ast.parse(linecache.getline(file, line).strip()).body:
            case [ast.Return(value=value)]:
                return value
    return None


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _rebinds(statement: ast.stmt, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
        for node in ast.walk(statement)
    )
