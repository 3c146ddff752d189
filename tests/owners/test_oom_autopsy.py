"""Out-of-memory errors in every framework's words, and the card they get."""

from dataclasses import replace

import pytest
from arrays import Array, holding
from memory import MB

from ipygpulogger.notebook.cell_events import CellEvents
from ipygpulogger.notebook.logger import IPyGPULogger
from ipygpulogger.owners.oom_batch import find_batch
from ipygpulogger.owners.oom_examine import examine
from ipygpulogger.owners.oom_message import out_of_memory_in, read
from ipygpulogger.owners.release import drop_hidden_references
from ipygpulogger.records import CellRecord, OutOfMemory, Owner
from ipygpulogger.render import html, out_of_memory, text
from ipygpulogger.render.owners import Freed
from ipygpulogger.sources import Device, DeviceCounter, DeviceMemory, Framework, Look, Reading

GIB = 2**30
TORCH = (
    "CUDA out of memory. Tried to allocate 8.79 GiB. GPU 1 has a total capacity of 15.50 GiB of which 6.22 GiB"
    " is free. Including non-PyTorch memory, this process has 6.35 GiB memory in use. Process 4242 has 2.93 GiB"
    " memory in use. Process 17 has 20.00 MiB memory in use. 7.75 GiB allowed; Of the allocated memory 5.86 GiB is"
    " allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., CUDA Graphs), and 12.50 MiB is reserved"
    " by PyTorch but unallocated. If reserved but unallocated memory is large try setting"
    " PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)


def error(name, module, message, bases=(Exception,)):
    return type(name, bases, {"__module__": module})(message)


DEVICE_ERRORS = [
    error("OutOfMemoryError", "torch", TORCH, (RuntimeError,)),
    error("OutOfMemoryError", "torch.cuda", "no words at all", (RuntimeError,)),
    RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("MPS backend out of memory (MPS allocated: 5.00 GB, max allowed: 9.07 GB)"),
    error(
        "XlaRuntimeError",
        "jaxlib.xla_extension",
        "RESOURCE_EXHAUSTED: Out of memory allocating 20029400304 bytes.",
    ),
    error("OutOfMemoryError", "cupy.cuda.memory", "Out of memory allocating 1,024 bytes", (MemoryError,)),
    error("ResourceExhaustedError", "tensorflow.python.framework.errors_impl", "{{function_node}}"),
    MemoryError("std::bad_alloc: out_of_memory: CUDA error at: device_memory_resource.hpp"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]
OTHERS = [
    ValueError("no"),
    MemoryError(),
    MemoryError("Unable to allocate 40.0 GiB for an array with shape (5, 2) and data type float64"),
    error("OutOfMemoryError", "__main__", "the cache of my own"),
    RuntimeError("CUDA error: device-side assert triggered"),
    OSError(12, "Cannot allocate memory"),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("one", DEVICE_ERRORS, ids=str)
def test_known(one):
    """By class or by words, itself or behind another error."""
    assert out_of_memory_in(one) is one
    other = ValueError("the step failed")
    other.__context__ = KeyError("x")
    other.__context__.__cause__ = one
    assert out_of_memory_in(other) is one
    one.__context__ = other  # a ring
    assert out_of_memory_in(other) is one
    one.__context__ = None


@pytest.mark.parametrize("one", OTHERS, ids=repr)
def test_not_known(one):
    """A machine without RAM, a bug on the device, a class of the same name."""
    assert out_of_memory_in(one) is None
    assert out_of_memory_in(None) is None


def test_an_error_is_not_asked_for_its_words():
    """`__str__` and `args` of a user's class may do anything."""

    class Hostile(Exception):
        def __str__(self):
            raise SystemExit

        args = __cause__ = __context__ = property(__str__)

    assert out_of_memory_in(Hostile("CUDA out of memory")) is not None


def test_torchs_words():
    """All that torch 2.6 to 2.15 say."""
    said = read(TORCH)
    assert said.asked_bytes == round(8.79 * GIB)
    assert said.rounding_bytes == round(0.005 * GIB)
    assert said.device_index == 1
    assert said.free_bytes == round(6.22 * GIB)
    assert said.live_bytes == round(5.86 * GIB)
    assert said.cached_bytes == 12.5 * MB
    assert said.allowed_bytes == 7.75 * GIB
    assert said.neighbours == ((4242, round(2.93 * GIB)), (17, 20 * MB))
    assert said.setting == "PYTORCH_ALLOC_CONF"


@pytest.mark.parametrize(
    ("message", "asked_bytes", "device_index"),
    [
        ("CUDA out of memory. Tried to allocate 512 bytes. GPU 0 has a total", 512, 0),
        ("XPU out of memory. Tried to allocate 2.00 KiB. GPU 3 has", 2048, 3),
        ("Tried to allocate 10.00 GB on private pool.", 10 * GIB, None),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.", 8 * GIB, None),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8.00GiB.", 8 * GIB, None),
        ("Out of memory allocating 1,073,741,824 bytes (allocated so far: 512 bytes).", GIB, None),
        (
            "OOM when allocating tensor with shape[1024,1024] and type half on /device:GPU:2 by GPU_2_bfc",
            2 * MB,
            2,
        ),
        ("CUDA error: out of memory", None, None),
        ("", None, None),
    ],
)
def test_other_words(message, asked_bytes, device_index):
    """Sizes with and without decimals, commas and spaces."""
    said = read(message)
    assert (said.asked_bytes, said.device_index) == (asked_bytes, device_index)


def test_cupys_limit():
    """CuPy tells what it may use."""
    said = read(
        "Out of memory allocating 2,048 bytes (allocated so far: 512 bytes, limit set to: 1,024 bytes)."
    )
    assert (said.live_bytes, said.allowed_bytes) == (512, 1024)


# -- the card --------------------------------------------------------------------------------------


class Fake(Framework):
    """A framework of one device; with arrays."""

    name = "torch"

    class Memory(DeviceCounter):
        device = Device("cuda", 0, "a device")

        def look(self):
            return Look((Reading(5000 * MB, 5000 * MB), Reading(5100 * MB, 5100 * MB)), ())

        def device_memory(self):
            return DeviceMemory(10000 * MB, 6000 * MB, 4000 * MB)

    def counters(self):
        return [self.Memory()]

    def current_index(self):
        return 0

    def holding(self, value):
        return holding(value)


@pytest.mark.parametrize(
    "message", ["OOM when allocating tensor with shape[1,] and type float", "1.2.3 GiB free"]
)
def test_half_a_message(message):
    """Words that are cut off or doubled say nothing, and break nothing."""
    assert read(f"CUDA out of memory. {message}").free_bytes is None


def test_a_loops_count_is_no_batch(shell, capsys):
    """`for batch, (X, y) in enumerate(loader)` counts batches; their size is elsewhere."""
    shell.run_cell("def train(batch):\n    bs = 64\n    1 / 0\ntrain(3)")
    error = shell.last_execution_result.error_in_exec
    assert find_batch(error, shell, []) == ("bs = 64", 64)


def test_without_any_framework(shell):
    """What the words say is told; the rest is unknown, and never 0."""
    autopsy = examine(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has"), shell, [])
    card = autopsy.verdict([])
    assert (card.asked_bytes, card.free_bytes, card.live_bytes) == (2 * GIB, None, None)
    assert "asked 2048 MB, free n/a" in out_of_memory.report(card)
    assert card.advice == "2048 MB were asked for: use less at once."


def test_without_a_size(shell):
    """An error that tells nothing."""
    card = examine(RuntimeError("CUDA error: out of memory"), shell, [Fake()]).verdict([])
    assert (card.device, card.free_bytes, card.live_bytes) == ("cuda:0", 4000 * MB, 5000 * MB)
    assert card.advice.startswith("It is not known how much was asked for")


OWNERS = tuple(Owner(f"<b>{'x' * 200}&{i}", 2**40 - i, "cuda:0", "variable") for i in range(5))
CARD = OutOfMemory(
    "cuda:0", 2**40, None, 2**40, 0, None, 2**40, 2**40, 2**40, OWNERS, "Do <this> & that " + "x" * 200
)


def record_with(card):
    from datetime import datetime, timezone

    from ipygpulogger.records import Peak, RamUsage

    return CellRecord(
        label="In [1]",
        started_at=datetime.now(timezone.utc),
        time_s=1.0,
        gen=RamUsage(MB, MB, Peak(MB, MB, "exact")),
        execution_count=1,
        cell_id=None,
        source="",
        status="error",
        error="OutOfMemoryError",
        out_of_memory=card,
    )


def test_the_card_as_html():
    """Every foreign string escaped, at most 1 KB, the largest owners first."""
    page = html.report(record_with(CARD))
    without = html.report(record_with(None))
    assert len(page.encode()) - len(without.encode()) <= 1024
    assert "<b>" not in page
    assert "&lt;b&gt;xxx" in page
    assert "Do &lt;this&gt; &amp; that" in page
    assert "<td>n/a</td>" in page


@pytest.mark.parametrize("compact", [False, True])
def test_the_card_as_text(compact):
    """Directly below the figures, on lines of its own; who grew and the notes come after it."""
    said = {"owners": (Owner("act", 2000 * MB, "cuda:0", "traceback"),), "notes": ("A note.",)}
    lines = text.report(replace(record_with(CARD), **said), compact=compact).splitlines()
    start = lines.index("Out of memory on cuda:0: asked 1048576 MB, free n/a")
    assert start == (1 if compact else 2)
    assert lines[-3].startswith("  -> Do <this> & that")
    assert lines[-2:] == ["grew: act 2000 MB (cuda:0)", "A note."]


def test_what_free_says():
    """The frames together, the outputs by name, several devices apart."""
    hidden = [
        Owner("last traceback: step.act", 2048 * MB, "cuda:0", "traceback"),
        Owner("Out[3]", 512 * MB, "cuda:0", "output"),
        Owner("last traceback: f.h", 10 * MB, "cuda:1", "traceback"),
    ]
    came_back = {"cuda:0": (2560 * MB, 2560 * MB), "RAM": (12 * MB,)}
    assert str(Freed(tuple(hidden), came_back)) == (
        "dropped: last traceback (step.act 2048 MB on cuda:0, f.h 10 MB on cuda:1), Out[3] 512 MB\n"
        "came back: cuda:0 2560 MB (the device 2560 MB), RAM 12 MB"
    )
    many = [Owner(f"Out[{i}]", MB, "cuda:0", "output") for i in range(12)]
    assert "Out[7] 1 MB, and 4 more (4 MB)\n" in str(Freed(tuple(many), came_back))
    assert str(Freed((), {"RAM": (0,)}, complete=False)) == (
        "nothing hidden: no array was in Out or in a traceback (there was no time to look everywhere)\n"
        "came back: RAM 0 MB"
    )


# -- the step before memory comes to rest ----------------------------------------------------------


class Listens:
    """A listener that writes down what it is told."""

    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        def told(*args):
            cell = args[-1] if args else None
            self.told.append((name, repr(getattr(cell, "exception", None))))
            self.cell = cell if cell is not None and name != "_failed" else getattr(self, "cell", None)

        return told


def steps_of(shell, source):
    events, listens = CellEvents.of(shell), Listens()
    events.subscribe(listens)
    listens.told.clear()
    shell.run_cell(source, store_history=True)
    events.unsubscribe(listens)
    return listens


def test_told_of_the_exception_and_no_longer(shell, capsys):
    """Right after the end, before memory is settled; the cell keeps it for that one step."""
    listens = steps_of(shell, "1 / 0")
    none = "None"
    assert listens.told == [
        *[(step, none) for step in ("_preload", "_settle", "_begin", "_end")],
        ("_died", "ZeroDivisionError('division by zero')"),
        ("_settle", none),
        ("_finish", none),
        ("_drop", none),
    ]
    assert listens.cell.exception is None
    assert "_died" not in [step for step, _ in steps_of(shell, "1").told]
    drop_hidden_references(shell)


def test_a_broken_explanation_costs_nothing(shell, capsys, monkeypatch):
    """The cell has its report all the same, and the reason is said once."""

    def broken(*_):
        raise LookupError("of ours")

    monkeypatch.setattr("ipygpulogger.owners.oom_examine.examine", broken)
    il = IPyGPULogger().start()
    for _ in range(2):
        shell.run_cell(
            "raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')", store_history=True
        )
    il.stop()
    printed = capsys.readouterr()
    assert printed.out.count("failed: RuntimeError") == 2
    assert printed.err.count("could not explain an error: LookupError: of ours") == 1
    assert il.record.out_of_memory is None
    drop_hidden_references(shell)


def test_a_card_in_the_record(shell, capsys):
    """Without any GPU the card still says what the error said."""
    il = IPyGPULogger().start()
    shell.run_cell("raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')", store_history=True)
    il.stop()
    assert il.record.out_of_memory.asked_bytes == 2 * GIB
    assert "Out of memory on gpu:0: asked 2048 MB" in capsys.readouterr().out
    drop_hidden_references(shell)


def test_the_batch_is_found_nearest_to_the_failure(shell, capsys):
    """The failing function's own before its caller's, an object's attribute before a global."""
    shell.user_ns.update(Array=Array)
    shell.run_cell(
        "batch_size = 7\n"
        "class Args: pass\n"
        "args = Args(); args.bs = 5\n"
        "def outer(args):\n    inner()\n"
        "def inner():\n    raise RuntimeError('CUDA out of memory')\n",
        store_history=True,
    )

    def batch(source):
        shell.run_cell(source, store_history=True)
        return find_batch(shell.last_execution_result.error_in_exec, shell, [holding])

    assert batch("outer(args)") == ("bs = 5", 5)
    assert batch("inner()") == ("batch_size = 7", 7)
    assert batch("del batch_size, args\ninner()") is None
    drop_hidden_references(shell)
