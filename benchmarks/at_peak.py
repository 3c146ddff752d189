"""What ``--peak`` costs: a training step, and the end of a cell with a long history.

Claim: a cell with 100,000 events of the allocator pays under a second for them at its end. How much longer a
training step of 200 allocations takes while they are recorded depends on the Python stack, which torch copies at
each of them: so it is measured as deep as a notebook's cell is, and in a script. The goal is 1.15 times bare.
Beside it stand torch's recording alone, and the later steps of a long training, whose graphs are not looked at.
A short block pays the same whatever is imported: it is measured again beside a package of thousands of modules.
There the bare block is one that is measured without ``--peak``, and memray stands beside our use of it.

    python benchmarks/at_peak.py                all sections
    python benchmarks/at_peak.py step           one of: step, end, block

Needs the CUDA build of torch and runs on the simulated GPU of the tests; with ``SIMGPU=0`` in the environment
it takes a real one. pytorch_memlab, and general RAM by memray, stand beside it where they are installed.
The claim is about the GPU's part: memray looks at each call of malloc and of a Python function.
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from statistics import median
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bench import COMPARED, about, compare, print_table, run_sections, start_gpu, turns

from ipygpulogger import measure
from ipygpulogger.breakdown.recording import PeakRecording
from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import Measurement
from ipygpulogger.sources.system.memray import installed
from ipygpulogger.sources.torch.snapshot import start, stop

if TYPE_CHECKING:
    from collections.abc import Callable

BARE, OURS, SCRIPT = "bare", "%%gpulog --peak", "measure(peak=True) in a script"
LATER, ALONE, ALONE_SCRIPT = "--peak, after 10 steps", "torch's recording alone", "the same in a script"
PROFILER, MEMLAB, WITH_RAM = "torch.profiler", "pytorch_memlab", "--peak=all, with memray"
DEPTH = (
    21  # Python functions between a kernel's beginning and a cell; torch records them with each allocation
)
STEPS = 50  # in a round

Timed = tuple[float, float]  # seconds of the processor: of the steps, and with what begins and ends the tool


def deeply(function: Callable[[], None], depth: int = DEPTH) -> None:
    """Call from as deep a stack as a cell's code has."""
    if depth:
        deeply(function, depth - 1)
    else:
        function()


def clocked(function: Callable[[], None], depth: int = DEPTH) -> float:
    began_s = time.process_time()
    deeply(function, depth)
    return time.process_time() - began_s


def under_peak(
    function: Callable[[], None],
    depth: int = DEPTH,
    *,
    first: Callable[[], None] | None = None,
    ram: bool = False,
) -> Timed:
    """As `%%gpulog --peak` and `measure(peak=True)` do, with memray installed or without.

    Args:
        function: What is timed.
        depth: How many functions call it.
        first: What runs before it within the same recording.
        ram: Whether general RAM is recorded too.
    """
    began_s = time.process_time()
    recording = PeakRecording(ram=ram)
    recording.begin()
    scope = Scope().open()
    if first is not None:
        deeply(first, depth)
    steps_s = clocked(function, depth)
    scope.close()
    recording.end()
    record = recording.result(scope.result(Measurement, "steps"))
    whole_s = time.process_time() - began_s
    assert record.at_peak, record.notes
    return steps_s, whole_s


def under_torch(function: Callable[[], None], depth: int = DEPTH) -> Timed:
    """What torch's part of it costs: its memory history, with the Python stacks of allocations."""
    import torch

    began_s = time.process_time()
    start(torch)
    steps_s = clocked(function, depth)
    stop(torch)
    return steps_s, time.process_time() - began_s


def under_profiler(function: Callable[[], None]) -> Timed:
    from torch.profiler import ProfilerActivity, profile

    began_s = time.process_time()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=True):
        steps_s = clocked(function)
    return steps_s, time.process_time() - began_s


def under_memlab(train: Callable[[int], None]) -> Timed:
    from pytorch_memlab import LineProfiler

    began_s = time.process_time()
    with LineProfiler(train) as profiler:
        steps_s = clocked(partial(train, STEPS))
    profiler.disable()
    return steps_s, time.process_time() - began_s


def bare(function: Callable[[], None]) -> Timed:
    steps_s = clocked(function)
    return steps_s, steps_s


def gpu(title: str) -> str:
    """Which GPU there is; empty, and said, where there is none."""
    which, reason = start_gpu()
    if reason:
        print(f"\n### {title}\n\nNot run: {reason}.")
        return ""
    import torch

    torch.set_num_threads(1)
    return which


def allocations() -> int:
    import torch

    return int(torch.cuda.memory_stats()["allocation.all.allocated"])


def rows(costs_s: dict[str, list[Timed]], at: int) -> list[list[str]]:
    """`compare`'s rows with two digits to the ratios, since these are near one."""
    seconds = {name: [[one[at]] for one in rounds] for name, rounds in costs_s.items()}
    made = compare(seconds, BARE)
    for row in made:
        pairs = zip(seconds[row[0]], seconds[BARE], strict=True)
        row[-1] = f"{median(mine[0] / base[0] for mine, base in pairs):.2f}"
    return made


