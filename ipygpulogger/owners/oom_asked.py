"""The exact size of a failed allocation of more than 1 GiB.

torch's message gives such a size in GiB with two decimals, so it may be off by 5 MB. The last frame of the
traceback is the one that called torch. From the expression that failed there, the size is computed again
without running any code. It counts only if it agrees with the message.
"""

from __future__ import annotations

import ast
import linecache
import operator
import sys
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..runtime.frames import walk_tb
from ..sources import Dimensions
from .exceptions import locals_of, traceback_of
from .referents import own_attribute
from .user_code import module_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType, TracebackType

    from ..sources import Framework
    from .oom_message import Said

_GRAIN_BYTES = 2 << 20  # torch requests whole multiples of this (kRoundLarge in CUDACachingAllocator)
_ITEM_BYTES = 1, 2, 4, 8, 16  # of the elements, where no data type is given
_LINES = 12  # of one statement
_LARGE = 1 << 64  # a larger number cannot be a size, and computing it may take long
_FAILED = ast.Call, ast.BinOp, ast.UnaryOp, ast.Compare
_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_OF_MODULES = "_parameters", "_buffers", "_modules"  # the dicts in which an nn.Module keeps attributes


class _UnknownError(Exception):
    """The value of an expression cannot be told without running code."""


