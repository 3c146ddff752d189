"""The options of a logger: what each one takes, and the help that lists them in the words of its trait."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from contextlib import suppress
from inspect import Parameter, Signature, cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import traitlets
from traitlets import TraitError
from traitlets.config import Configurable

from ..engine.device_scope import METRICS
from ..records.units import parse_size
from ..runtime.errors import did_you_mean

if TYPE_CHECKING:
    from ..storage.log import Log

    Documented = TypeVar("Documented", bound=type["Options"])
    _Enum = traitlets.Enum[Any]
    _Unicode = traitlets.Unicode[Any, Any]
else:
    _Enum, _Unicode = traitlets.Enum, traitlets.Unicode  # which older ones cannot subscript


COMMANDS = {  # the subcommands, and what follows each
    "start": "options as name=value",
    "stop": "",
    "status": "",
    "summary": "--by needed, --by consumed, --by highest or --by time",
    "plot": "",
    "panel": "",
    "measure": "a statement",
    "fit": "nothing, the number of one cell, such as 4, and the name of a size",
    "save": "one path",
    "load": "one path",
    "snapshot": "one path, or --failed and one path",
    "vars": "",
    "free": "",
    "doctor": "",
    "help": "",
}
RANKED_BY = ("needed", "consumed", "highest", "time")
FAILED = "--failed"
ASKS_FOR_HELP = ("-h", "--help")
SILENT = ("none", "metadata")  # the reports that show nothing
_WIDTH = 88
_OPTIONS = "{options}"  # in a docstring: where they are listed

_MAGIC = """
Control the report that follows every cell, and look at the cells so far.

  %gpulog start [OPTION=VALUE ...]  start the reports, with these options changed
  %gpulog stop                      stop the reports
  %gpulog status                    whether it runs, with which options, what is exact
                                    here, and how each device's memory is divided
  %gpulog summary [--by needed]     the cells, ranked by needed, consumed, highest or
                                    time, and those that may leak
  %gpulog plot                      memory over the time in the cells, as a figure
  %gpulog panel                     the same live, with what is left and the reports;
                                    needs pip install 'ipygpulogger[panel]'
  %gpulog measure STATEMENT         run a statement, and tell on one line what it used
  %gpulog fit [CELL] [NAME]         how the memory of a cell, such as 4, grows with its
                                    batch size, and which size fits, from its runs
  %gpulog save PATH                 write the cells' records to a .jsonl, .csv or
                                    .parquet file
  %gpulog load PATH                 show the summary of such a file or of a notebook's
                                    records, and return them: old = %gpulog load PATH
  %gpulog snapshot [--failed] PATH  write torch's snapshot of its GPU memory to a file
                                    for pytorch.org/memory_viz: as it is now, within a
                                    cell under --peak with the allocations so far;
                                    --failed: of the last such cell that ran out of
                                    memory
  %gpulog vars                      what holds memory: variables, Out, tracebacks,
                                    graphs
  %gpulog free                      release what the last traceback and Out still hold
  %gpulog doctor                    what can be measured here, and what to do where
                                    something cannot
  %gpulog help                      this text

  %%gpulog [--lines[=NAMES]] [--peak[=all]] [--label TEXT]
      Measure just this cell, even while the reports are stopped.
      --lines  measure each line, also of functions that earlier cells defined;
               --lines=f,Model.forward the lines of these functions alone
      --peak   tell what was alive when memory was highest, by kind and line;
               --peak=all in general RAM too where a GPU is used. RAM needs memray:
               pip install 'ipygpulogger[memray]'
      --label  name the cell in its report

The options of %gpulog start, which are those of IPyGPULogger, and their defaults:

{options}

For example: %gpulog start compact=True quiet=10MB
"""


_TIME = re.compile(r"(\d{1,18}(?:\.\d{1,18})?|\.\d{1,18})\s*(ms|s|min|h)", re.ASCII | re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
_BETWEEN = re.compile(r"(?<=[a-z])(?:\s*,\s*|\s+)", re.ASCII | re.IGNORECASE)  # not in "10 MB"


class Threshold(NamedTuple):
    """What a cell must reach to be reported: a size of memory, a time, or one of the two."""

    size_bytes: int | None = None
    time_s: float | None = None

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Return what a text means, such as "10MB 1s"; a part without a unit, zero or twice is refused."""
        parts = _BETWEEN.split(text.strip())
        times_s = [float(m[1]) * _SECONDS[m[2].lower()] for m in map(_TIME.fullmatch, parts) if m]
        with suppress(ValueError):
            sizes_bytes = [parse_size(part) for part in parts if not _TIME.fullmatch(part)]
            if len(sizes_bytes) <= 1 and len(times_s) <= 1 and 0 not in (*sizes_bytes, *times_s):
                return cls(next(iter(sizes_bytes), None), next(iter(times_s), None))
        raise ValueError(f"{text!r} is not a size, a time or both, such as '10MB', '1s' or '10MB 1s'")


