"""The words of ``%gpulog``: what they mean, and their completion; where nothing may stand, IPython's.

IPython merges what all its matchers offer. Only a matcher that offers something can suppress the others:

- from IPython 8.6 on, a matcher in ``custom_matchers`` says that it suppresses;
- before, as on Colab, the first matcher in ``magic_arg_matchers`` that offers something is the only one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import IPython.core.completer
from IPython.core.error import UsageError
from IPython.utils.generics import complete_object

from ..records.units import printable
from .cell import OPTIONS
from .options import ASKS_FOR_HELP, COMMANDS, FAILED, RANKED_BY, Options

complete_object.register(Options, lambda logger, _: dir(logger))  # without jedi it has what the class has
_SUPPRESSES = hasattr(IPython.core.completer, "SimpleCompletion")  # IPython 8.6 and later
_LINE = r"\s*(?:\w+ *= *(?=%))?(?P<magic>%{0,2}gpulog)(?P<rest>\s.*)"
_WORD = r"""(?:[^\s'"]|'[^']*(?:'|$)|"[^"]*(?:"|$))+"""


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
    from IPython.core.completer import SimpleCompletion, context_matcher

    def ipygpulogger_matcher(context: Any) -> dict[str, Any]:
        above = context.full_text.split("\n")[: context.cursor_line]
        begun, words = _offered_in(context.text_until_cursor, above, shell)
        completions = [SimpleCompletion(word, type="param") for word in words]
        how = {"matched_fragment": begun, "suppress": bool(words), "ordered": True}
        return {"completions": completions, **how}

    return context_matcher(priority=1)(ipygpulogger_matcher)


def _old_matcher(shell: Any) -> Any:
    def ipygpulogger_matcher(line: str) -> list[str]:
        before: str = shell.Completer.text_until_cursor
        begun, words = _offered_in(before, (), shell)
        replaced: str = shell.Completer.splitter.split_line(line, len(before))
        kept = len(begun) - len(replaced)  # IPython takes a word to begin after a quote or a bracket
        return [word[kept:] for word in words]

    return ipygpulogger_matcher


def _offered_in(before: str, above: Iterable[str], shell: Any) -> tuple[str, list[str]]:
    """Return what `offered` does, if IPython takes the line for a magic below these lines of its cell."""
    if before.lstrip().startswith("%%"):
        is_magic = not any(line.strip() for line in above)
    else:
        is_magic = "%" in before or (shell.magics_manager.auto_magic and "gpulog" not in shell.user_ns)
    return offered(before) if is_magic and "gpulog" in before else ("", [])


def offered(before: str) -> tuple[str, list[str]]:
    """Return what a completion replaces in a line up to the cursor, and what it offers, if anything."""
    line = re.fullmatch(_LINE, before, re.ASCII | re.DOTALL)
    if line is None:
        return "", []
    words = re.findall(_WORD, line["rest"])
    current = words.pop() if words and line["rest"].endswith(words[-1]) else ""
    found = _of_a_line(words, current)
    if line["magic"].startswith("%%"):
        found = [one for one in OPTIONS if one not in words and words[-1:] != ["--label"]]
    return current, [word for word in found if word.startswith(current)]


def _of_a_line(words: Sequence[str], current: str) -> Iterable[str]:
    """Return what may stand after these words, where this is being typed."""
    if not words:
        return ASKS_FOR_HELP if current.startswith("-") else COMMANDS
    command, *given = words
    if command == "start":
        before = {word.partition("=")[0] for word in given}
        return [f"{name}=" for name in Options.in_order() if "=" not in current and name not in before]
    if command == "summary" and given == ["--by"]:
        return RANKED_BY
    offered = {"summary": "--by", "snapshot": current.startswith("-") and FAILED}.get(command)
    return (offered,) if offered and not given else ()


# -- what the words of a command mean ---------------------------------------------------------------------


def path_in(command: str, words: Sequence[str]) -> Path:
    """Return the one path that a command takes."""
    if len(words) != 1:
        raise not_taken(command, words)
    return Path(words[0]).expanduser()


def refusal(sentence: str) -> UsageError:
    """Return an error that IPython prints as one sentence, without a traceback."""
    return UsageError(printable(sentence))


def not_taken(command: str, words: Sequence[str]) -> UsageError:
    """Return the refusal of words that a command does not take."""
    given = repr(" ".join(words)) if words else "nothing"
    return refusal(f"%gpulog {command} takes {COMMANDS[command]}, not {given}")


def rank_in(words: Sequence[str]) -> str:
    """Return the word after ``--by``, else the first that cells can be ranked by."""
    given = [part for word in words for part in word.split("=", 1)]
    if not given:
        return RANKED_BY[0]
    if len(given) != 2 or given[0] != "--by" or given[1] not in (*RANKED_BY, "peak"):
        raise not_taken("summary", words)
    return given[1]


def cell_and_size_in(words: Sequence[str]) -> tuple[int | None, str | None]:
    """Return the number of a cell, of "4", "In[4]" or "In [4]", and the name of a size; None for either."""
    cell, name = r"(?:(\d{1,18})|In ?\[(\d{1,18})\])?", r"([^\W\d][\w.()]*)?"
    found = re.fullmatch(f"{cell} ?{name}", " ".join(words), re.ASCII)
    if found is None:
        raise not_taken("fit", words)
    count = found[1] or found[2]
    return int(count) if count else None, found[3]


def options_in(words: Sequence[str]) -> dict[str, Any]:
    """Return the options of ``%gpulog start`` by name; a `ValueError` says how to write what is not one."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"write options as name=value, such as quiet='10MB 1s', not {word!r}")
        typed = {"True": True, "False": False, "None": None}.get(value, value)
        found[name] = tuple(filter(None, value.split(","))) if name == "metrics" else typed
    return found
