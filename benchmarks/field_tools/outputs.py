"""The figures that each tool tells, read out of what it printed. MB are of 2**20 bytes everywhere.

Every function returns by how many MB the cell rose above what was there before it: its *peak* in the sense of all these
tables. None means that the tool said nothing about this cell.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

UNITS_MB = {"B": 2**-20, "K": 2**-10, "M": 1, "G": 2**10}  # calmsize's
DECIMAL_MB = {
    unit: power / 2**20 for unit, power in (("Bytes", 1), ("kB", 10**3), ("MB", 10**6), ("GB", 10**9))
}  # Jinja's
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def _rise(consumed: str, peaked: str) -> float:
    """Tools of this family tell what stays, and what was needed on top of that."""
    return max(0.0, float(consumed.replace(",", ""))) + float(peaked.replace(",", ""))


def ipygpulogger(text: str, row: str = "Gen") -> float | None:
    """``Gen:      128      0      170 MB``; on a GPU the row is ``GPU``."""
    found = re.search(rf"^{row}: +(-?\d+) +(\d+) +\d+ MB", text, re.MULTILINE)
    return _rise(*found.groups()) if found else None


def cell_logger(text: str, row: str = "CPU") -> float | None:
    """``･ CPU:          0        300         51 MB |`` of ipyexperiments."""
    found = re.search(rf"{row}: +(-?[\d,]+) +(-?[\d,]+) +[\d,]+ MB", text)
    return _rise(*found.groups()) if found else None


def memory_usage(text: str) -> float | None:
    """``In [4] used 0.0 MiB RAM in 0.74s (...), peaked 300.0 MiB above final usage, ...``."""
    found = re.search(r"used (-?[\d.]+) MiB RAM .* peaked (-?[\d.]+) MiB above final usage", text)
    return _rise(*found.groups()) if found else None


def memit(text: str) -> float | None:
    """``peak memory: 352.04 MiB, increment: 300.00 MiB`` of memory_profiler."""
    found = re.search(r"increment: (-?[\d.]+) MiB", text)
    return float(found[1]) if found else None


def jumper(html: str) -> float | None:
    """The memory row of JUmPER's HTML report, in GB: from its MIN to its MAX."""
    found = re.search(r"Memory \(GB\)</td>((?:\s*<td>[^<]*</td>){3})", html)
    if not found:
        return None
    _, lowest, highest = (float(cell) for cell in re.findall(r"<td>([^<]*)</td>", found[1]))
    return (highest - lowest) * 1024


def memray(page: str) -> float | None:
    """``Peak memory usage: 314.6 MB`` in memray's flame graph; these MB are decimal."""
    found = re.search(r"Peak memory usage: ([\d.]+) (\w+)", page)
    return float(found[1]) * DECIMAL_MB[found[2]] if found else None


def memray_page(text: str) -> str | None:
    """Where the magic says that the flame graph lies."""
    found = re.search(r"Results saved to\s+(\S+\.html)", ANSI.sub("", text))
    return found[1] if found else None


def memray_told(text: str, folder: Path) -> float | None:
    """Read the flame graph, and delete it: a page for each of hundreds of cells fills a disk."""
    named = memray_page(text)
    if named is None:
        return None
    page = folder / named
    told = memray(page.read_text(encoding="utf-8"))
    page.unlink()
    return told


def memlab(text: str) -> float | None:
    """The highest ``active_bytes`` peak of any line in pytorch_memlab's table."""
    peaks = [
        float(number) * UNITS_MB[unit] for number, unit in re.findall(r"(?m)^ *([\d.]+)([BKMG])\b", text)
    ]
    return max(peaks) if peaks else None
