"""How a notebook displays a record: as HTML that `render` makes, which `records` does not import."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

text_of: dict[type, Callable[[Any], str]] = {}  # of classes whose `repr` is a table of several lines
html_of: dict[type, Callable[[Any], str]] = {}  # by class; `render.displays` fills it
_DISPLAYS = "ipygpulogger.render.displays"  # by name: loaded when a record is first displayed


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
