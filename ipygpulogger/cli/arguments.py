"""The arguments of the command line, and what they name: parameters, a notebook, its kernel."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import json
import keyword
import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from tempfile import mkstemp
from typing import Any, NoReturn

from ..analysis.compare import FLOOR_BYTES, TOLERANCE
from ..records.units import parse_size, printable
from ..runtime.errors import did_you_mean, first_line, unfit, why
from .streams import say

_SUFFIXES = {"the log": ".jsonl", "the executed notebook": ".ipynb"}


class BadRequest(ValueError):  # noqa: N818 - the user's mistake, reported in one sentence
    """The request is invalid; the message says why."""


def check(targets: Mapping[str, Path | None], source: Path, name: str) -> None:
    """Refuse files that could not be written, or would overwrite each other or what is read.

    Messages call each target by its key, and the source by that name.
    """
    wanted = [(what, target) for what, target in targets.items() if target is not None]
    for _, target in wanted:
        if target.resolve() == source.resolve():
            raise BadRequest(f"{target} is {name} itself; name another file")
        if why_not := unfit(target):
            raise BadRequest(f"{target} {why_not}")
        if not target.parent.is_dir():
            raise BadRequest(f"there is no folder {target.parent} to write {target.name} into")
        _check_place(target)
    for (what, one), (other_what, other) in combinations(wanted, 2):
        if one.resolve() == other.resolve():
            raise BadRequest(f"{one} cannot be both {what} and {other_what}")
    for what, one in wanted:  # it may be another's; a device or a pipe may have any name
        suffix = _SUFFIXES.get(what, one.suffix.lower())
        if one.suffix.lower() != suffix and (one.is_file() or not one.exists()):
            raise BadRequest(f"{what} {one} must be named {suffix}")


def _check_place(target: Path) -> None:
    if target.exists() and not os.access(target, os.W_OK):
        raise BadRequest(f"{target} may not be written")
    try:  # permissions do not say it of /proc, or to root
        if target.is_file() or not target.exists():
            number, name = mkstemp(prefix=".ipygpulogger.", dir=target.parent)
            os.close(number)
            Path(name).unlink()
    except OSError:
        raise BadRequest(f"{target} is in a folder that may not be written") from None


DEFAULTS, INJECTED = "parameters", "injected-parameters"  # tags


def typed(text: str) -> Any:
    """Return a value from the command line as None, a bool, an int, a float, or else as the text itself."""
    if text in ("True", "False", "None"):
        return ast.literal_eval(text)
    for kind in int, float:
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _text(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{name} cannot be read: {why(error)}") from error


def read(path: Path) -> dict[str, Any]:
    """Return the parameters in a file of JSON, or of YAML."""
    source = _text(path, f"the file of parameters {path}")
    try:
        found = json.loads(source)
    except (ValueError, RecursionError) as problem:
        try:
            import yaml
        except ImportError as error:
            raise BadRequest(f"{path} is not JSON ({problem}); to read YAML: pip install pyyaml") from error
        try:
            found = yaml.safe_load(source)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            said = " ".join(str(error).split())
            raise BadRequest(f"{path} is neither JSON nor YAML: {said}") from error
    if not isinstance(found, dict):
        raise BadRequest(f"{path} holds no parameters: write them as name: value, one a line")
    return found


def default_parameters(notebook: Any) -> list[str]:
    """Return the names that the cell tagged ``parameters`` sets; none if it is absent or no Python."""
    for cell in notebook.cells:
        if DEFAULTS in cell.metadata.get("tags", ()):
            with contextlib.suppress(SyntaxError, ValueError, RecursionError):
                names = (one for one in ast.walk(ast.parse(cell.source)) if isinstance(one, ast.Name))
                return list(dict.fromkeys(one.id for one in names if isinstance(one.ctx, ast.Store)))
    return []


def inject(notebook: Any, parameters: Mapping[Any, Any]) -> bool:
    """Put the parameters where papermill does, and return whether the notebook has a cell of either tag.

    In place of a cell tagged ``injected-parameters``, else after the first ``parameters``, else at the top.
    """
    for name in parameters:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise BadRequest(f"{name!r} is not a valid name of a variable")
    lines = ["# Parameters", *(f"{name} = {_code(value)}" for name, value in parameters.items())]
    cell = installed("nbformat.v4").new_code_cell("\n".join(lines), metadata={"tags": [INJECTED]})
    if (notebook.nbformat, notebook.nbformat_minor) < (4, 5):
        del cell["id"]
    else:
        cell["id"] = INJECTED  # the same in every run, so that two runs can be compared
    tags = [other.metadata.get("tags", ()) for other in notebook.cells]
    first = {tag: i for i, found in reversed(list(enumerate(tags))) for tag in found}  # cell of each tag
    if INJECTED in first:
        notebook.cells[first[INJECTED]] = cell
    else:
        notebook.cells.insert(first.get(DEFAULTS, -1) + 1, cell)
    return INJECTED in first or DEFAULTS in first


def _code(value: Any) -> str:
    """Return the value as Python code; a value without a literal, such as a date of YAML, as a string."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_code(key)}: {_code(member)}' for key, member in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_code, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value if isinstance(value, (bool, int, float, str, type(None))) else str(value))


