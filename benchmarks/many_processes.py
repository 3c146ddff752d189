"""What it takes to receive, aggregate and show the records of 10 to 10,000 processes on a bad network.

Claim: 10,000 records are one table in less than a second and 100 MB, and the table is as long as that of 17.

    python benchmarks/many_processes.py            # the table
    python benchmarks/many_processes.py --plot     # and the growth as a plot, in results/

The records are made up and always the same. Ranks are on hosts with eight GPUs each and use one; engines use RAM
alone. One record in ten never comes because its process is dead, one in fifty is lost, others arrive too
late to be waited for, in any order, or between garbage. They go the way of real ones: packed as a worker packs
them, through `Arrivals`, into a `Group`, which is turned into text and HTML. Packing is not counted: each worker
packs its own.

"right" says whether the table has each record that came, once, and names as missing just those that did not.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import tracemalloc
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench import about, print_table

from ipygpulogger.analysis.group import Missing
from ipygpulogger.cluster.arrivals import Arrivals, packed
from ipygpulogger.records import DeviceUsage, Heap, Peak, RamUsage
from ipygpulogger.records.process import Process, ProcessRecord

if TYPE_CHECKING:
    from ipygpulogger.analysis.group import Group

COUNTS = (10, 32, 100, 320, 1_000, 3_200, 10_000)
RANKS = 1_024
ROUNDS = 5
DEAD, LOST, GARBAGE, LATE_S = 0.1, 0.02, 0.01, 30.0
MB, GB = 2**20, 2**30
BEGIN = datetime(2026, 11, 22, tzinfo=timezone.utc)
RESULTS = Path(__file__).parent / "results"


def record(number: int, kind: str, draw: random.Random) -> ProcessRecord:
    """What one process used: a few need far more than the others, or take far longer."""
    before = 900 * MB + draw.randrange(64 * MB)
    needed = int(draw.gauss(300, 10) * MB) * (3 if draw.random() < 0.002 else 1)
    peak = Peak(before + needed, before + needed, "exact")
    gen = RamUsage(before, before + 8 * MB, peak, Heap(before // 2, MB), Heap(before // 2, 3 * MB))
    gpus: tuple[DeviceUsage, ...] = ()
    if kind == "ranks":
        on_gpu = int(draw.gauss(40, 0.5) * GB) + (12 * GB if draw.random() < 0.002 else 0)
        gpus = (
            DeviceUsage(
                2 * GB, 20 * GB, Peak(on_gpu, on_gpu, "exact"), number % 8, "NVIDIA H100 80GB HBM3",
                f"GPU-5a6b7c8d-1234-5678-9abc-{number:012x}", total_bytes=80 * GB, used_bytes=45 * GB,
                free_bytes=35 * GB, allocated_bytes=20 * GB, reserved_bytes=42 * GB, other_bytes=3 * GB,
                neighbours_bytes=0,
            ),
        )  # fmt: skip
    host = f"node{number // 8:04d}"
    rank = number if kind == "ranks" else None
    return ProcessRecord(
        label="In [4]", started_at=BEGIN + timedelta(microseconds=draw.randrange(10**6)),
        time_s=draw.gauss(12, 0.2) * (2 if draw.random() < 0.001 else 1), gen=gen, gpus=gpus,
        execution_count=None, cell_id=None, source="loss = train(epoch)", status="ok",
        process=Process(host, 1000 + number, rank, None if kind == "ranks" else f"engine {number}"),
    )  # fmt: skip


class Traffic(NamedTuple):
    """What arrives, in its order, and whose record is among it."""

    payloads: list[bytes]
    names: list[str]
    came: set[str]


def traffic(count: int, kind: str) -> Traffic:
    """The records of so many processes, as a bad network brings them."""
    draw = random.Random(count)
    arriving: list[tuple[float, bytes]] = []
    names, came = [], set()
    for number in range(count):
        made = record(number, kind, draw)
        names.append(made.process.named())
        payload = packed(made)
        at_s = draw.expovariate(1 / 4)
        if draw.random() < DEAD or draw.random() < LOST or at_s > LATE_S:
            continue
        came.add(names[-1])
        arriving.append((at_s, payload))
        if draw.random() < GARBAGE:
            cut = draw.randrange(len(payload))
            arriving.append((at_s, draw.choice([payload[:cut], draw.randbytes(200), payload * 9])))
    return Traffic([payload for _, payload in sorted(arriving)], names, came)


def aggregate(sent: Traffic) -> tuple[Group, str, str]:
    """What the receiving side does."""
    arrivals = Arrivals()
    for payload in sent.payloads:
        arrivals.take(payload)
    late = f"no answer within {LATE_S:.0f} s"
    arrivals.missing += [Missing(name, late) for name in sent.names if name not in sent.came]
    group = arrivals.group("In [4]")
    return group, repr(group), group._repr_html_() or ""


class Taken(NamedTuple):
    """What it took."""

    kind: str
    count: int
    records: int
    missing: int
    ms: float
    peak_mb: float
    text_bytes: int
    html_bytes: int
    right: bool


def measured(count: int, kind: str) -> Taken:
    """The fastest of some rounds, and the memory of another one."""
    sent = traffic(count, kind)
    aggregate(sent)
    seconds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        group, text, html = aggregate(sent)
        seconds.append(time.process_time() - began)
    tracemalloc.start()
    aggregate(sent)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    here = {one.process.named() for one in group}
    right = here == sent.came and len(group) == len(here)
    right &= {who for who, _ in group.missing} == set(sent.names) - sent.came
    return Taken(
        kind, count, len(group), len(group.missing), 1000 * min(seconds), peak_bytes / MB,
        len(text.encode()), len(html.encode()), right,
    )  # fmt: skip


def plot(found: list[Taken], path: Path) -> None:
    """The growth as three small panels."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "ipygpulogger", "font.size": 9, "svg.fonttype": "none"})
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(9.6, 2.7), layout="constrained")
    figures = (
        ("Time of the processor, ms", lambda one: one.ms, 1000.0),
        ("Peak of Python's memory, MB", lambda one: one.peak_mb, 100.0),
        ("Shown: HTML, KB", lambda one: one.html_bytes / 1024, 12.0),
    )
    for axes, (name, figure_of, limit) in zip(panels, figures, strict=True):
        for kind, colour, mark in (("engines", "#4c78a8", "o"), ("ranks", "#e45756", "s")):
            some = [one for one in found if one.kind == kind]
            axes.plot(
                [one.count for one in some], [figure_of(one) for one in some], mark, ls="-", ms=3.5, lw=1.2,
                color=colour, label=kind,
            )  # fmt: skip
        axes.axhline(limit, color="#9e9e9e", lw=1, ls="--")
        axes.text(10, limit * 1.07, f"limit {limit:g}", color="#9e9e9e", fontsize=8, va="bottom")
        axes.set(xscale="log", title=name, xlabel="processes")
        axes.set_yscale("log" if limit > 50 else "linear")
        axes.set_ylim(**({"top": limit * 4} if limit > 50 else {"bottom": 0, "top": limit * 1.25}))
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_fontsize(9)
    panels[0].legend(frameon=False, loc="lower right")
    figure.savefig(path, metadata={"Date": None})
    print(f"plot: {path}", file=sys.stderr)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plot", action="store_true", help="draw the growth into results/")
    options = parser.parse_args()
    found = [measured(count, "engines") for count in COUNTS]
    found += [
        measured(count, "ranks") for count in (*(n for n in COUNTS if n < RANKS // 2), RANKS, *COUNTS[-2:])
    ]
    print_table(
        "Records of many processes, received, aggregated and shown",
        ["", "came", "missing", "ms", "us each", "peak MB", "text bytes", "HTML bytes", "right"],
        [
            [
                f"{one.count:,} {one.kind}", f"{one.records:,}", f"{one.missing:,}", f"{one.ms:.1f}",
                f"{1000 * one.ms / one.count:.0f}", f"{one.peak_mb:.1f}", f"{one.text_bytes:,}",
                f"{one.html_bytes:,}", "yes" if one.right else "NO",
            ]
            for one in found
        ],
    )  # fmt: skip
    print(about())
    if options.plot:
        plot(found, RESULTS / "2026-11-many-processes.svg")


if __name__ == "__main__":
    main()
