"""What it costs to keep the records: saved, loaded, ranked; a line of a log, a record as a notebook keeps it.

Claim: as .jsonl 10,000 records save, load and rank in under two seconds together.

    python benchmarks/history_cost.py

The records are those of a long run: RAM with malloc's part, two devices with all their figures, some cells
with a course of memory, an error or a note. Beside us stand `pickle`, which checks nothing and which nobody else
reads, and the standard library's `dataclasses.asdict`, of which `to_dict` is the faster twin.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import pickle
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench import about, print_table, turns

from ipygpulogger import CellRecord, DeviceUsage, History, Peak
from ipygpulogger.records import Heap, RamUsage
from ipygpulogger.storage.decode import record_from
from ipygpulogger.storage.embed import embedded
from ipygpulogger.storage.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable

CELLS = 10_000
ROUNDS = 3
GB = 2**30


def record(number: int) -> CellRecord:
    """A cell of a long run; no two alike."""
    size = number * 4096
    course = tuple((i * 0.25, GB + size + i) for i in range(64)) if number % 10 == 0 else ()
    gpus = tuple(
        DeviceUsage(
            GB + size,
            2 * GB + size,
            Peak(3 * GB + size, 3 * GB + size, "exact", 512),
            index,
            "NVIDIA H100 80GB HBM3",
            uuid="GPU-01234567-89ab-cdef-0123-456789abcdef",
            total_bytes=80 * GB,
            used_bytes=4 * GB + size,
            free_bytes=76 * GB - size,
            allocated_bytes=2 * GB + size,
            reserved_bytes=3 * GB + size,
            reserved_peak=Peak(3 * GB, 3 * GB, "exact"),
            pools_bytes=0,
            other_bytes=GB,
            neighbours_bytes=0,
            neighbours_before_bytes=0,
            driver_bytes=600 * 2**20,
            timeline=course,
        )
        for index in range(2)
    )
    heap = Heap(GB, size)
    return CellRecord(
        label=f"In [{number}]",
        started_at=datetime(2026, 11, 1, tzinfo=timezone.utc) + timedelta(seconds=number),
        time_s=number % 97 / 7,
        gen=RamUsage(GB, GB + size, Peak(2 * GB + size, 2 * GB + size, "exact", 4096), heap, heap, course),
        gpus=gpus,
        notes=("a note",) if number % 20 == 0 else (),
        execution_count=number,
        cell_id="01234567-89ab-cdef-0123-456789abcdef",
        source="loss = step(model, batch)",
        status="ok" if number % 50 else "error",
        error=None if number % 50 else "ValueError",
        current_gpu=0,
    )


class Spent:
    """Of the processor, and on the clock, which other work on the machine lengthens."""

    def __init__(self) -> None:
        self.processor_s = self.clock_s = 0.0

    def on(self, action: Callable[[], object]) -> float:
        gc.collect()
        clock_s, processor_s = time.perf_counter(), time.process_time()
        action()
        took_s = time.process_time() - processor_s
        self.clock_s += time.perf_counter() - clock_s
        self.processor_s += took_s
        return took_s


def everything(history: History) -> None:
    for by in ("needed", "consumed", "highest", "time"):
        history.rank(by)
    history.suspects()


def whole(history: History, folder: Path) -> None:
    """Saved, loaded and ranked, for each kind of file."""
    names = ["jsonl", "csv", "parquet", "pickle"]
    found: dict[str, list[list[float]]] = {name: [] for name in names}
    for name in turns(names, ROUNDS):
        path, spent = folder / f"run.{name}", Spent()
        if name == "pickle":
            save = spent.on(lambda path=path: path.write_bytes(pickle.dumps(list(history))))
            load = spent.on(lambda path=path: pickle.loads(path.read_bytes()))
        else:
            save = spent.on(lambda path=path: history.save(path))
            load = spent.on(lambda path=path: History.load(path))
        rank = spent.on(lambda: everything(history))
        found[name].append([save, load, rank, spent.processor_s, spent.clock_s])
    rows = []
    for name, rounds in found.items():
        size = (folder / f"run.{name}").stat().st_size / 2**20
        rows.append([name, *(f"{median(column):.2f}" for column in zip(*rounds, strict=True)), f"{size:.1f}"])
    print_table(
        f"{CELLS:,} records",
        ["", "save s", "load s", "rank s", "together s", "by the clock s", "MB"],
        rows,
        "Seconds of the processor, which other work does not lengthen; together also by the clock.",
        "rank: by peak, by consumed, by time, and the suspects.",
        about("pyarrow"),
    )


def one(history: History, folder: Path) -> None:
    """What a single cell pays."""
    log = Log(folder / "log.jsonl")
    kept = [json.loads(json.dumps(embedded(r))) for r in history[:1000]]
    actions: dict[str, Callable[[int], object]] = {
        "dataclasses.asdict": lambda i: dataclasses.asdict(history[i]),
        "record.to_dict()": lambda i: history[i].to_dict(),
        "embedded(record)": lambda i: embedded(history[i]),
        "record_from(embedded)": lambda i: record_from(kept[i]),
        "Log.append(record)": lambda i: log.append(history[i]),
    }
    costs: dict[str, list[float]] = {name: [] for name in actions}
    for name in turns(list(actions), 200):
        i = len(costs[name])
        began = time.perf_counter()
        actions[name](i)
        costs[name].append(time.perf_counter() - began)
    rows = [[name, f"{median(c) * 1e6:.0f}", f"{min(c) * 1e6:.0f}"] for name, c in costs.items()]
    print_table("One record", ["", "median us", "fastest us"], rows, about())


def main() -> None:
    history = History([record(number) for number in range(1, CELLS + 1)])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole(history, folder)
        one(history, folder)


if __name__ == "__main__":
    main()