class _OneLine(Exception):  # noqa: N818 - the user's mistake, reported in one sentence
    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows instead of a traceback, which would be traitlets'."""
        return [f"{type(self).__name__}: {self}"]


class BadOption(_OneLine, TraitError, ValueError):  # noqa: N818
    """An option does not take this value: a `ValueError` in a call, and what traitlets expects of a trait."""


class UnknownOption(_OneLine, TypeError):  # noqa: N818
    """There is no such option."""


class _Option:
    """A trait that refuses a value in one sentence, with or without an object that has the trait."""

    name: str | None
    takes: str  # how the sentence goes on

    def error(self, obj: Any, value: Any, error: Any = None, info: Any = None) -> NoReturn:  # noqa: ARG002
        """Raise the refusal; called by traitlets."""
        raise BadOption(f"{self.name} takes {self.takes}, not {value!r}")


class Enum(_Option, _Enum):  # type: ignore[type-arg, misc, unused-ignore]
    """One of several words, True and False; ``%config`` lists them because the class has this name."""

    def __init__(self, *choices: str | bool, default: str | bool, **more: Any) -> None:
        super().__init__(choices, default, config=True, **more)
        self.takes: str = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"

    def validate(self, obj: Any, value: Any) -> Any:
        """Return the value, of 1 and 0 as True and False; called by traitlets."""
        if not isinstance(value, (str, int)):  # an array, for one, does not compare as one value
            self.error(obj, value)
        found = super().validate(obj, value)
        return found if isinstance(found, str) else bool(found)

    def from_string(self, s: str) -> Any:
        """Return the value of a word on a command line; called by traitlets."""
        return {"True": True, "False": False}.get(s, s)


def _switch(default: bool, says: str) -> Enum:
    return Enum(True, False, default=default, help=says)


class Tuple(_Option, traitlets.Tuple):  # type: ignore[type-arg, misc, unused-ignore]
    """Names of metrics."""

    takes: str = f"any of {', '.join(map(repr, METRICS))}"

    def validate(self, obj: Any, value: Any) -> Any:
        """Return the names as a tuple; called by traitlets."""
        if not isinstance(value, (tuple, list)) or any(name not in [*METRICS] for name in value):
            self.error(obj, value)
        return tuple(value)


class Text(_Option, _Unicode):  # type: ignore[type-arg, misc, unused-ignore]
    """A text, or None; `understand` raises a `ValueError` for a text that means nothing."""

    def __init__(self, understand: Callable[[Any], object], takes: str, *kinds: type, **more: Any) -> None:
        super().__init__(None, allow_none=True, config=True, **more)
        self.takes: str = f"{takes}, or None"
        self._understand, self._kinds = understand, (str, *kinds)

    def validate(self, obj: Any, value: Any) -> Any:
        """Return the text if it is understood; called by traitlets."""
        if not isinstance(value, self._kinds):
            self.error(obj, value)
        try:
            self._understand(value)
        except ValueError as error:
            raise BadOption(f"{self.name}: {error}") from error
        return value


def _log(path: str | Path) -> Log:
    if Path(path).suffix.lower() != ".jsonl":
        raise ValueError(f"a log is a .jsonl file, not {str(path)!r}")
    from ..storage.log import Log

    return Log(path)


