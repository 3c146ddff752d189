"""A soak: thousands of mixed cells in a real kernel with the extension, and in one without it beside.

    python tests/soak.py                       10,000 cells and a table; with --write the picture of docs/exactness.md
    python tests/soak.py --cells 500 --seed 7  another mix; the same seed draws the same cells

Each cell's result, output and error is compared with the other kernel's. Every 100 cells both are measured. It fails
where a cell was different, or where the kernel with the extension holds more and more beside the history's records.
"""

import argparse
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from itertools import combinations
from pathlib import Path

import simgpu
from kernels import Kernel

TESTS = Path(__file__).parent
# Of each kind how often it is drawn, and its cells, one after the other: `$n` is a number that is drawn, `$k` that of the
# cell, `$begin` the first cell. One that prints "go" is interrupted then.
LINES = (TESTS / "soak_cells.jsonl").read_text(encoding="utf-8").splitlines()
KINDS = [json.loads(line) for line in LINES if not line.startswith("#")]
BEGIN = """import asyncio, concurrent.futures, copy, gc, io, logging, multiprocessing, os, pickle, subprocess, sys
import tempfile, threading, time, warnings, weakref
import numpy as np, torch
import soak_probe as soak
from pathlib import Path
from IPython.display import HTML, Image, clear_output, display, update_display
home = Path.cwd(); torch.ones(1, device="cuda")"""
PICTURE = TESTS.parent / "docs" / "soak.svg"
EVERY = 100  # cells from one measurement to the next
WARM = 0.2  # of the cells: until then modules are loaded and caches fill
MIME = "application/vnd.ipygpulogger.v1+json"
OURS = re.compile(r"(\w+ = )?%gpulog|%\w+_ext ipygpulogger")
RED, INK = "#e45756", "#808080"  # as the package's own plot
MB = 2**20
# What is measured, its unit, and by how much its difference from the other kernel may grow in 1,000 cells: resident
# memory by the history's 2 MB; zombies wait for the next `Popen`. An interrupt that falls into other code leaves some
# hundred objects and two thousand blocks in one kernel alone, once or twice in a run; a leak of one object in ten
# cells is above that.
QUANTITIES = {
    "resident_bytes": ("resident memory", MB, "MB", 2.5),
    "malloc_bytes": ("allocated by malloc", MB, "MB", 0.1),
    "python_blocks": ("Python's blocks", 1, "", 500),
    "objects": ("objects, all", 1, "", 100),
    "our_objects": ("objects of ours", 1, "", 0.5),
    "user_objects": ("objects of the user's", 1, "", 0.5),
    "callbacks": ("callbacks", 1, "", 0.1),
    "threads": ("threads", 1, "", 0.1),
    "descriptors": ("descriptors", 1, "", 0.1),
    "children": ("child processes", 1, "", 1),
    "device_bytes": ("tensors on the device", MB, "MB", 0.1),
    "driver_bytes": ("the device by the driver", MB, "MB", 0.1),
}


def mixed(count, seed):
    """Draw so many cells, or a few more; with each whether it is the last of its kind, so that nothing is half done."""
    drawn, cells = random.Random(seed), []
    while len(cells) < count:
        ((_, *kind),) = drawn.choices(KINDS, [weight for weight, *_ in KINDS])
        size = str(drawn.randrange(1, 1000))
        for part, one in enumerate(kind, 1):
            code = one.replace("$n", size).replace("$k", str(len(cells))).replace("$begin", BEGIN)
            cells.append((code, part == len(kind)))
    return cells


def without_us(code):
    """The cell for the kernel without the extension."""
    if OURS.match(code):
        return "pass"
    return code.partition("\n")[2] if code.startswith("%%gpulog") else code


