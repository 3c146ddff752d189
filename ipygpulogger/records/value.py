"""Equality and `repr` of a record, and how a notebook displays it.

`dataclasses` would compile all three anew for each class, which was a third of the time that importing the
records took. So they are written here once, for classes with ``eq=False, repr=False``.
"""

from __future__ import annotations

from dataclasses import field, fields
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_LATER = "later"


def later(default: Any) -> Any:
    """Return the field of a record that earlier versions did not have.

    It is not written to JSON while it has its default, so that what they wrote is written again unchanged.
    """
    return field(default=default, metadata={_LATER: True})


@cache
def later_fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the names of such fields of a class, with their defaults."""
    return tuple((one.name, one.default) for one in fields(kind) if one.metadata.get(_LATER))


class Value:
    """A frozen dataclass that equals another of its class with equal fields."""

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
        values = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self))  # type: ignore[arg-type]
        return f"{type(self).__qualname__}({', '.join(values)})"


@cache
def _values_of(kind: type) -> Callable[[Any], Any]:
    """Return a function that returns the values of all fields."""
    return attrgetter(*(one.name for one in fields(kind)))


def plain(value: Any) -> Any:
    """Return what `dataclasses.asdict` does, without its deep copies: a long log has a million values."""
    kind: Any = type(value)
    if kind is tuple:
        return value if not value or type(value[0]) in (str, tuple) else tuple(map(plain, value))
    names = getattr(kind, "__dataclass_fields__", None)
    if names is None:
        return value
    found = dict(zip(names, _values_of(kind)(value), strict=True))
    for name, default in later_fields(kind):
        if found[name] == default:
            del found[name]
    for name, member in found.items():
        if type(member) not in _SCALARS:
            found[name] = plain(member)
    return found


_SCALARS = frozenset((int, str, float, bool, type(None)))


text_of: dict[type, Callable[[Any], str]] = {}  # of classes whose `repr` is a table of several lines
html_of: dict[type, Callable[[Any], str]] = {}  # by class; `render.summary` fills it
_DISPLAYS = "ipygpulogger.render.summary"  # by name: loaded when a record is first displayed


class Displayed:
    """A value that a notebook displays as HTML, and every other front end as its `repr`."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """Return the value as HTML, for IPython; None if nothing was registered for its class."""
        import_module(_DISPLAYS)
        found = (html_of[base] for base in type(self).__mro__ if base in html_of)
        to_html = next(found, None)
        return None if to_html is None else to_html(self)


def displayed_text(value: Displayed) -> str:
    """Return a value as the text that `text_of` has for its class."""
    import_module(_DISPLAYS)
    return text_of[type(value)](value)
