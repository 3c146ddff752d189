"""Whether a peak is seen: memory of known size, needed for a moment.

Claim: of transients of 256 MB and of 16 MB every reported peak is within 5 % of the truth, however
short they are and whoever holds the GIL; a sampling thread misses what is shorter than its period or
holds the GIL, and ``tracemalloc`` what Python's allocators did not hand out (here the mapped memory of two kinds).

    python benchmarks/transients.py

The tools run in turns in one process, never two at once. Needs Linux: only there is the height known
to the page.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING

import psutil
from bench import about, print_table, turns

from ipygpulogger import measure

if TYPE_CHECKING:
    from collections.abc import Callable

MB = 2**20
TRIALS = 20
NEAR = 0.05
HELD_S = (0.0, 0.002, 0.01)  # how long the memory is kept once it is all there
M_MMAP_THRESHOLD = -3  # mallopt(3)

_gil_free, _gil_held = ctypes.CDLL(None), ctypes.PyDLL(None)


def gil_free(size_bytes: int, held_s: float) -> None:
    """One C call brings the pages in, another waits; neither holds the GIL."""
    pages = mmap.mmap(-1, size_bytes)
    address = ctypes.addressof(view := ctypes.c_char.from_buffer(pages))
    _gil_free.memset(ctypes.c_void_p(address), 1, ctypes.c_size_t(size_bytes))
    if held_s:
        _gil_free.usleep(int(held_s * 1e6))
    del view
    pages.close()


def gil_held(size_bytes: int, held_s: float) -> None:
    """``len(b"x" * n)``: made and freed without letting the GIL go in between."""
    if held_s:
        _gil_held.usleep(int(held_s * 1e6), b"x" * size_bytes)  # C looks at the first argument only
    else:
        len(b"x" * size_bytes)


def python_busy(size_bytes: int, held_s: float) -> None:
    """Python touches page after page, and waits in a loop."""
    pages = mmap.mmap(-1, size_bytes)
    for offset in range(0, size_bytes, mmap.PAGESIZE):
        pages[offset] = 1
    until_s = time.perf_counter() + held_s
    while time.perf_counter() < until_s:
        pass
    pages.close()


KINDS: dict[str, Callable[[int, float], None]] = {
    "C, GIL free": gil_free,
    "C, GIL held": gil_held,
    "Python busy": python_busy,
}


def by_us(transient: Callable[[], None]) -> int:
    with measure() as measured:
        transient()
    return measured.gen.peak.lo_bytes - measured.gen.before_bytes


_process = psutil.Process()


def by_thread(transient: Callable[[], None]) -> int:
    before_bytes = highest_bytes = _process.memory_info().rss
    done, looking = threading.Event(), threading.Event()

    def look() -> None:
        nonlocal highest_bytes
        while not done.wait(0.001):
            highest_bytes = max(highest_bytes, _process.memory_info().rss)
            looking.set()

    thread = threading.Thread(target=look)
    thread.start()
    looking.wait()
    transient()
    done.set()
    thread.join()
    return highest_bytes - before_bytes


def by_tracemalloc(transient: Callable[[], None]) -> int:
    tracemalloc.start()
    before_bytes, _ = tracemalloc.get_traced_memory()
    transient()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak_bytes - before_bytes


TOOLS: dict[str, Callable[[Callable[[], None]], int]] = {
    "ipygpulogger": by_us,
    "1 ms sampling thread": by_thread,
    "tracemalloc": by_tracemalloc,
}


def main() -> None:
    # Else glibc serves a block of 16 MB from heap that it kept, and resident memory does not move.
    _gil_free.mallopt(M_MMAP_THRESHOLD, 128 * 1024)
    rows = []
    for size_mb in (256, 16):
        size_bytes = size_mb * MB
        seen: dict[tuple[str, str, float], int] = dict.fromkeys(
            ((tool, kind, held_s) for tool in TOOLS for kind in KINDS for held_s in HELD_S), 0
        )
        for tool in turns(list(TOOLS), TRIALS):
            for kind, transient in KINDS.items():
                for held_s in HELD_S:
                    told_bytes = TOOLS[tool](partial(transient, size_bytes, held_s))
                    seen[tool, kind, held_s] += abs(told_bytes - size_bytes) <= NEAR * size_bytes
        for tool in TOOLS:
            shares = [
                " / ".join(f"{100 * seen[tool, kind, held_s] / TRIALS:.0f}" for held_s in HELD_S)
                for kind in KINDS
            ]
            rows.append([f"{size_mb} MB", tool, *shares])
    held = " / ".join(f"{held_s * 1000:g}" for held_s in HELD_S)
    print_table(
        f"% of {TRIALS} transients whose reported peak is within {NEAR:.0%}, held {held} ms",
        ["height", "tool", *KINDS],
        rows,
        about("psutil"),
    )


if __name__ == "__main__":
    if os.name != "posix" or not os.path.exists("/proc/self/status"):  # noqa: PTH110 - shorter
        raise SystemExit("needs Linux")
    main()
