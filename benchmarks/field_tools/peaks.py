"""Whether a peak is seen, and how exactly: memory of known size, needed for a moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import mean, median, quantiles
from typing import TYPE_CHECKING

from .tables import Column, Figure, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .running import Field, Setting
    from .tools import Tool

NEAR = 0.05
RIGHT = (
    f"A rise is right within {NEAR:.0%} of the truth, or within the last digit that the tool shows. The errors are the median "
    "and the 95th percentile."
)
SIZE_MB = 32
HELD_MS = (0.5, 2, 10, 50)
KINDS = {
    "sleeping": "C fills the pages and `time.sleep` waits",
    "Python busy": "Python fills the pages and waits in a loop",
    "GIL held": "C makes a `bytes` and waits, and keeps the GIL",
    "GIL free": "C fills the pages and works on, without the GIL",
}

# Pages that are mapped and unmapped again, malloc keeps none of them: for a `bytes` of this size it does the same.
TRANSIENT = """
import ctypes as _ctypes, mmap as _mmap, time as _time
_free, _held = _ctypes.CDLL(None), _ctypes.PyDLL(None)
def _fill(pages, size):
    address = _ctypes.addressof(_ctypes.c_char.from_buffer(pages))
    _free.memset(_ctypes.c_void_p(address), 1, _ctypes.c_size_t(size))
def transient(kind, held_ms, size):
    if kind == "GIL held":  # usleep looks at its first argument only
        _held.usleep(int(1000 * held_ms), b"x" * size)
        return
    pages = _mmap.mmap(-1, size)
    if kind == "Python busy":
        for offset in range(0, size, _mmap.PAGESIZE):
            pages[offset] = 1
    else:
        _fill(pages, size)
    until = _time.perf_counter() + held_ms / 1000
    if kind == "sleeping":
        _time.sleep(held_ms / 1000)
    while _time.perf_counter() < until:
        if kind == "GIL free":
            _fill(pages, min(size, 1 << 20))
    pages.close()
"""


@dataclass
class Trials:
    """What tools told of transients.

    Attributes:
        truths_mb: By kind of transient, how much memory it needs.
        held_ms: How long it is kept once it is all there.
        told: By tool, kind and time the rises that the tool told, in MB; None where it told nothing.
    """

    truths_mb: Mapping[str, float]
    held_ms: Sequence[float]
    told: dict[tuple[str, str, float], list[float | None]] = field(default_factory=dict)

    def ask(self, tools: Field, tool: Tool, kind: str, held_ms: float, cell: str) -> None:
        """Run one transient, and keep what the tool told."""
        ran = tools.run(tool, cell)
        if ran and tool.told:
            read = tool.told
            rise = tools.ask(tool, lambda kernel: read(ran, kernel.folder))
            self.told.setdefault((tool.key, kind, held_ms), []).append(rise)

    def columns(self, tools: Field, measuring: Sequence[Tool]) -> list[Column]:
        """The share told right for each kind, and the error."""
        shares = [
            tools.column(kind, {tool.key: self._share(tool, kind) for tool in measuring}, "higher")
            for kind in self.truths_mb
        ]
        errors = {tool.key: found for tool in measuring if (found := self._error(tool))}
        return [*shares, tools.column("error MB, 50 / 95 %", errors, digits=2)]

    def _share(self, tool: Tool, kind: str) -> Figure:
        shares = []
        for held_ms in self.held_ms:
            rises = self.told.get((tool.key, kind, held_ms), [])
            right = sum(self._is_right(tool, kind, rise) for rise in rises)
            shares.append(100 * right / max(1, len(rises)))
        middle = mean(shares)
        return Figure(middle, middle, middle, " / ".join(f"{share:.0f}" for share in shares))

    def _is_right(self, tool: Tool, kind: str, rise: float | None) -> bool:
        truth_mb = self.truths_mb[kind]
        return rise is not None and abs(rise - truth_mb) <= max(NEAR * truth_mb, tool.digit_mb)

    def _error(self, tool: Tool) -> Figure | None:
        found = {key: rises for key, rises in self.told.items() if key[0] == tool.key}
        errors = [
            abs(rise - self.truths_mb[kind])
            for (_, kind, _), rises in found.items()
            for rise in rises
            if rise is not None
        ]
        cells = sum(map(len, found.values()))
        if not errors:
            return None
        high = quantiles([*errors, errors[-1]], n=20, method="inclusive")[-1]
        missing = f", told in {100 * len(errors) / cells:.0f} %" if len(errors) < cells else ""
        return Figure(high, high, high, f"{median(errors):.2f} / {high:.2f}{missing}")


def transients(setting: Setting) -> Table:
    """The share of transients that are told right, by kind and by how long they are held; and the error."""
    # The rich report shows the figures of the defaults.
    measuring = [tool for tool in setting.tools if tool.told and tool.key != "rich"]
    rounds = setting.few(30, 3)
    trials = Trials(dict.fromkeys(KINDS, SIZE_MB), HELD_MS)
    held = " / ".join(f"{held_ms:g}" for held_ms in HELD_MS)
    title = f"% of {rounds} rises by {SIZE_MB} MB that are measured right, held for {held} ms"
    with setting.field(tools=measuring) as tools:
        tools.silently(TRANSIENT)
        for _, tool in tools.turns(rounds):
            for kind in KINDS:
                for held_ms in HELD_MS:
                    cell = f"transient({kind!r}, {held_ms}, {SIZE_MB} << 20)"
                    trials.ask(tools, tool, kind, held_ms, cell)
        columns = trials.columns(tools, measuring)
    words = "; ".join(f"{kind}: {what}" for kind, what in KINDS.items())
    return Table("transients", title, measuring, columns, [RIGHT, f"S{words[1:]}."])