# -- the notebook that is run, and its kernel ------------------------------------------------------------


def read_notebook(path: Path) -> Any:
    """Return a notebook that can be executed, as nbformat represents it."""
    nbformat = installed("nbformat")
    if path.suffix.lower() != ".ipynb":
        raise BadRequest(f"{path} is neither a notebook (.ipynb) nor a script (.py)")
    source = _text(path, str(path))
    try:
        raw = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{path} is not a notebook: no JSON ({first_line(error)})") from error
    if not isinstance(raw, dict) or "nbformat" not in raw:
        raise BadRequest(f"{path} is not a notebook: it names no nbformat")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nbformat warns when it gives a cell its missing id
            notebook = nbformat.reads(source, as_version=4)
            nbformat.validate(notebook)
        for cell in notebook.cells:
            cell.source.encode()  # as it is sent to the kernel: a lone surrogate would end the run
    except Exception as error:  # nbformat raises many kinds for a broken notebook
        raise BadRequest(f"{path} is a broken notebook: {first_line(error)}") from error
    return notebook


def installed(name: str) -> Any:
    """Import a library of the extra ``run``."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadRequest(f"run needs {error.name}: pip install 'ipygpulogger[run]'") from error


# -- the words --------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        said = message.replace("ignored explicit argument", "does not take")
        if choice := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", said):
            said += did_you_mean(choice[1], re.findall(r"\w+", choice[2]))
        said = printable(" ".join(said.split()))
        self.exit(2, f"{self.prog}: {said}; {self.prog} --help tells more\n")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options, with the command's name as `command`; exit with status 2 if they are invalid."""
    parser, commands = _parsers()
    if arguments[:1] == ["--version"]:
        from importlib.metadata import version  # 50 ms

        say(f"{parser.prog} {version('ipygpulogger')}")
        parser.exit()
    for word in arguments[:1]:
        if not any(one.startswith(word) for one in ("-h", "--help", "--version", *commands)):
            parser.error(f"unknown command {word!r}{did_you_mean(word.lstrip('-'), commands)}")
    ours, parameters, theirs = arguments, list[list[str]](), None
    if arguments[:1] == ["run"]:
        ours, parameters, theirs = _divided(arguments, commands["run"])
    options, unknown = parser.parse_known_args(ours)
    if unknown:
        wrong = [word for word in unknown if word.startswith("-")] or unknown  # the rest may be its values
        command = commands[options.command]
        meant = did_you_mean(wrong[0].partition("=")[0], command._option_string_actions)
        command.error(f"unrecognized arguments: {' '.join(wrong)}{meant}")
    if options.command == "run":
        options.parameters += parameters
    if theirs is not None:
        options.command, options.arguments = "script", theirs
    return options


def _divided(
    arguments: Sequence[str], parser: argparse.ArgumentParser
) -> tuple[list[str], list[list[str]], list[str] | None]:
    """Split the command line into our own arguments, the pairs of ``-p``, and the script's arguments.

    The script is the first argument that ends in ``.py`` and is not an option's value. Its arguments are all
    that follow it, or None without a script. argparse cannot parse a value of ``-p`` that begins with "-".
    """
    actions = [action for action in parser._actions if action.nargs is None]
    valued = {name for action in actions for name in action.option_strings}
    ours, parameters, words = list[str](), list[list[str]](), list(arguments)
    while words:
        word = words.pop(0)
        if word in ("-p", "--parameters") and len(words) > 1:
            parameters.append([words.pop(0), words.pop(0)])
            continue
        ours.append(word)
        if word in valued:
            ours += words[:1]
            del words[:1]
        elif word.lower().endswith(".py") and not word.startswith("-"):
            return ours, parameters, words
    return ours, parameters, None


_FLAG: dict[str, Any] = {"action": "store_true"}
_FILE: dict[str, Any] = {"type": Path}
_PAGE: dict[str, Any] = {"type": Path, "metavar": "PAGE"}
_ONE_PAGE = "also write one self-contained HTML page"


