"""The picture of docs/report.md: the memory of one cell, and needed, peaked and highest in it.

A shell of another process runs the cell under the logger, while this one reads its resident memory ten thousand
times a second. The levels in the picture are those of the cell's record; the curve has to agree with them.
`--write` draws docs/needed.svg, in colours that read on a light and on a dark page.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench import about, print_table

MB = 2**20
PICTURE = Path(__file__).parents[1] / "docs" / "needed.svg"
CELL = """
kept = bytearray(b"x") * (49 << 20)
batch = bytearray(b"x") * (100 << 20)
count = batch.count(b"x")
del batch
"""
SHELL = f"""
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
from ipygpulogger import IPyGPULogger

shell = InteractiveShell.instance(config=Config(HistoryManager={{"enabled": False}}))
il = IPyGPULogger(report="none").start()
shell.run_cell("x = 1", store_history=True)
print("ready", flush=True)
sys.stdin.readline()
shell.run_cell({CELL!r}, store_history=True)
print("done", flush=True)
sys.stdin.readline()
usage = il.record.gen
print(json.dumps({{
    "before": usage.before_bytes, "after": usage.after_bytes, "highest": usage.peak.lo_bytes,
    "needed": usage.needed_bytes, "peaked": usage.peaked_bytes, "consumed": usage.consumed_bytes,
    "quality": usage.peak.quality, "time_s": il.record.time_s,
}}))
"""
MARGIN_S = 0.02  # of the curve before and after the cell
INK, BLUE, RED, PURPLE = "#808080", "#4c78a8", "#e45756", "#b279a2"  # as the package's own plot


def measured() -> tuple[list[tuple[float, int]], dict[str, Any]]:
    """Run the cell once: the samples, as seconds and bytes, and what its record has."""
    child = subprocess.Popen(
        [sys.executable, "-c", SHELL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert child.stdin is not None
    assert child.stdout is not None
    page = os.sysconf("SC_PAGE_SIZE")
    samples = []
    assert child.stdout.readline() == "ready\n"
    with Path(f"/proc/{child.pid}/statm").open("rb", buffering=0) as statm:
        began, asked, ended_s = time.perf_counter(), False, None
        while ended_s is None or time.perf_counter() < ended_s + MARGIN_S:
            statm.seek(0)
            samples.append((time.perf_counter() - began, int(statm.read().split()[1]) * page))
            if not asked and samples[-1][0] > MARGIN_S:
                child.stdin.write("go\n")
                asked = True
            if ended_s is None and select.select([child.stdout], [], [], 0)[0]:
                assert child.stdout.readline() == "done\n"
                ended_s = time.perf_counter()
            time.sleep(0.0001)
    said, _ = child.communicate("go\n")
    return samples, json.loads(said)


def drawn(samples: list[tuple[float, int]], found: dict[str, Any]) -> str:
    """The picture as SVG: the curve, a dashed line for each level, and an arrow for each word."""
    left, right, top, bottom, width, height = 66, 318, 16, 34, 700, 320
    last_s, top_mb = samples[-1][0], 1.06 * found["highest"] / MB

    def x(at_s: float) -> float:
        return round(left + (width - left - right) * at_s / last_s, 1)

    def y(size_bytes: float) -> float:
        return round(height - bottom - (height - top - bottom) * size_bytes / MB / top_mb)

    def words(text: str, x: float, y: float, colour: str, more: str = "") -> str:
        return f'<text x="{x:g}" y="{y:.1f}" fill="{colour}"{more}>{text}</text>'

    points: list[tuple[float, float]] = []
    for point in ((x(at_s), y(size_bytes)) for at_s, size_bytes in samples):
        if len(points) > 1 and points[-2][1] == points[-1][1] == point[1]:
            points.pop()  # of a level stretch its two ends
        points.append(point)
    curve, edge, floor = " ".join(f"{x:g},{y:g}" for x, y in points), x(last_s), y(0)
    style = f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="16"'
    level = " ".join(f"M{left},{y(found[name])}H{edge + 228}" for name in ("before", "after", "highest"))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {style}>',
        "<title>Memory over the time of one cell: needed, peaked and highest</title>",
        f'<polygon points="{left},{floor} {curve} {edge},{floor}" fill="{BLUE}" fill-opacity="0.22"/>',
        f'<polyline points="{curve}" fill="none" stroke="{BLUE}" stroke-width="2"/>',
        f'<path d="M{left},{floor}H{edge}" stroke="{INK}"/>',
        f'<path d="{level}" stroke="{INK}" stroke-dasharray="3 4"/>',
        words(f"time: the cell ran {1000 * found['time_s']:.0f} ms", left, height - 10, INK),
        words("0 MB", left - 8, floor + 5, INK, ' text-anchor="end"'),
        words("before", left - 8, y(found["before"]) + 5, INK, ' text-anchor="end"'),
        words("after", left - 8, y(found["after"]) + 5, INK, ' text-anchor="end"'),
    ]
    arrows = (
        ("needed", found["before"], found["highest"], RED, 20),
        ("peaked", max(found["before"], found["after"]), found["highest"], PURPLE, 118),
        ("consumed", found["before"], found["after"], BLUE, 118),
        ("highest", 0, found["highest"], INK, 238),
    )
    for name, low, high, colour, to_the_right in arrows:
        at, foot, head = edge + to_the_right, y(low), y(high)
        arrow = f"M{at:g},{foot}V{head}m-4,7l4,-7l4,7M{at:g},{foot}m-4,-7l4,7l4,-7"
        parts += [
            f'<path d="{arrow}" fill="none" stroke="{colour}" stroke-width="2"/>',
            words(name, at + 9, (foot + head) / 2 - 3, colour, ' font-weight="600"'),
            words(f"{found[name] / MB:.0f} MB", at + 9, (foot + head) / 2 + 16, colour),
        ]
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Measure, compare, and print; draw if asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="draw docs/needed.svg")
    options = parser.parse_args()
    samples, found = measured()
    levels = {"before": samples[0][1], "after": samples[-1][1], "highest": max(size for _, size in samples)}
    print_table(
        "One cell, in MB",
        ["", "its record", "the samples"],
        [[name, f"{found[name] / MB:.1f}", f"{size / MB:.1f}"] for name, size in levels.items()],
    )
    print(f"{len(samples):,} samples; the record's peak is {found['quality']}. {about()}")
    if any(abs(found[name] - size) > 2 * MB for name, size in levels.items()):
        sys.exit("the samples do not agree with the record: run it again on a quieter machine")
    if options.write:
        PICTURE.write_text(drawn(samples, found), encoding="utf-8")


if __name__ == "__main__":
    main()