def step_section() -> None:
    title = "A training step"
    which = gpu(title)
    if not which:
        return
    import torch

    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(24)], torch.nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    batch = torch.randn(32, 64, device="cuda")

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = torch.relu(model(batch)).square().mean()
            loss.backward()
            optimizer.step()

    train(3)
    before = allocations()
    train(1)
    count = allocations() - before
    steps = partial(train, STEPS)
    runners: dict[str, Callable[[], Timed]] = {
        BARE: partial(bare, steps),
        OURS: partial(under_peak, steps),
        LATER: partial(under_peak, steps, first=partial(train, 10)),
        ALONE: partial(under_torch, steps),
        SCRIPT: partial(under_peak, steps, 0),
        ALONE_SCRIPT: partial(under_torch, steps, 0),
        PROFILER: partial(under_profiler, steps),
    }
    if installed():
        runners[WITH_RAM] = partial(under_peak, steps, ram=True)
    try:
        import pytorch_memlab  # noqa: F401 - whether it is there
    except ImportError:
        pass
    else:
        runners[MEMLAB] = partial(under_memlab, train)
    costs_s: dict[str, list[Timed]] = {name: [] for name in runners}
    for run in runners.values():
        run()
    for name in turns(list(runners), 21):
        costs_s[name].append(runners[name]())
    notes = [
        "A simulated driver answers at once and its kernels take no time, so on a real GPU the ratio is lower."
    ]
    for at, what in enumerate(("the steps alone", "with what begins and ends the tool")):
        print_table(
            f"{STEPS} training steps of {count} allocations, {what} ({which} GPU)",
            COMPARED,
            rows(costs_s, at),
            *(notes if which == "simulated" else ()),
            "Seconds of the processor, which other work does not lengthen.",
            about("torch", "pytorch_memlab"),
        )


def end_section() -> None:
    title = "The end of a cell"
    which = gpu(title)
    if not which:
        return
    import torch

    torch.zeros(1, device="cuda")
    made = []

    def work(events: int) -> None:
        kept: list[Any] = []
        for i in range(events // 3):  # an allocation, a free and its completion
            kept.append(torch.empty(1000 + i % 1000 * 3000, device="cuda"))
            if len(kept) > 200:
                kept.clear()

    for events in (1_000, 10_000, 100_000, 100_000):
        steps_s, whole_s = under_peak(partial(work, events))
        bare_s, _ = bare(partial(work, events))
        figures = (steps_s, bare_s, whole_s - steps_s)
        made.append([f"{events:,} events", *(f"{figure * 1000:.1f}" for figure in figures)])
    header = ["", "recorded ms", "bare ms", "begin and end ms"]
    print_table(f"{title} ({which} GPU)", header, made, "In this order, in one process.", about("torch"))


def many_modules(modules: int = 3000, definitions: int = 10) -> None:
    """Import a package of the user's as large as the largest: each module has classes and functions."""
    text = "\n".join(
        f"class C{i}:\n    table = [1]\ndef f{i}(a=C{i}):\n    return a" for i in range(definitions)
    )
    code = compile(text, "/me/large/module.py", "exec")
    for number in range(modules):
        module = ModuleType(f"large.m{number}")
        module.__file__ = f"/me/large/m{number}.py"
        sys.modules[module.__name__] = module
        exec(code, vars(module))


def recorded_block(allocate: Callable[[], object], *, ram: bool) -> float:
    began_s = time.process_time()
    with measure(peak="all" if ram else True) as measured:
        block = allocate()
    took_s = time.process_time() - began_s
    assert measured.at_peak, measured.last.notes
    del block
    return took_s


def measured_block(allocate: Callable[[], object]) -> float:
    began_s = time.process_time()
    with measure():
        block = allocate()
    took_s = time.process_time() - began_s
    del block
    return took_s


def memrays_block(allocate: Callable[[], object]) -> float:
    import memray

    with tempfile.TemporaryDirectory() as folder:
        began_s = time.process_time()
        with memray.Tracker(f"{folder}/events"):
            block = allocate()
        list(memray.FileReader(f"{folder}/events").get_allocation_records())
        took_s = time.process_time() - began_s
    del block
    return took_s


def block_section() -> None:
    which = gpu("A short block")
    if not which:
        return
    import torch

    def on_device() -> object:
        return torch.ones(1 << 18, device="cuda")

    def in_ram() -> object:
        return bytearray(1 << 20)

    for what in ("no further module", "a package of 3,000 modules, 60,000 classes and functions"):
        runners: dict[str, Callable[[], float]] = {
            "measure()": partial(measured_block, on_device),
            "measure(peak=True)": partial(recorded_block, on_device, ram=False),
        }
        if installed():
            runners["memray alone"] = partial(memrays_block, in_ram)
            runners['measure(peak="all")'] = partial(recorded_block, in_ram, ram=True)
        costs_s: dict[str, list[list[float]]] = {name: [] for name in runners}
        for run in runners.values():
            run()
        for name in turns(list(runners), 21):
            costs_s[name].append([runners[name]()])
        print_table(
            f"A block with one allocation beside {what} ({which} GPU)",
            COMPARED,
            compare(costs_s, "measure()"),
            "Seconds of the processor, which other work does not lengthen.",
            about("torch", "memray"),
        )
        many_modules()


if __name__ == "__main__":
    run_sections({"step": step_section, "end": end_section, "block": block_section})