class Soaked:
    """A kernel, on a device of its own, with the extension or without."""

    def __init__(self, kernel, machine, device, folder, *, extended):
        self.kernel, self.dev, self.extended = kernel, machine.dev[device], extended
        self.samples = []
        kernel.begin([f"import os, sys; sys.path.insert(0, {str(TESTS)!r}); os.chdir({folder!r})", BEGIN])
        kernel.begin([f"sys.path.remove({str(TESTS)!r}); sys.dont_write_bytecode = True"])

    def send(self, code):
        return self.kernel.send(code if self.extended else without_us(code))

    def interrupt(self, asked):
        """Interrupt the cell, once it runs."""
        self.kernel.wait_for_print(asked, "go")
        self.kernel.manager.interrupt_kernel()

    def sample(self, cell):
        """Measure: from outside first, what asking from inside shall not disturb."""
        pid = self.kernel.pid
        inside = self.kernel.value("__import__('soak_probe').sample()")
        statm, tasks = (
            Path(f"/proc/{pid}/statm").read_text().split(),
            list(Path(f"/proc/{pid}/task").iterdir()),
        )
        outside = {
            "cell": cell,
            "resident_bytes": int(statm[1]) * os.sysconf("SC_PAGE_SIZE"),
            "threads": len(tasks),
            "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
            "children": sum(len((task / "children").read_text().split()) for task in tasks),
            "driver_bytes": self.dev.mine(int(pid)).used,
        }
        self.samples.append(outside | inside)

    def types(self):
        return self.kernel.value("dict(__import__('soak_probe').types())")


def seen(ran, code):
    """What the user sees of a cell, without what is ours, and what is never twice the same."""
    outputs = [m["content"].get("data") or m["content"].get("wait") for m in ran.messages]
    shown = [data for data in outputs if data and "soaked" in str(data) and MIME not in data]
    error = [ran.reply.get(name) for name in ("status", "ename", "evalue", "traceback")]
    texts = [ran.stdout, ran.stderr, ran.result, *error, shown]
    if "OutOfMemoryError" in str(error) or re.match(r"%+(time|reset -f out)", code):
        texts = error[:2]  # what is free, how long it took, what `%gpulog free` has dropped already
    elif "print('go'" in code or code.startswith("%%gpulog"):
        texts[0] = ran.stdout.strip()  # an interrupt may come before the newline
        texts[6] = None  # the traceback: which line was interrupted, and which number it has
    return re.sub(r"0x[0-9a-f]+|(?<=tmp)\w+|(?<=ipykernel_)\d+", "…", json.dumps(texts))


def soak(cells, both, progress=print):
    """Run the cells in both kernels; the differences, and the classes whose number grew in the first one only."""
    differences, began_s, types = [], time.monotonic(), []
    due, warm = EVERY, int(WARM * len(cells))
    for number, (code, is_last) in enumerate(cells, 1):
        asked = [one.send(code) for one in both]
        if "print('go'" in code:
            for one, cell in zip(both, asked, strict=True):
                one.interrupt(cell)
        ran = [one.kernel.wait(cell) for one, cell in zip(both, asked, strict=True)]
        with_us, without = (seen(one, code) for one in ran)
        if with_us != without and not OURS.match(code):
            differences.append((number, code, with_us, without))
        if is_last and (number >= due or number == len(cells)):
            due = number + EVERY
            for one in both:
                one.sample(number)
            progress(f"{number:6} cells  {time.monotonic() - began_s:5.0f} s  {len(differences)} differences")
        if is_last and ((number >= warm and not types) or number == len(cells)):
            types.append([one.types() for one in both])
    (first, first_without), (last, last_without) = types
    grew = {name: last[name] - first.get(name, 0) for name in last}
    grew = {name: n - last_without.get(name, 0) + first_without.get(name, 0) for name, n in grew.items()}
    return differences, {name: n for name, n in sorted(grew.items(), key=lambda one: -one[1]) if n > 0}


def growth(samples, name):
    """By how much a quantity grows in 1,000 cells: the median of the slopes between any two samples (Theil, Sen)."""
    points = [(one["cell"], one[name]) for one in samples if one["cell"] >= WARM * samples[-1]["cell"]]
    slopes = [1000 * (y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2)]
    return statistics.median(slopes) if slopes else 0.0


def table(with_us, without):
    """Growth per 1,000 cells, with and without the extension, and what grew by too much."""
    head = f"{'growth per 1,000 cells':28}{'with':>12}{'without':>12}{'difference':>12}{'at the end':>14}"
    lines, grew = [head], []
    for name, (words, unit, unit_name, most) in QUANTITIES.items():
        apart = [
            {"cell": one["cell"], name: one[name] - other[name]}
            for one, other in zip(with_us, without, strict=True)
        ]
        figures = [growth(samples, name) / unit for samples in (with_us, without, apart)]
        end = with_us[-1][name] / unit
        lines.append(f"{words:28}{''.join(f'{one:12,.2f}' for one in figures)}{end:14,.1f} {unit_name}")
        if figures[-1] > most:
            grew.append(words)
    records, held = with_us[-1]["records"], with_us[-1]["history_bytes"]
    lines.append(
        f"history: {records:,} records hold {held / MB:.1f} MB, {held / max(1, records):,.0f} bytes each"
    )
    return lines, grew


