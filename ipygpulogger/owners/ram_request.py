"""How much general RAM an allocation that failed had asked for, where that is certain.

numpy and torch say it. Of Python's own `bytearray(n)` and `b"x" * n` it is computed again from names and
constants of the expression that failed; no code of the user's runs.
"""

from __future__ import annotations

import ast
import linecache
import math
import sys
from contextlib import suppress
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ..runtime.objects import walk_tb
from ..runtime.shell import is_a_cells
from .referents import args_of, first_word, locals_of, traceback_of

if TYPE_CHECKING:
    from types import TracebackType

_ITEM_BYTES: dict[Any, int] = {bytes: 1, bytearray: 1, str: 1, list: 8, tuple: 8}  # of an ASCII str
_position = attrgetter("lineno", "end_lineno", "col_offset", "end_col_offset")
_ARITHMETIC = ast.BinOp, ast.operator, ast.Constant, ast.Name, ast.expr_context


def asked_of_ram(error: BaseException, shell: Any, left_bytes: int) -> int | None:
    """Return the size that an error was raised for; None where it is not certain.

    Where so much is left, what is computed is not that size: a name has been bound anew.
    """
    args = args_of(error)
    if first_word(type(error)) == "numpy" and len(args) == 2:
        dtype = getattr(sys.modules.get("numpy"), "dtype", None)
        if type(args[0]) is tuple and dtype is not None and issubclass(type(args[1]), dtype):
            return math.prod(args[0]) * int(dtype.itemsize.__get__(args[1]))
    entries = list(walk_tb(traceback_of(error)))
    if entries and issubclass(type(error), MemoryError):
        with suppress(LookupError, SyntaxError, TypeError, ValueError, ArithmeticError, NameError):
            computed_bytes = _computed_bytes(entries[-1], shell)
            return computed_bytes if computed_bytes > left_bytes else None
    return None


def _computed_bytes(entry: TracebackType, shell: Any) -> int:
    """Return the size that the cell's expression asks for which failed; 0 for any that is not of these."""
    frame, code = entry.tb_frame, entry.tb_frame.f_code
    positions = getattr(code, "co_positions", None)  # from Python 3.11 on
    # A frame that went on after the failure may have bound its names anew.
    is_there = frame.f_lasti == entry.tb_lasti and is_a_cells(shell, code.co_filename)
    if positions is None or not is_there:
        return 0
    names = {**frame.f_builtins, **frame.f_globals, **dict(locals_of(frame))}
    position = next(islice(positions(), entry.tb_lasti // 2, None))
    for node in ast.walk(ast.parse("".join(linecache.getlines(code.co_filename)))):
        if isinstance(node, ast.expr) and _position(node) == position:
            return _size_of(node, names)
    return 0


def _size_of(node: ast.expr, names: dict[str, Any]) -> int:
    match node:
        case ast.Call(func=ast.Name(id="bytearray" | "bytes" as kind), args=[size], keywords=[]):
            return _number(size, names) if names[kind] in (bytearray, bytes) else 0
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            if size_bytes := _repeated_bytes(left, names):
                return size_bytes * _number(right, names)
            return _repeated_bytes(right, names) * _number(left, names)
    return 0


def _repeated_bytes(node: ast.AST, names: dict[str, Any]) -> int:
    """Return the size of what is repeated; 0 where it is nothing that Python repeats by itself."""
    match node:
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return 0 if any(isinstance(one, ast.Starred) for one in items) else 8 * len(items)
        case ast.Call(ast.Name("bytearray" | "bytes" as kind), [ast.Constant(bytes()) as inner]):
            node = inner if names[kind] in (bytearray, bytes) else node
    value: Any = names[node.id] if isinstance(node, ast.Name) else getattr(node, "value", None)
    if type(value) not in _ITEM_BYTES or (type(value) is str and not value.isascii()):
        return 0
    return _ITEM_BYTES[type(value)] * len(value)


def _number(node: ast.expr, names: dict[str, Any]) -> int:
    """Return a whole number that the cell has computed before, too; raises `ValueError` for anything else."""
    numbers = {name: value for name, value in names.items() if type(value) is int}
    found = None
    if all(isinstance(one, _ARITHMETIC) and type(getattr(one, "value", 0)) is int for one in ast.walk(node)):
        found = eval(compile(ast.Expression(node), "", "eval"), {**numbers, "__builtins__": {}})  # noqa: S307
    if type(found) is not int:
        raise ValueError(node)
    return found
