"""Completion of ``%gpulog`` and ``%%gpulog``: what may stand at the cursor, and nothing else but paths.

IPython merges what all its matchers offer. Only a matcher that offers something can suppress the others:

- from IPython 8.6 on, a matcher in ``custom_matchers`` says that it suppresses;
- before, as on Colab, the first matcher in ``magic_arg_matchers`` that offers something is the only one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import IPython.core.completer

from .cell import OPTIONS
from .options import ASKS_FOR_HELP, COMMANDS, FAILED, RANKED_BY, Options

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SUPPRESSES = hasattr(IPython.core.completer, "SimpleCompletion")  # IPython 8.6 and later
_LINE = r"\s*(?:\w+ *= *(?=%))?(?P<magic>%{0,2}gpulog)(?P<rest>\s.*)"
_WORD = r"""(?:[^\s'"]|'[^']*(?:'|$)|"[^"]*(?:"|$))+"""


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


def _matchers(shell: Any) -> Any:
    """Return the shell's list of matchers that ours belongs to."""
    return shell.Completer.custom_matchers if _SUPPRESSES else shell.Completer.magic_arg_matchers


def _matcher(shell: Any) -> Any:
    """Return a matcher for `custom_matchers`."""
    from IPython.core.completer import SimpleCompletion, context_matcher

    def ipygpulogger_matcher(context: Any) -> dict[str, Any]:
        above = context.full_text.split("\n")[: context.cursor_line]
        found = _offered_in(context.text_until_cursor, above, shell)
        if found is None:
            return {"completions": []}
        begun, words = found
        completions = [SimpleCompletion(word, type="param") for word in words] or _None()
        return {"completions": completions, "matched_fragment": begun, "suppress": True, "ordered": True}

    return context_matcher(priority=1)(ipygpulogger_matcher)


def _old_matcher(shell: Any) -> Any:
    """Return a matcher for `magic_arg_matchers`; where nothing fits it offers what is there already."""

    def ipygpulogger_matcher(line: str) -> list[str]:
        before: str = shell.Completer.text_until_cursor
        found = _offered_in(before, (), shell)
        if found is None:
            return []
        begun, words = found
        replaced: str = shell.Completer.splitter.split_line(line, len(before))
        kept = len(begun) - len(replaced)  # IPython takes a word to begin after a quote or a bracket
        return [word[kept:] for word in words] or [replaced]

    return ipygpulogger_matcher


def _offered_in(before: str, above: Iterable[str], shell: Any) -> tuple[str, list[str]] | None:
    """Return what `offered` does, if IPython takes the line for a magic below these lines of its cell."""
    found = offered(before) if "gpulog" in before else None
    if before.lstrip().startswith("%%"):
        is_magic = not any(line.strip() for line in above)
    else:
        is_magic = "%" in before or (shell.magics_manager.auto_magic and "gpulog" not in shell.user_ns)
    return found if is_magic else None


def offered(before: str) -> tuple[str, list[str]] | None:
    """Return what a completion replaces in a line up to the cursor, and what it offers; None for a path.

    None in a line of none of our magics, too.
    """
    line = re.fullmatch(_LINE, before, re.ASCII | re.DOTALL)
    if line is None:
        return None
    words = re.findall(_WORD, line["rest"])
    current = words.pop() if words and line["rest"].endswith(words[-1]) else ""
    may_follow = (_of_a_cell if line["magic"].startswith("%%") else _of_a_line)(words, current)
    if may_follow is None:
        return None
    begun, found = may_follow
    return begun, [word for word in found if word.startswith(begun)]


def _of_a_cell(words: Sequence[str], current: str) -> tuple[str, Iterable[str]]:
    return current, () if words[-1:] == ["--label"] else [word for word in OPTIONS if word not in words]


def _of_a_line(words: Sequence[str], current: str) -> tuple[str, Iterable[str]] | None:
    """Return what is being typed, and what may stand there, after these words; None for a path."""
    if not words:
        return current, ASKS_FOR_HELP if current.startswith("-") else COMMANDS
    command, *given = words
    if command == "start":
        return _option(given, current)
    if command == "summary":
        _, equals, begun = current.partition("--by=")
        if equals or given == ["--by"]:
            return begun if equals else current, RANKED_BY
        return current, () if given else ("--by",)
    if command in ("save", "snapshot") and not current.startswith("-") and given in ([], [FAILED]):
        return None  # a path
    return current, (FAILED,) if command == "snapshot" and current and not given else ()


def _option(given: Sequence[str], current: str) -> tuple[str, Iterable[str]]:
    """Return what is being typed of an option of ``%gpulog start``, its name or its value."""
    traits = Options.in_order()
    name, equals, value = current.partition("=")
    if not equals:
        before = {word.partition("=")[0] for word in given}
        return current, [f"{name}=" for name in traits if name not in before]
    if name not in traits:
        return value, ()
    return value.rpartition(",")[2], (*traits[name].words, *(["None"] if traits[name].allow_none else []))
