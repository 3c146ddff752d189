"""The options of the command line: what each command takes, and how a value is read."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..records import budget
from ..records.compare import FLOOR_BYTES, TOLERANCE
from ..records.units import printable
from .streams import say

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        said = printable(" ".join(message.split()))
        self.exit(2, f"{self.prog}: {said}; {self.prog} --help tells more\n")


class _Version(argparse.Action):
    """The option ``--version``; the version is looked up where it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **more)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the version and exit."""
        from importlib.metadata import version  # 50 ms

        say(f"{parser.prog} {version('ipygpulogger')}")
        parser.exit()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options, with the command's name as `command`; exit with status 2 if they are invalid."""
    return _parser().parse_args(_joined(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ipygpulogger", description="What each cell of a notebook costs in RAM, GPU RAM and time."
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="execute a notebook and report every cell")
    run.add_argument("notebook", type=Path, help="the notebook; it is not changed")
    run.add_argument(
        "-o", "--output", type=Path, help="the executed notebook (default: NAME.executed.ipynb beside it)"
    )
    run.add_argument("--show-output", action="store_true", help="also print what the cells print")
    run.add_argument(
        "--allow-errors",
        action="store_true",
        help="go on after a cell that fails, and exit 0 all the same",
    )
    run.add_argument("--log", type=Path, help="also write the records to this file, one line of JSON a cell")
    run.add_argument("--html", type=Path, metavar="PAGE", help="also write one self-contained HTML page")
    run.add_argument("--max-gpu", type=_size, metavar="SIZE", help="exit 1 if a cell peaks higher on a GPU")
    run.add_argument("--max-ram", type=_size, metavar="SIZE", help="exit 1 if a cell peaks higher in RAM")
    run.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="stop at a cell that runs longer")
    run.add_argument("--kernel", metavar="NAME", help="use this kernel, not the notebook's own")
    run.add_argument(
        "-p",
        "--parameters",
        action="append",
        default=[],
        type=_parameter,
        metavar="NAME VALUE",
        help="set a parameter, as papermill does; may be repeated",
    )
    run.add_argument(
        "-f", "--parameters-file", type=Path, metavar="FILE", help="parameters from a JSON or YAML file"
    )

    report = commands.add_parser("report", help="rank the cells of a log or of a saved notebook")
    report.add_argument("path", type=Path, help="a log (.jsonl, .csv, .parquet) or a saved notebook (.ipynb)")
    report.add_argument("--by", choices=("peak", "consumed", "time"), default="peak", help="rank by this")
    report.add_argument("--html", type=Path, metavar="PAGE", help="also write one self-contained HTML page")

    compared = commands.add_parser("compare", help="exit 1 if a cell peaks higher than it did")
    compared.add_argument("base", type=Path, help="the run before: a log or a saved notebook")
    compared.add_argument("new", type=Path, help="the run now")
    compared.add_argument(
        "--tolerance",
        type=_percentage,
        default=TOLERANCE,
        metavar="PERCENT",
        help="how much a peak may grow by, relative to what it was (default: 5%%)",
    )
    compared.add_argument(
        "--floor",
        type=_size,
        default=FLOOR_BYTES,
        metavar="SIZE",
        help="how much a peak may always grow by (default: 1MB)",
    )

    doctor = commands.add_parser("doctor", help="say what can be measured here, and how to get the rest")
    doctor.add_argument("--json", action="store_true", help="as JSON")
    return parser


def _joined(arguments: Sequence[str]) -> list[str]:
    """Return the words with each ``-p NAME VALUE`` as one, because a value may begin with a dash."""
    joined, rest = [], iter(arguments)
    for word in rest:
        if word in ("-p", "--parameters"):
            joined.append(f"--parameters={json.dumps([value for _, value in zip('NV', rest, strict=False)])}")
        else:
            joined.append(word)
    return joined


def _parameter(word: str) -> tuple[str, str]:
    """Return the two words that `_joined` made one."""
    try:
        name, value = json.loads(word)
        whole = isinstance(name, str) and isinstance(value, str) and word.startswith("[")
    except (TypeError, ValueError, RecursionError):
        whole = False
    if not whole:
        raise argparse.ArgumentTypeError("-p takes two words, the parameter's name and its value")
    return name, value


def _size(word: str) -> int:
    try:
        return budget.parse(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _seconds(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 2**31:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of seconds: write it like 90")
    return seconds


def _percentage(word: str) -> float:
    number, percent, after = word.partition("%")
    try:
        part = float(number) / 100 if percent and not after else -1.0
    except ValueError:
        part = -1.0
    if not 0 <= part < float("inf"):
        raise argparse.ArgumentTypeError(f"{word!r} is not a percentage: write it like 5%")
    return part
