"""The command ``doctor``: what can be measured here, and how to get the rest."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..engine.machine import machine
from ..render.diagnoses import diagnoses
from .streams import say

if TYPE_CHECKING:
    import argparse


def doctor(options: argparse.Namespace) -> int:
    """Print the diagnosis of each source of figures, and return the exit status 0."""
    machine().load()  # imports frameworks and creates contexts: this process exists for nothing else
    found = machine().diagnose()
    if options.json:
        says = json.dumps([asdict(one) for one in found], indent=2)
        say(says.replace("\x7f", r"\u007f"))  # the one control character that JSON does not escape
    else:
        say(diagnoses(found))
    return 0
