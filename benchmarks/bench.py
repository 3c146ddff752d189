"""What the benchmarks share: a table, a description of the machine, interleaved rounds, fresh interpreters."""

from __future__ import annotations

import atexit
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TESTS = Path(__file__).resolve().parent.parent / "tests"  # the kernel and the simulated GPU live there


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table that reads in a terminal and in Markdown: words to the left, numbers to the right."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(3, *map(len, column)) for column in columns]
    words = [i == 0 or any(cell[:1].isalpha() for cell in column[1:]) for i, column in enumerate(columns)]

    def line(cells: Sequence[str]) -> str:
        padded = (c.ljust(w) if word else c.rjust(w) for c, w, word in zip(cells, widths, words, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = [
        ":" + "-" * (w - 1) if word else "-" * (w - 1) + ":" for w, word in zip(widths, words, strict=True)
    ]
    return [line(header), line(rule), *map(line, rows)]


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *remarks: str) -> None:
    """The table under its title, with remarks below."""
    print(f"\n### {title}\n", *table(header, rows), sep="\n")
    for remark in remarks:
        print(f"\n{remark}")
    sys.stdout.flush()


def about(*packages: str) -> str:
    """The kind of machine, and the versions."""
    found = [f"Python {platform.python_version()}"]
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"no {package}")
    return f"{platform.system()}, {os.cpu_count()} CPUs, {', '.join(found)}"


def turns(names: Sequence[str], rounds: int) -> Iterator[str]:
    """Every name once a round; each round begins with the next one, so that none is always first."""
    for i in range(rounds):
        shift = i % len(names)
        yield from (*names[shift:], *names[:shift])


def compare(
    costs_s: dict[str, list[list[float]]], base: str, of: Callable[[list[float]], float] = median
) -> list[list[str]]:
    """Rows of a table: the median, what was added to `base` in the same round, the fastest, the ratio.

    Args:
        costs_s: For each name the seconds of all its cells, one list a round.
        base: The name that the others stand beside.
        of: What stands for the cells of one round. The mean, where a few slow cells are the cost.
    """
    base_s = [of(cells) for cells in costs_s[base]]
    rows = []
    for name, rounds in costs_s.items():
        mine_s = [of(cells) for cells in rounds]
        added_s = median(mine - bare for mine, bare in zip(mine_s, base_s, strict=True))
        fastest_s = min(min(cells) for cells in rounds)
        added = "" if name == base else f"{added_s * 1000:+.3f}"
        ratio = median(mine / bare for mine, bare in zip(mine_s, base_s, strict=True))
        rows.append([name, f"{median(mine_s) * 1000:.3f}", added, f"{fastest_s * 1000:.3f}", f"{ratio:.1f}"])
    return rows


COMPARED = ["", "median ms", "added ms", "fastest ms", "times bare"]


def quiet_shell(*, history: bool = False) -> Any:
    """IPython's shell in this process, with no configuration of the user's.

    Args:
        history: Keep a history file, as people's shells do; a thread of IPython's writes it.
    """
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    config = Config(HistoryManager={"enabled": history}, InteractiveShell={"colors": "NoColor"})
    return InteractiveShell.instance(config=config, ipython_dir=folder.name)


def start_gpu(devices: int = 1, *, torch: bool = True) -> tuple[str, str | None]:
    """The simulated GPU of the tests, or a real one with ``SIMGPU=0`` in the environment; before torch is imported.

    Args:
        devices: How many to simulate.
        torch: Whether torch is to use it.

    Returns:
        Which it is, and why there is none.
    """
    sys.path.insert(0, str(TESTS))
    import simgpu

    which, reason = "simulated", simgpu.why_not()
    if torch and simgpu.find_torch_lib() is None:
        reason = "the CUDA build of torch is not installed"
    elif reason is None:
        simgpu.start(devices=devices, mem_mb=16384)
    elif os.environ.get("SIMGPU") == "0":
        import torch as real

        which, reason = "real", None if real.cuda.is_available() else "torch finds no GPU"
    return which, reason


def run_sections(sections: dict[str, Callable[[], None]]) -> None:
    """Each section in a fresh interpreter, so that none meets what another left; or those named."""
    if len(sys.argv) == 2 and sys.argv[1] in sections:
        sections[sys.argv[1]]()
        return
    if unknown := set(sys.argv[1:]) - set(sections):
        sys.exit(f"unknown section {', '.join(sorted(unknown))}; there are {', '.join(sections)}")
    for name in sys.argv[1:] or sections:
        subprocess.run([sys.executable, sys.argv[0], name], check=True)