class Options(Configurable):
    """The options of `IPyGPULogger`: set in a call, by ``%config``, or in a configuration file."""

    compact: Enum = _switch(False, "Report on one line.")
    gc_collect: Enum = Enum(
        *(True, False, "full"),
        default=True,
        help="Collect garbage after each cell, before memory is read: young garbage always, all of it where"
        " that can give memory back. 'full' collects all of it each time, which takes 0.1 s once torch is"
        " imported.",
    )
    clear_cache: Enum = _switch(True, "Empty torch's cache before memory is read.")
    preload: Enum = _switch(
        True,
        "Create the GPU context before a cell, once torch is imported; False if you fork CUDA workers.",
    )
    report: Enum = Enum(
        *("text", "rich", "metadata", "none"),
        default="text",
        help="Print the reports ('text'), display them as HTML ('rich', as %load_ext does), show none and"
        " have `ipygpulogger run` write the records into the cells' metadata ('metadata'), or show 'none'.",
    )
    quiet: Text = Text(
        Threshold.parse,
        "a size, a time or both, such as '10MB', '1s' or '10MB 1s'",
        help="Report no cell under this much memory moved ('10MB'), time ('1s'), or both ('10MB 1s').",
    )
    devices: Enum = Enum(
        *("used", "all"),
        default="used",
        help="Report the devices that this process has 'used', or 'all' of the machine.",
    )
    metrics: Tuple = Tuple(
        help="Report 'energy', 'utilization' or both of each GPU, all processes together.", config=True
    )
    lines: Enum = _switch(False, "Measure each line of cells, and of functions that earlier cells defined.")
    peak: Enum = Enum(
        *(True, False, "all"),
        default=False,
        help="Tell what was alive when memory was highest, by kind and line: on GPUs from torch's record of"
        " its allocations; in general RAM through memray, if it is installed, where no GPU is used. 'all'"
        " does both.",
    )
    budget: Text = Text(
        parse_size,
        "a size such as '10GB'",
        help="Mark each cell that uses more than this ('10GB') of a GPU, or of RAM where it uses no GPU.",
    )
    log: Text = Text(
        _log,
        "the path of a .jsonl file",
        Path,
        help="Append each cell's record to this file ('run.jsonl') as the cell ends.",
    )
    log_source: Enum = _switch(False, "Write lines of code into the log, and into what %gpulog save writes.")
    reset_peaks: Enum = _switch(
        True,
        "Reset the kernel's high-water mark, for exact peaks of RAM; lowers getrusage().ru_maxrss.",
    )

    _log: Log | None = None
    _threshold: Threshold | None = None  # of `quiet`

    @traitlets.observe("log", "quiet")
    def _understand(self, option: Any) -> None:
        """Make what an option stands for, now that it was set."""
        if option.name == "quiet":
            self._threshold = None if self.quiet is None else Threshold.parse(self.quiet)
        else:
            self._log = None if self.log is None else _log(self.log)

    def __dir__(self) -> list[str]:
        """Return what users need; traitlets' own names work, and are not completed."""
        ours = type(self).__mro__[: type(self).__mro__.index(Options) + 1]
        names = {name for cls in ours for name in vars(cls) if not name.startswith("_")}
        return sorted(names - {"check", "expect", "in_order"})

    @classmethod
    def in_order(cls) -> dict[str, Any]:
        """Return the traits of the options by name, in the order in which help lists them."""
        traits: dict[str, Any] = cls.class_traits(config=True)
        return {name: traits[name] for name in vars(Options) if name in traits}

    @classmethod
    def check(cls, options: dict[str, Any]) -> None:
        """Refuse options that cannot be set, before any is: with a `TypeError` one that there is not."""
        traits: dict[str, Any] = cls.class_traits(config=True)
        for name, value in options.items():
            if name not in traits:
                raise cls._unknown(name)
            if value is not None or not traits[name].allow_none:
                traits[name].validate(None, value)

    @classmethod
    def _unknown(cls, name: str) -> TypeError:
        """Return the refusal of an option that does not exist, with the nearest that does."""
        known = sorted(cls.class_traits(config=True))
        near = did_you_mean(name, known)
        return UnknownOption(f"{cls.__name__} has no option {name!r}{near}; it has {', '.join(known)}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an option; a name that no class declares is a mistyped option, and refused."""
        if not name.startswith("_") and not hasattr(type(self), name):
            raise self._unknown(name)
        super().__setattr__(name, value)


def _listed(name: str, trait: Any) -> str:
    head = f"  {name}={trait.default()!r} "
    return textwrap.fill(
        trait.help, _WIDTH, initial_indent=f"{head:22}{' ' * (len(head) > 21)}", subsequent_indent=" " * 22
    )


HELP = _MAGIC.strip().replace(_OPTIONS, "\n".join(_listed(*one) for one in Options.in_order().items()))


def documented(cls: Documented) -> Documented:
    """Give a class the signature of its options, and list them in its docstring."""
    constructor: Any = cls.__init__
    parameters = [Parameter("self", Parameter.POSITIONAL_ONLY)]
    lines = []
    for at, (name, trait) in enumerate(cls.in_order().items()):
        kind = Parameter.KEYWORD_ONLY if at > 1 else Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(Parameter(name, kind, default=trait.default()))
        line = f"{name}: {trait.help} Default: {trait.default()!r}."
        lines += textwrap.wrap(line, _WIDTH, subsequent_indent="    ")
    constructor.__signature__ = Signature(parameters)
    if cls.__doc__:  # not under python -OO
        cls.__doc__ = cleandoc(cls.__doc__).replace(_OPTIONS, "\n    ".join(lines))
    return cls
