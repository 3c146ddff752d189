"""The subcommands of ``%gpulog``, and the help of the magics and of `IPyGPULogger`.

What it says of the options is what their traits say.
"""

from __future__ import annotations

import textwrap
from inspect import Parameter, Signature, cleandoc
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .options import Options

    Documented = TypeVar("Documented", bound=type[Options])

COMMANDS = {  # the subcommands, and what follows each
    "start": "options as name=value",
    "stop": "",
    "status": "",
    "summary": "--by peak, --by consumed or --by time",
    "plot": "",
    "fit": "nothing, the number of one cell, such as 4, and the name of a size",
    "save": "one path",
    "snapshot": "one path, or --failed and one path",
    "vars": "",
    "free": "",
    "doctor": "",
    "help": "",
}
RANKED_BY = ("peak", "consumed", "time")
FAILED = "--failed"
ASKS_FOR_HELP = ("-h", "--help")
_WIDTH = 88
_OPTIONS = "{options}"  # in a docstring: where they are listed

_MAGIC = """
Control the report that follows every cell, and look at the cells so far.

  %gpulog start [OPTION=VALUE ...]  start the reports, with these options changed
  %gpulog stop                      stop the reports
  %gpulog status                    whether it runs, with which options, what is exact
                                    here, and how each device's memory is divided
  %gpulog summary [--by peak]       the cells, ranked by peak, consumed or time, and
                                    those that may leak
  %gpulog plot                      memory over the time of the notebook, as a figure
  %gpulog fit [CELL] [NAME]         how the memory of a cell, such as 4, grows with its
                                    batch size, and which size fits, from its runs
  %gpulog save PATH                 write the cells' records to a .jsonl, .csv or
                                    .parquet file
  %gpulog snapshot [--failed] PATH  write torch's snapshot of its GPU memory to a file
                                    for pytorch.org/memory_viz: within a cell under
                                    --peak with the allocations so far, after one that
                                    ran out of memory with its own; --failed: its own,
                                    although more was allocated since
  %gpulog vars                      what holds memory: variables, Out, tracebacks,
                                    graphs
  %gpulog free                      release what the last traceback and Out still hold
  %gpulog doctor                    what can be measured here, and what to do where
                                    something cannot
  %gpulog help                      this text

  %%gpulog [--lines] [--peak[=all]] [--label TEXT]
      Measure just this cell, even while the reports are stopped.
      --lines  measure each line, also of functions that earlier cells defined
      --peak   tell what was alive when memory was highest, by kind and line;
               --peak=all in general RAM too where a GPU is used
      --label  name the cell in its report

The options of %gpulog start, which are those of IPyGPULogger, and their defaults:

{options}

For example: %gpulog start compact=True quiet=10MB
"""


def magic_help(options: type[Options]) -> str:
    """Return the help of the magics, with these options."""
    listed = []
    for name, trait in options.in_order().items():
        head = f"  {name}={trait.default()!r}"
        listed += textwrap.wrap(
            trait.help,
            _WIDTH,
            initial_indent=f"{head:21} " if len(head) < 21 else f"{head}  ",
            subsequent_indent=" " * 22,
        )
    return _MAGIC.strip().replace(_OPTIONS, "\n".join(listed))


def documented(cls: Documented) -> Documented:
    """Give a class the signature of its options, and list them in its docstring; a class decorator.

    Completion and ``?`` see each option with its default. The constructor itself takes the first two, which
    may be given by position, and any others as keywords.
    """
    constructor: Any = cls.__init__
    constructor.__signature__ = Signature([Parameter("self", Parameter.POSITIONAL_ONLY), *_parameters(cls)])
    if cls.__doc__:  # not under python -OO
        cls.__doc__ = cleandoc(cls.__doc__).replace(_OPTIONS, "\n    ".join(_arguments(cls)))
    return cls


def _parameters(cls: type[Options]) -> Iterator[Parameter]:
    for at, (name, trait) in enumerate(cls.in_order().items()):
        kind = Parameter.KEYWORD_ONLY if at > 1 else Parameter.POSITIONAL_OR_KEYWORD
        yield Parameter(name, kind, default=trait.default())


def _arguments(cls: type[Options]) -> Iterator[str]:
    for name, trait in cls.in_order().items():
        said = f"{name}: {trait.help} Default: {trait.default()!r}."
        yield from textwrap.wrap(said, _WIDTH, subsequent_indent="    ")