def _parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    what = "What each cell of a notebook, or a script, costs in RAM, GPU RAM and time."
    parser = _Parser(prog="ipygpulogger", description=what)
    parser.add_argument("--version", help="print the version and exit", action="store_true")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    usage = "%(prog)s [OPTION]... NOTEBOOK.ipynb [OPTION]...\n"
    usage += "       %(prog)s [OPTION]... SCRIPT.py [ARGUMENT]..."
    program = "the notebook, which is not changed; or the script, which gets every word after its name"
    pair = {"nargs": 2, "action": "append", "default": [], "metavar": ("NAME", "VALUE")}
    size: dict[str, Any] = {"type": _size, "metavar": "SIZE"}
    ranked: dict[str, Any] = {"choices": ("needed", "consumed", "highest", "time"), "default": "needed"}
    ranked["type"] = lambda word: "needed" if word == "peak" else word
    percent: dict[str, Any] = {"type": _percentage, "default": TOLERANCE, "metavar": "PERCENT"}
    # By the names of an option: its help, and what else argparse is told.
    run = {
        "program": (program, {"type": Path, "metavar": "NOTEBOOK.ipynb | SCRIPT.py"}),
        "-o --output": ("the executed notebook (default: NAME.executed.ipynb beside it)", _FILE),
        "--show-output": ("also print what the cells print", _FLAG),
        "--allow-errors": ("go on after a cell that fails, and exit 0 all the same", _FLAG),
        "--log": ("also write the records to this file, one line of JSON a cell", _FILE),
        "--log-source": ("with --log: the lines of code, too, by which reports name the cells", _FLAG),
        "--lines": ("measure each line", _FLAG),
        "--peak": ("list what was alive at the peak; of RAM where no GPU is", _FLAG),
        "--peak=all": ("on GPUs and in RAM", {"action": "store_const", "const": "all", "dest": "peak"}),
        "--html": (_ONE_PAGE, _PAGE),
        "--max-gpu": ("exit 1 if a cell goes above this on a GPU", size),
        "--max-ram": ("exit 1 if a cell goes above this in RAM", size),
        "--timeout": ("stop at a cell that runs longer", {"type": _seconds, "metavar": "SECONDS"}),
        "--kernel": ("use this kernel, not the notebook's own", {"metavar": "NAME"}),
        "-p --parameters": ("set a parameter, as papermill does; may be repeated", pair),
        "-f --parameters-file": ("parameters from a JSON or YAML file", {"type": Path, "metavar": "FILE"}),
    }
    report = {
        "path": ("a log (.jsonl, .csv, .parquet) or a saved notebook (.ipynb)", _FILE),
        "--by": ("rank by this (default: needed)", ranked),
        "--html": (_ONE_PAGE, _PAGE),
    }
    compared = {
        "base": ("the run before: a log or a saved notebook", _FILE),
        "new": ("the run now", _FILE),
        "--tolerance": ("how much higher a cell may go, relative to what it was (default: 5%%)", percent),
        "--floor": ("how much higher it may always go (default: 1MB)", size | {"default": FLOOR_BYTES}),
        "--all": ("show the unchanged cells, too", _FLAG),
    }
    doctor = {
        "--json": ("as JSON", _FLAG),
        "--verify": ("let known amounts of memory come and go, and exit 1 if a figure is wrong", _FLAG),
        "--quick": ("with --verify: in 3 s, without a device", _FLAG),
        "--estimate": ("with --verify: estimates of small models", _FLAG),
    }
    commands = {
        "run": ("execute a notebook and report every cell, or a script and report it", run),
        "report": ("rank the cells of a log or of a saved notebook", report),
        "compare": ("exit 1 if a cell goes higher than before, or newly fails", compared),
        "doctor": ("say what can be measured here, and how to get the rest", doctor),
    }
    parsers: dict[str, argparse.ArgumentParser] = {}
    for name, (what, options) in commands.items():
        parsers[name] = subparsers.add_parser(name, help=what, usage=usage if name == "run" else None)
        for names, (says, how) in options.items():
            parsers[name].add_argument(*names.split(), help=says, **how)
    return parser, parsers


def _size(word: str) -> int:
    try:
        return parse_size(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _number(word: str) -> float:
    with contextlib.suppress(ValueError):
        return float(word)
    return math.nan


def _seconds(word: str) -> float:
    if 0 < _number(word) < 2**31:
        return float(word)
    raise argparse.ArgumentTypeError(f"{word!r} is not a number of seconds: write it like 90")


def _percentage(word: str) -> float:
    if word.endswith("%") and 0 <= _number(word[:-1]) < math.inf:
        return float(word[:-1]) / 100
    raise argparse.ArgumentTypeError(f"{word!r} is not a percentage: write it like 5%")
