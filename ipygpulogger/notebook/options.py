"""The options of a logger: what each one takes, and the sentence that refuses any other value."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import traitlets
from traitlets import TraitError
from traitlets.config import Configurable

from ..engine.device_scope import METRICS


class BadOption(TraitError, ValueError):  # noqa: N818 - the user's mistake, reported in one sentence
    """An option does not take this value: a `ValueError` in a call, and what traitlets expects of a trait."""


class _Option:
    """A trait that refuses a value in one sentence, with or without an object that has the trait.

    ``%config IPyGPULogger`` lists each option with its class's name, and with its choices where that name
    contains "Enum". So these classes are named as those of traitlets.
    """

    name: str | None
    takes: str  # how the sentence goes on
    words: tuple[str, ...] = ()  # what completion offers for it, beside None and paths

    def error(self, obj: Any, value: Any, error: Any = None, info: Any = None) -> NoReturn:  # noqa: ARG002
        """Raise the refusal; called by traitlets."""
        raise BadOption(f"{self.name} takes {self.takes}, not {value!r}")


class Bool(_Option, traitlets.Bool):  # type: ignore[type-arg, misc, unused-ignore]
    """True or False."""

    takes = "True or False"
    words = ("True", "False")

    def validate(self, obj: Any, value: Any) -> Any:
        """Return the value; 1 and 0 are taken from a configuration alone. Called by traitlets."""
        if obj is None and not isinstance(value, bool):
            self.error(obj, value)
        return super().validate(obj, value)


class Enum(_Option, traitlets.Enum):  # type: ignore[type-arg, misc, unused-ignore]
    """One of several words."""

    def __init__(self, *words: str, default: str, **more: Any) -> None:
        super().__init__(words, default, **more)
        self.takes = " or ".join(map(repr, words))
        self.words = words


class BoolOrEnum(_Option, traitlets.Enum):  # type: ignore[type-arg, misc, unused-ignore]
    """True, False, or a word that means more than True."""

    def __init__(self, word: str, *, default: bool, **more: Any) -> None:
        super().__init__((True, False, word), default, **more)
        self.takes = f"True, False or {word!r}"
        self.words = ("True", "False", word)

    def validate(self, obj: Any, value: Any) -> Any:
        """Return the value; 1 and 0 are taken from a configuration alone. Called by traitlets."""
        if not isinstance(value, (bool, str) if obj is None else (bool, str, int)):
            self.error(obj, value)
        found = super().validate(obj, value)
        return found if isinstance(found, str) else bool(found)

    def from_string(self, s: str) -> Any:
        """Return the value of a word on a command line; called by traitlets."""
        return {"True": True, "False": False}.get(s, s)


class Tuple(_Option, traitlets.Tuple):  # type: ignore[type-arg, misc, unused-ignore]
    """Names of metrics."""

    takes = f"any of {', '.join(map(repr, METRICS))}"
    words = tuple(METRICS)

    def validate(self, obj: Any, value: Any) -> Any:
        """Return the names as a tuple; called by traitlets."""
        if not isinstance(value, (tuple, list)) or any(name not in list(METRICS) for name in value):
            self.error(obj, value)
        return tuple(value)


class _Text(_Option, traitlets.Unicode):  # type: ignore[type-arg, misc, unused-ignore]
    """A text that something else understands."""

    kinds: tuple[type, ...] = (str,)

    def validate(self, obj: Any, value: Any) -> Any:
        """Return the text if it is understood; called by traitlets."""
        if not isinstance(value, self.kinds):
            self.error(obj, value)
        try:
            self.understand(value)
        except ValueError as error:
            raise BadOption(str(error)) from error
        return value

    def understand(self, value: Any) -> None:
        """Raise a `ValueError` if the text means nothing."""
        raise NotImplementedError


class Size(_Text):
    """A size of memory, such as "10GB"."""

    takes = "a size such as '10GB', or None"

    def understand(self, value: Any) -> None:
        """Refuse what is no size."""
        from ..records.units import parse_size

        parse_size(value)


class Quiet(_Text):
    """A size of memory, a time, or both, such as "10MB 1s"."""

    takes = "a size, a time or both, such as '10MB', '1s' or '10MB 1s', or None"

    def understand(self, value: Any) -> None:
        """Refuse what is neither a size nor a time."""
        from .quiet import Threshold

        try:
            Threshold.parse(value)
        except ValueError:
            self.error(None, value)


class LogPath(_Text):
    """The path of a log that can be written and that `History.load` reads."""

    takes = "the path of a .jsonl file, or None"
    kinds = (str, Path)

    def understand(self, value: Any) -> None:
        """Refuse a path at which there can be no log."""
        if Path(value).suffix.lower() != ".jsonl":
            raise BadOption(f"{self.name} takes the path of a .jsonl file, not {str(value)!r}")
        from ..storage.log import Log

        Log(value)


class Options(Configurable):
    """The options of `IPyGPULogger`: set in a call, by ``%config``, or in a configuration file."""

    compact = Bool(False, help="Report on one line.").tag(config=True)
    gc_collect = BoolOrEnum(
        "full",
        default=True,
        help="Collect garbage after each cell, before memory is read: young garbage always, all of it where"
        " that can give memory back. 'full' collects all of it each time, which takes 0.1 s once torch is"
        " imported.",
    ).tag(config=True)
    clear_cache = Bool(True, help="Empty torch's cache before memory is read.").tag(config=True)
    preload = Bool(
        True,
        help="Create the GPU context before a cell, once torch is imported; False if you fork CUDA workers.",
    ).tag(config=True)
    report = Enum(
        "text",
        "rich",
        "none",
        default="text",
        help="Print the reports ('text'), display them as HTML ('rich', as %load_ext does) or show 'none'.",
    ).tag(config=True)
    quiet = Quiet(
        None,
        allow_none=True,
        help="Report no cell under this much memory moved ('10MB'), time ('1s'), or both ('10MB,1s').",
    ).tag(config=True)
    devices = Enum(
        "used",
        "all",
        default="used",
        help="Report the devices that this process has 'used', or 'all' of the machine.",
    ).tag(config=True)
    metrics = Tuple(help="Report 'energy', 'utilization' or both of each GPU, all processes together.").tag(
        config=True
    )
    lines = Bool(
        False, help="Measure each line of the cells, and of functions that earlier cells defined."
    ).tag(config=True)
    peak = BoolOrEnum(
        "all",
        default=False,
        help="Tell what was alive when memory was highest, by kind and line: on GPUs from torch's record of"
        " its allocations; in general RAM through memray, if it is installed, where no GPU is used. 'all'"
        " does both.",
    ).tag(config=True)
    budget = Size(
        None,
        allow_none=True,
        help="Mark each cell that uses more than this ('10GB') of a GPU, or of RAM where it uses no GPU.",
    ).tag(config=True)
    log = LogPath(
        None, allow_none=True, help="Append each cell's record to this file ('run.jsonl') as the cell ends."
    ).tag(config=True)
    reset_peaks = Bool(
        True, help="Reset the kernel's high-water mark, for exact peaks of RAM; lowers getrusage().ru_maxrss."
    ).tag(config=True)

    @classmethod
    def in_order(cls) -> dict[str, Any]:
        """Return the traits of the options by name, in the order in which help lists them."""
        traits: dict[str, Any] = cls.class_traits(config=True)
        return {name: traits[name] for name in vars(Options) if name in traits}

    @classmethod
    def check(cls, options: dict[str, Any]) -> None:
        """Refuse options that cannot be set, before any of them is.

        Args:
            options: Values by name.

        Raises:
            TypeError: There is no such option.
            ValueError: The option does not take the value.
        """
        traits: dict[str, Any] = cls.class_traits(config=True)
        for name, value in options.items():
            if name not in traits:
                raise cls._unknown(name)
            if value is not None or not traits[name].allow_none:
                traits[name].validate(None, value)

    @classmethod
    def _unknown(cls, name: str) -> TypeError:
        """Return the refusal of an option that does not exist, with the nearest that does."""
        from difflib import get_close_matches

        known = sorted(cls.class_traits(config=True))
        near = "".join(f" (did you mean {one!r}?)" for one in get_close_matches(name, known, 1))
        return TypeError(f"{cls.__name__} has no option {name!r}{near}; it has {', '.join(known)}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an option; a name that no class declares is a mistyped option, and refused.

        Raises:
            TypeError: There is no such option.
        """
        if not name.startswith("_") and not hasattr(type(self), name):
            raise self._unknown(name)
        super().__setattr__(name, value)
