"""Equality and `repr` of a record, the record as plain values, and how a notebook displays it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")
_SCALARS = frozenset((int, str, float, bool, type(None)))


@cache
def fields_of(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return a class's fields: name and default, which is `dataclasses.MISSING` without one."""
    return tuple((one.name, one.default) for one in fields(kind))


class Value:
    """A frozen dataclass that equals another of its class with equal fields.

    `dataclasses` would compile these methods anew for each class, a tenth of the time that loading takes.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        kind: Any = self.__class__
        values = _values_of(kind)
        return bool(values(self) == values(other))

    def __hash__(self) -> int:
        kind: Any = self.__class__
        return hash(_values_of(kind)(self))

    def __repr__(self) -> str:
        kind: Any = type(self)
        values = (f"{name}={getattr(self, name)!r}" for name, _ in fields_of(kind))
        return f"{kind.__qualname__}({', '.join(values)})"


@cache
def _values_of(kind: Any) -> Callable[[Any], Any]:
    return attrgetter(*(name for name, _ in fields_of(kind)))


def plain(value: Any) -> Any:
    """Return what `dataclasses.asdict` does, without its deep copies: a long log has a million values."""
    kind: Any = type(value)
    if kind is tuple:
        return value if not value or type(value[0]) in (str, tuple) else tuple(map(plain, value))
    if not hasattr(kind, "__dataclass_fields__"):
        return value
    members = ((name, getattr(value, name)) for name, _ in fields_of(kind))
    return {name: member if type(member) in _SCALARS else plain(member) for name, member in members}


text_of: dict[type, Callable[[Any], str]] = {}  # of classes whose `repr` is a table of several lines
html_of: dict[type, Callable[[Any], str]] = {}  # by class; `render.summary` fills it
_DISPLAYS = "ipygpulogger.render.summary"  # by name: loaded when a record is first displayed


class Displayed:
    """A value that a notebook displays as HTML, and every other front end as its `repr`."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """Return the value as HTML, for IPython; None if nothing was registered for its class."""
        to_html = _registered(html_of, self)
        return None if to_html is None else str(to_html(self))


class Sequenced(Displayed, Sequence[T]):
    """Records in their order, as a sequence that a notebook displays."""

    _records: Sequence[T]

    def __getitem__(self, index: Any) -> Any:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._records))


def displayed_text(value: Displayed) -> str:
    """Return a value as the text that `text_of` has for its class."""
    return str(_registered(text_of, value)(value))


def _registered(functions: dict[type, Callable[[Any], str]], value: Displayed) -> Any:
    import_module(_DISPLAYS)
    return next((functions[base] for base in type(value).__mro__ if base in functions), None)
