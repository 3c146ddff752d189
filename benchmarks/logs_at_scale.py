"""What `report`, `compare` and `report --html` cost with a log of 200,000 records: seconds, resident memory, page.

Claim: a report takes less than 20 seconds and 600 MB; a comparison, which reads two such logs, less than 30
seconds and 1 GB; and the page is smaller than 2 MB.

    python benchmarks/logs_at_scale.py                      # this checkout
    python benchmarks/logs_at_scale.py --beside OTHER       # interleaved with another checkout
    python benchmarks/logs_at_scale.py --write LOG [SEED]   # only write such a log

The logs are made up and always the same: 176 MB of records as `IPyGPULogger(log=...)` writes them. Most cells are
small, one in eleven uses one GPU or two, some are long and have time series, some failed, some have owners and
notes. Nine of ten are cells of their own, so that `compare` has as many pairs to find; the others are runs of fifty
cells, one of which leaks.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING
from uuid import UUID

from bench import about, print_table, turns

if TYPE_CHECKING:
    from ipygpulogger.records import CellRecord

CELLS = 200_000
ROUNDS = 3
MB, GB = 2**20, 2**30
COMMANDS = ("report", "compare", "report --html")
HERE = Path(__file__).resolve().parent.parent
LINES = (
    "loss = step(model, batch_{})",
    "x{} = torch.randn(4096, 4096)",
    "df = pd.read_parquet(f'part-{}.parquet')",
    "evaluate(model, split={})",
    "%matplotlib inline  # {}",
    'print(f"epoch {} \\u2713")',
)


def write_log(path: Path, seed: int = 1, cells: int = CELLS) -> None:
    """A log of so many cells; another seed moves some of the figures, and the cells stay the same."""
    from ipygpulogger.storage.formats import json_line

    moves = random.Random(seed)
    with path.open("w") as file:
        for number in range(cells):
            file.write(json_line(record(number, random.Random(number), moves)))


def record(number: int, draw: random.Random, moves: random.Random) -> CellRecord:
    """The cell of this number."""
    from ipygpulogger import CellRecord, Peak
    from ipygpulogger.records import Heap, Owner, RamUsage

    cell = number if number % 10 else number // 10 % 50  # every tenth is another run of one of fifty cells
    leaks = not number % 10 and cell == 7
    before = 900 * MB + (number * 7919 % 4096) * 65536 + leaks * number // 500 * 2 * MB
    grown = 2 * MB + 4096 * number if leaks else int(draw.expovariate(1 / (256 * 1024)))
    transient = int(draw.expovariate(1 / (8 * MB))) if draw.random() < 0.2 else 0
    if moves.random() < 0.01:
        transient += 300 * MB
    long = draw.random() < 0.004
    time_s = draw.uniform(3, 90) if long else draw.expovariate(20)
    peak = before + max(grown, 0) + transient
    course = tuple((round(i * time_s / 48, 3), before + transient * (i % 7) // 7) for i in range(48))
    dice = draw.random()
    failed = draw.random() < 0.01
    owners = (
        Owner("model", 800 * MB, "cuda:0", "variable"),
        Owner("batch", 30 * MB, "cuda:0", "variable", ("x",)),
    )
    return CellRecord(
        label=f"In [{number + 1}]",
        started_at=datetime(2026, 11, 1, tzinfo=timezone.utc) + timedelta(seconds=number / 7),
        time_s=round(time_s, 6),
        gen=RamUsage(
            before,
            before + grown,
            Peak(peak, peak, "exact"),
            Heap(before // 2, before // 20),
            Heap(before // 2 + grown, before // 20),
            course if long else (),
        ),
        gpus=tuple(device(i, before, transient, course if long else ()) for i in range(gpus_used(dice))),
        notes=("the process forked during this cell",) if draw.random() < 0.01 else (),
        execution_count=number + 1,
        cell_id=None if cell % 11 == 0 and number % 10 else str(UUID(int=cell * 2**64 + 7)),
        source=LINES[cell % len(LINES)].format(cell % 3000),
        status="error" if failed else "ok",
        error="ValueError" if failed else None,
        owners=owners[: int(dice < 0.09) + int(dice < 0.03)],
        unexplained=(("cpu", 3 * MB),) if dice > 0.99 else (),
    )


def gpus_used(dice: float) -> int:
    return 2 if dice < 0.02 else 1 if dice < 0.09 else 0


def device(index: int, size: int, transient: int, course: tuple[tuple[float, int], ...]):
    from ipygpulogger import DeviceUsage, Peak

    held = 2 * GB + size % GB
    return DeviceUsage(
        held,
        held + 64 * MB,
        Peak(held + 64 * MB + 3 * transient, held + 64 * MB + 3 * transient, "exact", 512),
        index,
        "NVIDIA H100 80GB HBM3",
        uuid=f"GPU-01234567-89ab-cdef-0123-456789abcde{index}",
        total_bytes=80 * GB,
        used_bytes=held + GB,
        free_bytes=79 * GB - held,
        allocated_bytes=held + 64 * MB,
        reserved_bytes=held + 512 * MB,
        reserved_peak=Peak(held + GB, held + GB, "exact"),
        pools_bytes=0,
        other_bytes=GB // 2,
        neighbours_bytes=0,
        neighbours_before_bytes=0,
        driver_bytes=600 * MB,
        timeline=tuple((at, at_bytes + held) for at, at_bytes in course),
    )


def spent(checkout: Path, *words: object) -> tuple[float, float, float]:
    """Run a command of a checkout: seconds by the clock and of the processor, and the highest resident MB."""
    program = [sys.executable, "-m", "ipygpulogger", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    began = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            program, env=environment, stdout=out, stderr=out, cwd=tempfile.gettempdir()
        )
        _, status, used = os.wait4(process.pid, 0)
        clock_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1):
            out.seek(0)
            sys.exit(f"{words}: {out.read().decode(errors='replace')[-2000:]}")
    return clock_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def measure(checkouts: dict[str, Path], folder: Path) -> None:
    base, new, page = folder / "base.jsonl", folder / "new.jsonl", folder / "page.html"
    write_log(base, 1)
    write_log(new, 2)
    words = {
        "report": ("report", base),
        "compare": ("compare", base, new),
        "report --html": ("report", base, "--html", page),
    }
    found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for name in turns(list(checkouts), ROUNDS):
        for command in COMMANDS:
            took = spent(checkouts[name], *words[command])
            size = page.stat().st_size / MB if command == "report --html" else 0.0
            found.setdefault((command, name), []).append((*took, size))
    rows = []
    for (command, name), rounds in sorted(found.items(), key=lambda item: COMMANDS.index(item[0][0])):
        clock_s, processor_s, resident_mb, size = (median(column) for column in zip(*rounds, strict=True))
        sizes = f"{resident_mb:.0f}", f"{size:.2f}" if size else ""
        rows.append([command, name, f"{clock_s:.1f}", f"{processor_s:.1f}", *sizes])
    print_table(
        f"Logs of {CELLS:,} records, {base.stat().st_size / 1e6:.0f} MB",
        ["", "", "by the clock s", "of the processor s", "resident MB", "page MB"],
        rows,
        f"Medians of {ROUNDS} runs of the command, with starting Python; compare reads two such logs.",
        about("matplotlib"),
    )


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--beside", type=Path, help="another checkout")
    asked.add_argument("--write", nargs="+", metavar="LOG", help="write a log and end")
    options = asked.parse_args()
    sys.path.insert(0, str(HERE))
    if options.write:
        write_log(Path(options.write[0]), *map(int, options.write[1:]))
        return
    checkouts = {"beside": options.beside.resolve()} if options.beside else {}
    with tempfile.TemporaryDirectory() as name:
        measure({**checkouts, "here": HERE}, Path(name))


if __name__ == "__main__":
    main()
