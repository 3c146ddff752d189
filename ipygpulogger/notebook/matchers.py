"""The matchers through which IPython asks for completions of ``%gpulog`` and ``%%gpulog``.

IPython merges what all its matchers offer: file names, and with jedi the names of Python. Only a matcher that
offers something can suppress the others. How it does so differs:

- from IPython 8.6 on, a matcher in ``custom_matchers`` says that it suppresses;
- before, the first matcher in ``magic_arg_matchers`` that offers something is the only one.

What is offered is in `completion`, which the first key press loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import IPython.core.completer

if TYPE_CHECKING:
    from collections.abc import Sequence

_SUPPRESSES = hasattr(IPython.core.completer, "SimpleCompletion")  # IPython 8.6 and later


class _None(list[Any]):
    """No completions, which IPython takes for some, so that it asks no other matcher."""

    def __len__(self) -> int:
        return 1


def put_in(shell: Any) -> None:
    """Add the completion to a shell."""
    take_out(shell)
    matchers, matcher = _matchers(shell), (_matcher if _SUPPRESSES else _old_matcher)(shell)
    matcher.is_gpulogs = True
    matchers.insert(0, matcher)


def take_out(shell: Any) -> None:
    """Remove it again."""
    matchers = _matchers(shell)
    matchers[:] = [one for one in matchers if not hasattr(one, "is_gpulogs")]


def _matchers(shell: Any) -> list[Any]:
    """Return the shell's list of matchers that ours belongs to."""
    completer = shell.Completer
    found: list[Any] = completer.custom_matchers if _SUPPRESSES else completer.magic_arg_matchers
    return found


def _matcher(shell: Any) -> Any:
    """Return a matcher for `custom_matchers`."""
    from IPython.core.completer import SimpleCompletion, context_matcher

    def ipygpulogger_matcher(context: Any) -> dict[str, Any]:
        before: str = context.text_until_cursor
        if "gpulog" not in before:
            return {"completions": []}
        from .completion import offered

        found = offered(before)
        if found is None or not _is_magic(before, _above(context), shell):
            return {"completions": []}
        begun, words = found
        completions = [SimpleCompletion(word, type="param") for word in words]
        return {
            "completions": completions or _None(),
            "matched_fragment": begun,
            "suppress": True,
            "ordered": True,
        }

    return context_matcher(priority=1)(ipygpulogger_matcher)


def _old_matcher(shell: Any) -> Any:
    """Return a matcher for `magic_arg_matchers`; where nothing fits it offers what is there already."""

    def ipygpulogger_matcher(line: str) -> list[str]:
        before: str = shell.Completer.text_until_cursor
        if "gpulog" not in before:
            return []
        from .completion import offered

        found = offered(before)
        if found is None or not _is_magic(before, (), shell):
            return []
        begun, words = found
        replaced: str = shell.Completer.splitter.split_line(line, len(before))
        kept = len(begun) - len(replaced)  # IPython takes a word to begin after a quote or a bracket
        return [word[kept:] for word in words] or [replaced]

    return ipygpulogger_matcher


def _above(context: Any) -> list[str]:
    """Return the lines of the cell above the cursor's."""
    lines: list[str] = context.full_text.split("\n")
    return lines[: context.cursor_line]


def _is_magic(before: str, above: Sequence[str], shell: Any) -> bool:
    """Return whether IPython takes a line for a magic of ours, below these lines of the same cell."""
    if before.lstrip().startswith("%%"):
        return not any(line.strip() for line in above)
    return "%" in before or (shell.magics_manager.auto_magic and "gpulog" not in shell.user_ns)
