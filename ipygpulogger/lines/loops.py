"""The outermost loops of a code object, found in its source."""

from __future__ import annotations

import ast
import linecache

_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def outermost_loops(
    filename: str, name: str, first_lineno: int, *, is_function: bool
) -> list[tuple[int, int]]:
    """Return the first and the last line of each loop that is in no other loop of the same code object.

    Args:
        filename: The code object's file; its source is read from `linecache`.
        name: The code object's name. Nothing is found for a lambda or a comprehension.
        first_lineno: Its first line, that of the first decorator where it has any.
        is_function: False for the code of a whole cell or module.

    Returns:
        An empty list where there is no source.
    """
    source = "".join(linecache.getlines(filename))
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        tree = compile(source, filename, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    scope: ast.AST | None = None if is_function else tree
    for node in ast.walk(tree):
        if isinstance(node, _SCOPES) and node.name == name:
            starts = (node.lineno, *(decorator.lineno for decorator in node.decorator_list))
            if min(starts) == first_lineno:
                scope = node
    found, waiting = [], list(ast.iter_child_nodes(scope)) if scope is not None else []
    while waiting:
        node = waiting.pop()
        if isinstance(node, _LOOPS):
            found.append((node.lineno, node.end_lineno or node.lineno))
        elif not isinstance(node, (*_SCOPES, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(node))
    return found
