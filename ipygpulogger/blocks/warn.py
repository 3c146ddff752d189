"""Warn of what could not be measured, or not exactly, without disturbing the user's code."""

from __future__ import annotations

import contextlib
import warnings

from ..records.units import printable

# As `warnings` keeps it for each module; one for all of ours, as each sentence names what it is about.
_shown: dict[str | tuple[str, type[Warning], int], int] = {}


def warn(sentence: str) -> None:
    """Issue a `RuntimeWarning`, once for each sentence unless the user's filters ask for more.

    Never raises: where the user's filters turn warnings into errors, nothing is shown.
    """
    with contextlib.suppress(Exception):  # also where the stream is broken, or `showwarning` is the user's
        warnings.warn_explicit(printable(sentence), RuntimeWarning, "ipygpulogger", 1, "ipygpulogger", _shown)
