"""``doctor --verify``: known amounts of memory come and go, and each figure is shown beside the truth."""

from __future__ import annotations

import argparse
import getpass
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from ..records.units import MB, printable
from ..render.table import Column, Table
from ..runtime.errors import first_line
from ..verify import device, estimates, ram, system
from ..verify.check import Check, Figure, Unchecked
from .arguments import BadRequest
from .progress import Progress
from .streams import interrupt_held_back, is_terminal, say, styled

_COLUMNS = Column("Sizes in MB", "words"), Column("Figure"), Column("Truth"), Column("Label", "words")
_WIDE = 1000  # where no terminal cuts lines off


@dataclass
class _Findings:
    """What the checks have found so far."""

    facts: dict[str, str] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # the errors, by the name of the check
    interrupted_in: str | None = None

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Keep an error within a context as the failure of this part."""
        self.interrupted_in = name  # so far
        try:
            yield
        except Exception as error:
            self.failed[name] = f"{type(error).__name__}: {first_line(error)}"
        self.interrupted_in = None

    def verdict(self) -> str:
        """Return what was found, in one sentence; what is wrong comes first."""
        claims = [one for one in self.figures if one.label != "about"]
        wrong = sum(one.is_wrong for one in claims)
        counts = {"WRONG": wrong, "of the checks FAILED": len(self.failed)}
        counts[f"of {len(claims)} figures hold"] = len(claims) - wrong
        counts["estimated without a bound"] = len(self.figures) - len(claims)
        counts["could not be checked"] = len(self.unchecked)
        said = "; ".join(f"{count} {what}" for what, count in counts.items() if count or "hold" in what)
        return f"interrupted in {self.interrupted_in}: {said}" if self.interrupted_in else said

    def text(self) -> str:
        """Return the system, the table, what could not be checked, what is wrong, and the verdict."""
        width = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else _WIDE
        table, styles = Table([*_COLUMNS, Column("", "words")]), [""]
        wrong = [f"{name}: the check failed: {error}" for name, error in self.failed.items()]
        for (where, case), found in groupby(self.figures, attrgetter("where", "case")):
            table.add(f"{where}, {case}")
            styles.append("")
            for one in found:
                table.add(*_cells(one))
                styles.append("failed" if one.is_wrong else "")
                if one.is_wrong:
                    bounds, truth = _between(one.lo, one.hi), _between(*one.truth)
                    wrong.append(f"{where}, {case}: {one.what} {bounds} {one.unit}, in truth {truth}")
        unchecked = [f"{one.where}, {one.case}: {one.reason}" for one in self.unchecked]
        lines = _listed("System", [f"{name:14}{fact}" for name, fact in self.facts.items()], width)
        lines += [*zip(table.text(width), styles, strict=True), ("", "")] if self.figures else []
        lines += _listed("Not checked", unchecked, width) + _listed("Wrong", wrong, width, "failed")
        lines.append((self.verdict(), "failed" if wrong else "good"))
        return "\n".join(styled(printable(line), style, sys.stdout) for line, style in lines)

    def json(self) -> str:
        """Return all of it for an issue report, without the name and the home of the user."""
        found = asdict(self) | {"verdict": self.verdict()}
        found["figures"] = [asdict(one) | {"is_wrong": one.is_wrong} for one in self.figures]
        text = json.dumps(found, indent=2)
        with suppress(Exception):  # who the user is may be unknown
            if len(home := json.dumps(str(Path.home()))[1:-1]) > 1:  # in a container it may be "/"
                text = text.replace(home, "~")
            text = re.sub(rf"(?<=[/\\]){re.escape(getpass.getuser())}\b", "USER", text)
        return text


def _listed(head: str, items: list[str], width: int, style: str = "") -> list[tuple[str, str]]:
    """Return the lines of a list with its head, and their style; none of an empty one."""
    wrapped = [line for one in items for line in textwrap.wrap(one, width - 2, subsequent_indent=" " * 14)]
    lines = [f"{head}:", *(f"  {line}" for line in wrapped), ""]
    return [(line, style) for line in lines] if items else []


def _cells(one: Figure) -> tuple[str, ...]:
    scale, digits, unit = {"B": (MB, 2, ""), "s": (1, 4, " s"), "": (1, 0, "")}[one.unit]

    def text(value: float) -> str:
        return f"{round(value / scale, digits) + 0.0:.{digits}f}"

    least, most = one.truth
    truth = text((least + most) / 2) + (f" ±{(most - least) / 2 / scale:.2g}" if most > least else "")
    shown = _between(text(one.lo), None if one.hi is None else text(one.hi))
    label = f"{one.label} ±{one.precision / scale:.2g}" if one.precision else one.label
    verdict = "WRONG" if one.is_wrong else "ok"
    if one.label == "about":
        verdict = f"{one.lo / one.truth[0] - 1:+.1%}"
    return one.what, f"{shown}{unit}", f"{truth}{unit}", label, verdict


def _between(lo: object, hi: object | None) -> str:
    return f"≥{lo}" if hi is None else f"{lo}" if lo == hi else f"{lo} to {hi}"


def _run(options: argparse.Namespace, found: _Findings, progress: Progress) -> None:
    """Run each check apart from the others."""
    parts = {"RAM": ram.checks} if options.quick else {"RAM": ram.checks, "devices": device.checks}
    for name, make in (parts | ({"estimates": estimates.checks} if options.estimate else {})).items():
        checks: list[Check] = []
        with found.part(name):
            progress.show(f"looking for {name}")
            checks = make()
        for check in checks:
            with found.part(check.name), closing(check.found()) as shown:  # type: ignore[type-var]
                progress.show(check.name)
                for one in shown:
                    (found.unchecked if isinstance(one, Unchecked) else found.figures).append(one)  # type: ignore[arg-type]
    with found.part("system"):  # last, when the frameworks that were used are known
        found.facts = system.facts()


def verify(options: argparse.Namespace) -> int:
    """Run the checks, print what they found, and return 1 if a figure is wrong or a check failed, else 0."""
    if options.quick and options.estimate:
        raise BadRequest("--quick uses no device, and --estimate needs one: ask for one of them")
    found, progress = _Findings(), Progress()
    try:
        _run(options, found, progress)
    finally:
        with interrupt_held_back():
            progress.close()
            say(found.json() if options.json else found.text())
    if not (found.figures or found.failed):
        raise BadRequest("nothing could be checked here, so nothing is proven")
    return 1 if found.failed or any(one.is_wrong for one in found.figures) else 0