def exactly_asked_bytes(said: Said, cause: BaseException, frameworks: Sequence[Framework]) -> int | None:
    """Return the size that the message of an out-of-memory error gives with two decimals only.

    Args:
        said: The figures of the message.
        cause: The error.
        frameworks: Those of this process.

    Returns:
        Bytes; None if they cannot be told, or if the message already has the exact size.
    """
    if said.asked_bytes is None or 2 * said.rounding_bytes < _GRAIN_BYTES:
        return None
    entries = list(walk_tb(traceback_of(cause)))
    found = set()
    for failed in _failed_expressions(entries[-1]) if entries else ():
        for size_bytes in _Expression(entries[-1].tb_frame, frameworks).sizes(failed):
            asked_bytes = -(-size_bytes // _GRAIN_BYTES) * _GRAIN_BYTES
            if abs(asked_bytes - said.asked_bytes) <= said.rounding_bytes:
                found.add(asked_bytes)
    return found.pop() if len(found) == 1 else None


def _failed_expressions(entry: TracebackType) -> list[ast.AST]:
    """Return the expression that failed; before Python 3.11, every one of its line."""
    code, filename = entry.tb_frame.f_code, entry.tb_frame.f_code.co_filename
    first = last = entry.tb_lineno
    begin = end = None
    if sys.version_info >= (3, 11):
        where = list(code.co_positions())[entry.tb_lasti // 2]
        first, last, begin, end = where[0] or first, where[1] or last, where[2], where[3]
    lines = [line.encode() for line in linecache.getlines(filename)[first - 1 : first - 1 + _LINES]]
    if begin is not None and end is not None and last - first < len(lines):
        text = lines[: last - first + 1]
        text[-1] = text[-1][:end]
        text[0] = text[0][begin:]
        parsed = _parsed(b"(" + b"".join(text) + b")")
        return [parsed.body[0].value] if parsed and isinstance(parsed.body[0], ast.Expr) else []
    for count in range(1, len(lines) + 1):
        if parsed := _parsed(b"".join(lines[:count]).strip()):
            return [node for node in ast.walk(parsed) if isinstance(node, _FAILED)]
    return []


def _parsed(source: bytes) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


class _Expression:
    """Reads expressions of one frame: names, numbers, attributes that are plain values, arithmetic."""

    def __init__(self, frame: FrameType, frameworks: Sequence[Framework]) -> None:
        self._names = {**frame.f_builtins, **frame.f_globals, **dict(locals_of(frame))}
        self._frameworks = frameworks

    def sizes(self, failed: ast.AST) -> Iterator[int]:
        """Yield in bytes what an expression may have allocated: what its operands' shapes suggest."""
        numbers: list[int] = []
        arrays: list[Dimensions] = []
        item_bytes: int | None = None
        for name, operand in self._operands(failed):
            try:
                value = self._value(operand)
            except _UnknownError:
                continue
            if name == "dtype":
                item_bytes = self._item_bytes(value)
            elif name in (None, "size"):
                _sort(value, numbers, arrays, self._dimensions)
        items = _ITEM_BYTES if item_bytes is None else (item_bytes,)
        for elements in _element_counts(numbers, [array.shape for array in arrays]):
            yield from (elements * one for one in items)
        if len(arrays) > 1:
            yield sum(prod(array.shape) * array.item_bytes for array in arrays)

    def _operands(self, failed: ast.AST) -> Iterator[tuple[str | None, ast.expr]]:
        """Yield what an expression works on, with the keyword of each."""
        if isinstance(failed, ast.Call):
            if isinstance(failed.func, ast.Attribute):
                yield None, failed.func.value
            yield from ((None, argument) for argument in failed.args)
            for keyword in failed.keywords:
                if keyword.arg is not None:
                    yield keyword.arg, keyword.value
                elif isinstance(keyword.value, ast.Name):  # **kwargs of a wrapper
                    given = self._names.get(keyword.value.id)
                    for name in given if type(given) is dict else ():
                        key = ast.Constant(name)
                        yield name, ast.Subscript(keyword.value, key, ast.Load())
        elif isinstance(failed, ast.BinOp):
            yield from ((None, operand) for operand in (failed.left, failed.right))
        elif isinstance(failed, ast.Compare):
            yield from ((None, operand) for operand in (failed.left, *failed.comparators))
        elif isinstance(failed, ast.UnaryOp):
            yield None, failed.operand

    def _value(self, node: ast.expr) -> Any:  # noqa: PLR0911 - a kind of expression each
        """Return the value of an expression.

        Raises:
            _UnknownError: Finding out would run code.
        """
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.Starred):
            return self._value(node.value)
        if isinstance(node, (ast.Tuple, ast.List)):
            return [self._value(one) for one in node.elts]
        if isinstance(node, ast.Attribute):
            return self._attribute(self._value(node.value), node.attr)
        if isinstance(node, ast.Subscript):
            return _item(self._value(node.value), self._value(node.slice))
        if isinstance(node, ast.BinOp):
            return _computed(node.op, self._value(node.left), self._value(node.right))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1:
            value = self._value(node.args[0])
            if self._names.get(node.func.id) is int and type(value) in (int, float):
                return int(value)
        raise _UnknownError

    def _attribute(self, value: Any, name: str) -> Any:
        array = self._dimensions(value)
        if array is not None:
            if name in ("T", "mT"):
                return Dimensions((*array.shape[:-2], *array.shape[:-3:-1]), array.item_bytes)
            if name == "shape":
                return list(array.shape)
            raise _UnknownError
        if issubclass(type(value), ModuleType):
            return module_namespace(value).get(name)
        namespace = own_attribute(value, "__dict__")
        if type(namespace) is not dict:
            raise _UnknownError
        inner = (namespace.get(one) for one in _OF_MODULES)
        return next((one[name] for one in (namespace, *inner) if type(one) is dict and name in one), None)

    def _dimensions(self, value: Any) -> Dimensions | None:
        if type(value) is Dimensions:
            return value
        found = (framework.dimensions(value) for framework in self._frameworks)
        return next((one for one in found if one is not None), None)

    def _item_bytes(self, value: Any) -> int | None:
        found = (framework.item_bytes(value) for framework in self._frameworks)
        return next((one for one in found if one is not None), None)


def _sort(
    value: Any,
    numbers: list[int],
    arrays: list[Dimensions],
    dimensions: Callable[[Any], Dimensions | None],
) -> None:
    """Add the whole numbers and the arrays of an argument, which may be a sequence of them."""
    if type(value) is int:
        numbers.append(value)
    elif issubclass(type(value), (tuple, list)) and type(value) is not Dimensions:
        for one in (list if issubclass(type(value), list) else tuple).__iter__(value):
            _sort(one, numbers, arrays, dimensions)
    elif (array := dimensions(value)) is not None:
        arrays.append(array)


def _element_counts(numbers: list[int], shapes: list[tuple[int, ...]]) -> set[int]:
    """Return how many elements a result may have, given the numbers and the arrays that go in."""
    found = {prod(shape) for shape in shapes}
    if numbers:
        found |= {prod(numbers), *(prod(shape) * prod(numbers) for shape in shapes)}
    if len(shapes) > 1:
        first, second = shapes[:2]
        length = max(map(len, shapes))
        padded = [(1,) * (length - len(shape)) + shape for shape in shapes]
        found.add(prod(map(max, zip(*padded, strict=True))) if length else 1)  # elementwise
        if len(first) > 1 and len(second) > 1:  # a product of matrices, as written or transposed
            batch = max(prod(first[:-2]), prod(second[:-2]))
            if first[-1] == second[-2]:
                found.add(batch * first[-2] * second[-1])
            if first[-1] == second[-1]:
                found.add(batch * first[-2] * second[-2])
    return {count for count in found if 0 < count < _LARGE}


def _computed(how: ast.operator, left: Any, right: Any) -> Any:
    """Return the result of arithmetic on plain numbers.

    Raises:
        _UnknownError: It is not such arithmetic.
    """
    if not {type(left), type(right)} <= {int, float} or max(abs(left), abs(right)) >= _LARGE:
        raise _UnknownError
    whole = type(left) is type(right) is int
    if isinstance(how, ast.Pow) and abs(right) <= 64 and abs(left) <= 1 << 16:
        return left**right
    if whole and isinstance(how, (ast.LShift, ast.RShift)) and 0 <= right <= 64:
        return left << right if isinstance(how, ast.LShift) else left >> right
    compute = _OPERATORS.get(type(how))
    if compute is None or (right == 0 and not isinstance(how, (ast.Add, ast.Sub, ast.Mult))):
        raise _UnknownError
    return compute(left, right)


def _item(values: Any, key: Any) -> Any:
    """Return an element of a list, a tuple or a dict.

    Raises:
        _UnknownError: It is none of these, or has no such element.
    """
    plain = type(values) is dict or (issubclass(type(values), (list, tuple)) and type(key) is int)
    if not plain or type(key) not in (int, str):
        raise _UnknownError
    base = dict if type(values) is dict else list if issubclass(type(values), list) else tuple
    try:
        return base.__getitem__(values, key)
    except LookupError:
        raise _UnknownError from None