def drawn(with_us, without):
    """The picture: of each quantity the run with the extension, and in grey the run without it."""
    wide, high, columns = 230, 96, 3
    names = list(QUANTITIES)
    rows = -(-len(names) // columns)
    size = f'width="{wide * columns}" height="{high * rows + 24}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif" font-size="12">',
        f"<title>Each quantity over {with_us[-1]['cell']:,} cells, with the extension and without</title>",
    ]
    for place, name in enumerate(names):
        words, unit, unit_name, _ = QUANTITIES[name]
        left, top = wide * (place % columns) + 10, high * (place // columns) + 8
        most = 1.1 * max(1, *(one[name] for one in with_us + without))
        end = f"{with_us[-1][name] / unit:,.0f} {unit_name}".strip()
        parts.append(f'<text x="{left}" y="{top + 10}" fill="{INK}">{words}: {end}</text>')
        parts.append(f'<path d="M{left},{top + 78}h{wide - 24}" stroke="{INK}" stroke-width="0.5"/>')
        for samples, colour, width in ((without, INK, 3), (with_us, RED, 1.2)):
            points = " ".join(
                f"{left + (wide - 24) * one['cell'] / samples[-1]['cell']:.1f},{top + 78 - 60 * one[name] / most:.1f}"
                for one in samples
            )
            parts.append(
                f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
            )
    said = f"0 to {with_us[-1]['cell']:,} cells; each from 0. Red: with the extension; grey: without"
    parts.append(f'<text x="10" y="{high * rows + 16}" fill="{INK}">{said}</text>')
    return "\n".join([*parts, "</svg>", ""])


def run(count, seed, progress=print):
    """Soak two kernels; the samples of both, the differences, and the classes that grew."""
    machine = simgpu.GPU if hasattr(simgpu, "GPU") else simgpu.start(devices=2, mem_mb=16384)
    env = {
        **os.environ,
        **simgpu.environment(machine),
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        kernels = [
            Kernel({**env, "CUDA_VISIBLE_DEVICES": str(n)}, Path(folder))
            for n, folder in ((0, first), (1, second))
        ]
        with kernels[0], kernels[1]:
            both = [
                Soaked(one, machine, n, folder, extended=n == 0)
                for n, (one, folder) in enumerate(zip(kernels, (first, second), strict=True))
            ]
            both[0].kernel.begin(["%load_ext ipygpulogger"])
            for one in both:  # what is kept of the last 64 forks is there from the start
                one.kernel.run("for _ in range(64):\n    if not os.fork(): os._exit(0)\n    os.wait()")
            differences, grew = soak(mixed(count, seed), both, progress)
            both[0].kernel.run("%load_ext ipygpulogger", silent=True)
            per_record = both[0].kernel.value("__import__('soak_probe').blocks_per_record()")
            for one in both[0].samples:
                one["python_blocks"] -= int(per_record * one["records"])
            return both[0].samples, both[1].samples, differences, grew


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=Path, help="write what was measured to this JSON file")
    parser.add_argument("--write", action="store_true", help=f"draw {PICTURE.relative_to(TESTS.parent)}")
    options = parser.parse_args()
    with_us, without, differences, grew = run(options.cells, options.seed)
    if options.samples:
        options.samples.write_text(json.dumps([with_us, without, differences, grew]))
    if options.write:
        PICTURE.write_text(drawn(with_us, without), encoding="utf-8")
    lines, too_much = table(with_us, without)
    print("\n".join(lines))
    print("classes that grew beside us only:", dict(list(grew.items())[:20]))
    for number, code, ours, theirs in differences[:20]:
        print(f"\ncell {number} was different:\n{code}\nwith:    {ours[:1500]}\nwithout: {theirs[:1500]}")
    if differences or too_much:
        sys.exit(f"{len(differences)} cells were different; what grew: {', '.join(too_much) or 'nothing'}")


if __name__ == "__main__":
    main()
