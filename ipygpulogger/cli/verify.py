"""``doctor --verify``: known amounts of memory come and go, and each figure is shown beside the truth."""

from __future__ import annotations

import getpass
import json
import math
import re
import shutil
import sys
import textwrap
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..records.units import MB, printable
from ..render.table import Column, Table
from ..runtime.errors import first_line
from ..verify import device, estimates, ram, system
from ..verify.check import Figure, Unchecked
from .arguments import BadRequest
from .progress import Progress
from .streams import interrupt_held_back, is_terminal, say, styled

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ..verify.check import Check

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

    def verdict(self) -> str:
        """Return what was found, in one sentence."""
        claims = [one for one in self.figures if one.label != "about"]
        wrong = sum(one.is_wrong for one in claims)
        counts = {"wrong": wrong, "of the checks failed": len(self.failed)}
        counts["could not be checked"] = len(self.unchecked)
        counts["estimated without a bound"] = len(self.figures) - len(claims)
        said = [f"{len(claims) - wrong} of {len(claims)} figures hold"]
        said += [f"{count} {what}" for what, count in counts.items() if count]
        return (f"interrupted in {self.interrupted_in}: " if self.interrupted_in else "") + "; ".join(said)

    def text(self) -> str:
        """Return the system, the table, what is wrong, what could not be checked, and the verdict."""
        width = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else _WIDE
        table, styles, wrong, above = Table([*_COLUMNS, Column("", "words")]), [""], list[str](), ""
        places = [one.where for one in self.figures]
        for one in sorted(self.figures, key=lambda one: places.index(one.where)):
            head, shown = f"{one.where}, {one.case}", _cells(one)
            if head != above:
                table.add(head)
                styles.append("")
            above = head
            table.add(*shown)
            styles.append("failed" if one.is_wrong else "")
            if one.is_wrong:
                what, figure, truth, label, _ = shown
                unit = " MB" if one.unit == "B" else ""
                wrong.append(f"{head}: {what} {figure}{unit}, in truth {truth}{unit} ({label})")
        wrong += [f"{name}: the check failed: {error}" for name, error in self.failed.items()]
        unchecked = [f"{one.where}, {one.case}: {one.reason}" for one in self.unchecked]
        lines = _listed("System", [f"{name:14}{fact}" for name, fact in self.facts.items()], width)
        lines += [*zip(table.text(width), styles, strict=True), ("", "")] if self.figures else []
        lines += _listed("Wrong", wrong, width, "failed") + _listed("Not checked", unchecked, width)
        lines.append((self.verdict(), "failed" if wrong else "good"))
        return "\n".join(styled(printable(line), style, sys.stdout) for line, style in lines)

    def json(self) -> str:
        """Return all of it for an issue report, without the name of the user."""
        found = asdict(self) | {"verdict": self.verdict()}
        found["figures"] = [asdict(one) | {"is_wrong": one.is_wrong} for one in self.figures]
        found["unchecked"] = [one._asdict() for one in self.unchecked]
        return json.dumps(_public(found), indent=2, allow_nan=False)


def _public(value: Any) -> Any:
    """Return a value for JSON: no infinite number, and neither the user's name nor the path of their home."""
    if isinstance(value, dict):
        return {key: _public(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_public(one) for one in value]
    if isinstance(value, str):
        with suppress(Exception):  # who the user is may be unknown
            value = value.replace(str(Path.home()), "~")
            value = re.sub(rf"(?<=[/\\]){re.escape(getpass.getuser())}\b", "USER", value)
    return value if not isinstance(value, float) or math.isfinite(value) else None


def _listed(head: str, items: list[str], width: int, style: str = "") -> list[tuple[str, str]]:
    """Return the lines of a list with its head, and their style; none of an empty one."""
    wrap = partial(textwrap.wrap, width=width, initial_indent="  ", subsequent_indent=" " * 16)
    lines = [f"{head}:", *chain.from_iterable(map(wrap, items)), ""]
    return [(line, style) for line in lines] if items else []


def _cells(one: Figure) -> tuple[str, ...]:
    """Return a row of the table; as many decimals as tell the figure from the truth."""
    scale, unit = (MB, "") if one.unit == "B" else (1, one.unit and f" {one.unit}")
    least, most, lo = one.truth[0] / scale, one.truth[1] / scale, one.lo / scale
    hi = lo if one.hi is None else one.hi / scale
    middle = least if most == math.inf else (least + most) / 2
    apart = min(filter(None, (abs(lo - middle), abs(hi - middle), abs(middle) % 1)), default=2)
    decimals = min(7, max(0, -math.floor(math.log10(apart / 2))))
    low, high, truth = (f"{round(value, decimals) + 0.0:.{decimals}f}" for value in (lo, hi, middle))
    figure = f"≥{low}" if one.hi is None else low if low == high else f"{low} to {high}"
    if most != least:
        truth = f"≥{truth}" if most == math.inf else f"{truth} ±{_brief((most - least) / 2)}"
    label = f"{one.label} ±{_brief(one.precision / scale)}" if one.precision else one.label
    verdict = "WRONG" if one.is_wrong else "ok"
    if one.label == "about" and middle:
        verdict = f"{(lo - middle) / middle:+.1%}"
    return one.what, f"{figure}{unit}", f"{truth}{unit}", label, verdict


def _brief(value: float) -> str:
    return f"{value:.1g}" if value < 10 else f"{value:.0f}"


def _run(options: argparse.Namespace, found: _Findings, progress: Progress) -> None:
    """Run each check apart from the others."""
    with found.part("system"):
        progress.show("looking at this system")
        found.facts = system.facts()
    parts = {"RAM": ram.checks} if options.quick else {"RAM": ram.checks, "devices": device.checks}
    for name, make in (parts | ({"estimates": estimates.checks} if options.estimate else {})).items():
        checks: list[Check] = []
        with found.part(name):
            progress.show(f"looking for {name}")
            checks = [check for check in make() if check.is_quick or not options.quick]
        for check in checks:
            with found.part(check.name), closing(check.run()) as shown:  # type: ignore[type-var]
                progress.show(check.name)
                for one in shown:
                    (found.unchecked if isinstance(one, Unchecked) else found.figures).append(one)  # type: ignore[arg-type]
    found.interrupted_in = None


def verify(options: argparse.Namespace) -> int:
    """Run the checks, print what they found, and return 1 if a figure is wrong or a check failed, else 0."""
    if options.quick and options.estimate:
        raise BadRequest("--quick uses no device, and --estimate needs one: ask for one of them")
    found, progress, before = _Findings(), Progress(), ram.settings()
    try:
        _run(options, found, progress)
    finally:
        with interrupt_held_back():
            progress.close()
            say(found.json() if options.json else found.text())
            ram.restore(before)
    return 1 if found.failed or any(one.is_wrong for one in found.figures) else 0
