"""``doctor --verify``: known amounts come and go, and each figure is shown beside the truth."""

from __future__ import annotations

import contextlib
import getpass
import json
import math
import re
import shutil
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..records.units import MB, printable
from ..render.table import Column, Table
from ..runtime.errors import named
from ..verify import device, estimates, ram, system
from ..verify.check import Figure, Unchecked
from .arguments import BadRequest
from .progress import Progress
from .streams import interrupt_held_back, is_terminal, say, styled

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from ..verify.check import Check

_COLUMNS = (
    Column("Case (sizes in MB)", "words"),
    Column("", "words"),
    Column("Figure"),
    Column("Truth"),
    Column("Label", "words"),
    Column("", "words"),
)


@dataclass
class _Findings:
    """What the checks have found so far."""

    facts: dict[str, str] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)  # by the name of the check
    interrupted_in: str | None = None

    @contextlib.contextmanager
    def failure(self, name: str) -> Iterator[None]:
        """Let the other checks run on after an error, which is a failure with this name."""
        try:
            yield
        except Exception as error:
            self.failures[name] = named(error)
        except KeyboardInterrupt:
            self.interrupted_in = name
            raise

    def wrong(self) -> list[Figure]:
        """Return the figures that exclude the truth."""
        return [one for one in self.figures if one.is_wrong]

    def verdict(self) -> str:
        """Return what was found, in one sentence."""
        count, wrong = len(self.figures), len(self.wrong())
        parts = [f"{count - wrong} of {count} figures hold"] if count else ["no figure was checked"]
        for number, one, many in (
            (wrong, "1 is wrong", f"{wrong} are wrong"),
            (len(self.failures), "1 check failed", f"{len(self.failures)} checks failed"),
            (len(self.unchecked), "1 could not be checked", f"{len(self.unchecked)} could not be checked"),
        ):
            parts += [one if number == 1 else many] if number else []
        stopped = f"interrupted in {self.interrupted_in}: " if self.interrupted_in else ""
        return f"{stopped}{'; '.join(parts)}"

    def text(self) -> str:
        """Return the system, the table, what is wrong, what could not be checked, and the verdict."""
        lines = [f"{name:13} {fact}" for name, fact in self.facts.items()]
        lines += ["", *self._table(), ""] if self.figures else [""]
        wrong = [
            f"  {one.where}, {{}}: {{}} {{}}, in truth {{}} ({{}})".format(*_cells(one))
            for one in self.wrong()
        ]
        wrong += [f"  the check failed: {name}: {error}" for name, error in self.failures.items()]
        lines += [styled(line, "failed", sys.stdout) for line in ("Wrong:", *wrong)] if wrong else []
        lines += ["Not checked:"] if self.unchecked else []
        lines += [f"  {one.where}, {one.case}: {one.reason}" for one in self.unchecked]
        return "\n".join([*lines, styled(self.verdict(), "failed" if wrong else "good", sys.stdout)])

    def _table(self) -> list[str]:
        table = Table(_COLUMNS)
        rows: list[Figure | None] = [None]  # the heads
        for where in dict.fromkeys(one.where for one in self.figures):
            table.add(where)
            rows.append(None)
            for one in self.figures:
                if one.where == where:
                    table.add(*_cells(one))
                    rows.append(one)
        width = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None
        return [
            styled(line, "failed" if one and one.is_wrong else "", sys.stdout)
            for line, one in zip(table.text(width), rows, strict=True)
        ]

    def json(self) -> str:
        """Return all of it for an issue report, without the name of the user."""
        found = asdict(self)
        found["unchecked"] = [one._asdict() for one in self.unchecked]
        for one, shown in zip(self.figures, found["figures"], strict=True):
            shown["is_wrong"] = one.is_wrong
        return json.dumps(_public(found | {"verdict": self.verdict()}), indent=2, allow_nan=False)


def _public(value: Any) -> Any:
    """Return a value for JSON: no infinite number, and neither the user's name nor the path of their home."""
    if isinstance(value, dict):
        return {key: _public(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_public(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        with contextlib.suppress(Exception):  # neither may be known
            value = value.replace(str(Path.home()), "~")
            value = re.sub(rf"(?<=[/\\]){re.escape(getpass.getuser())}\b", "USER", value)
    return value


def _cells(one: Figure) -> Sequence[str]:
    """Return a row of the table, with as many decimals as tell the figure from the truth."""
    scale, unit = (MB, "") if one.unit == "B" else (1, one.unit and f" {one.unit}")
    least, most, lo = one.truth[0] / scale, one.truth[1] / scale, one.lo / scale
    hi = lo if one.hi is None else one.hi / scale
    middle = least if most == math.inf else (least + most) / 2
    decimals = next((n for n in range(6) if _tells(lo, middle, n) and _tells(hi, middle, n)), 6)
    low, high, truth = (f"{round(value, decimals) + 0.0:.{decimals}f}" for value in (lo, hi, middle))
    shown = f"≥{low}" if one.hi is None else low if low == high else f"{low} to {high}"
    if most != least:
        truth = f"≥{truth}" if most == math.inf else f"{truth} ±{(most - least) / 2:.2g}"
    label = f"{one.label} ±{one.precision / scale:.2g}" if one.precision else one.label
    return one.case, one.what, f"{shown}{unit}", f"{truth}{unit}", label, "WRONG" if one.is_wrong else "ok"


def _tells(value: float, truth: float, decimals: int) -> bool:
    """Return whether so many decimals tell a value from the truth; of the same value, two digits."""
    shown = round(value, decimals)
    return abs(shown - value) <= abs(value) / 100 if value == truth else shown != round(truth, decimals)


def _run(options: argparse.Namespace, found: _Findings, progress: Progress) -> None:
    """Run each check apart from the others."""
    progress.show("looking at this system")
    with found.failure("system"):
        found.facts = system.facts()
    parts = {"RAM": ram.checks}
    parts |= {} if options.quick else {"devices": device.checks}
    parts |= {"estimates": estimates.checks} if options.estimate else {}
    for name, make in parts.items():
        progress.show(f"looking for {name}")
        checks: list[Check] = []
        with found.failure(name):
            checks = make()
        for check in checks:
            if check.is_quick or not options.quick:
                progress.show(check.name)
                with found.failure(check.name), contextlib.closing(check.run()) as shown:  # type: ignore[type-var]
                    for one in shown:
                        (found.unchecked if isinstance(one, Unchecked) else found.figures).append(one)  # type: ignore[arg-type]


def verify(options: argparse.Namespace) -> int:
    """Run the checks, print what they found, and return 1 if a figure is wrong or a check failed, else 0."""
    if options.quick and options.estimate:
        raise BadRequest("--quick uses no device, and --estimate needs one: ask for one of them")
    found, progress, before = _Findings(), Progress(), ram.settings()
    try:
        _run(options, found, progress)
    finally:
        progress.close()
        ram.restore(before)
        with interrupt_held_back():
            say(found.json() if options.json else found.text())
    return 1 if found.wrong() or found.failures else 0
