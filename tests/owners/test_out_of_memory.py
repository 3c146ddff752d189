"""Out-of-memory errors in every framework's words, and what is reported of them."""

import re
from dataclasses import replace
from html import escape as html_escape

import pytest
from made import plain
from memory import MB

from ipygpulogger.notebook.logger import IPyGPULogger
from ipygpulogger.owners.dimensions import find_batch
from ipygpulogger.owners.out_of_memory import OomMessage, OomSnapshot, oom_snapshot, read_message
from ipygpulogger.owners.out_of_memory import out_of_memory as oom_report
from ipygpulogger.owners.referents import out_of_memory_in
from ipygpulogger.owners.roots import drop_hidden_references
from ipygpulogger.records import DeviceUsage, OutOfMemory, Owner, Peak
from ipygpulogger.render import out_of_memory, text
from ipygpulogger.sources import Device, DeviceCounter, DeviceMemory, Framework, Observation, Reading

GIB = 2**30


@pytest.mark.parametrize(
    ("words", "asked_bytes", "report"),
    [
        (
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has",
            2 * GIB,
            " on gpu:1: asked 2.00 GiB\n  -> Use less at once: 2.00 GiB were asked for.",
        ),
        (
            "CUDA error: out of memory",
            None,
            "\n  -> Use less at once: it is not known how much was asked for.",
        ),
    ],
)
def test_without_any_framework(shell, words, asked_bytes, report):
    """What the words say is told; the rest is unknown, and never 0: no device that they do not name."""
    card = oom_report(oom_snapshot(RuntimeError(words), shell, []), [])
    assert (card.asked_bytes, card.free_bytes, card.live_bytes) == (asked_bytes, None, None)
    assert out_of_memory.report(card) == f"Out of memory{report}"
    assert re.search("<b>(GPU 1 is out|Out) of memory\\.</b>", out_of_memory.html(card, 9000))


class Allocator(DeviceCounter):
    peak_class = "sampled"

    def __init__(self, index):
        self.device = Device("cuda", index, "a GPU")

    def observe(self):
        return Observation((Reading(GIB, None),), ())

    def device_memory(self):
        return DeviceMemory(9 * GIB, 0, self.device.index * GIB)


class TwoDevices(Framework):
    name = "two"

    def counters(self):
        return [Allocator(0), Allocator(1), Allocator(2)]

    def current_index(self):
        return 1


@pytest.mark.parametrize(("said", "index"), [("", 1), (" GPU 0 has", 0), (" GPU 2 has", 2)])
def test_which_device_ran_out(shell, said, index):
    """The one that the message names, else the framework's current one; its own figures are told."""
    words = f"CUDA out of memory. Tried to allocate 2.00 GiB.{said}"
    snapshot = oom_snapshot(RuntimeError(words), shell, [TwoDevices()])
    assert (snapshot.device, snapshot.report.free_bytes) == (f"cuda:{index}", index * GIB)


# -- the one next step, where every figure is known

EARLIER_MB = 500  # before the cell


def failed(*, hidden_mb, left_mb=0, free_mb=0, **more):
    """A cell that asked for 100 MB when `left_mb` of its own were live; afterwards nothing is free."""
    now_mb = EARLIER_MB + left_mb
    owners = (Owner("Out[3]", hidden_mb * MB, "cuda:0", "output"),)
    figures = {"live_bytes": now_mb * MB, "cached_bytes": 0, "fragmented_bytes": 0, **more}
    report = OutOfMemory(
        "cuda:0", 100 * MB, free_mb * MB, neighbours_bytes=None, traceback_bytes=0, outputs_bytes=hidden_mb * MB,
        owners=owners, advice="", **figures,
    )  # fmt: skip
    message = OomMessage(100 * MB, setting="PYTORCH_ALLOC_CONF")
    snapshot = OomSnapshot("cuda:0", report, complete=True, message=message, available_bytes=free_mb * MB)
    usage = DeviceUsage(
        EARLIER_MB * MB, now_mb * MB, Peak(now_mb * MB, None, "sampled"), index=0, name="a GPU",
        allocated_bytes=now_mb * MB, reserved_bytes=now_mb * MB, free_bytes=0,
    )  # fmt: skip
    return oom_report(snapshot, [usage])


IN_PIECES = {"cached_bytes": 200 * MB, "fragmented_bytes": 200 * MB}
FREE_50 = "`%gpulog free` gives 50 MB back (Out[3])."
STEPS = {
    "what was hidden before is enough": (
        {"hidden_mb": 300, **IN_PIECES},
        "`%gpulog free` gives 300 MB back (Out[3]). Then run the cell again: it fits.",
    ),
    "it is not, and memory lies in pieces": (
        {"hidden_mb": 50, **IN_PIECES},
        (
            "Restart the kernel and run `%env PYTORCH_ALLOC_CONF=expandable_segments:True` before torch is"
            " imported: 200 MB lie unused in pieces between tensors."
        ),
    ),
    "the cell's own variables": (
        {"hidden_mb": 50, "left_mb": 400},
        (
            f"{FREE_50} `del` what the cell put into variables: 350 MB."
            " Use less at once: about 100 MB too much were asked for."
        ),
    ),
    "there seemed to be room": (
        {"hidden_mb": 50, "left_mb": 400, "free_mb": 150},
        (
            f"{FREE_50} `del` what the cell put into variables: 350 MB."
            " Use less at once: 100 MB could not be had although 150 MB were free."
        ),
    ),
}


@pytest.mark.parametrize(("known", "step"), STEPS.values(), ids=STEPS)
def test_the_next_step(known, step):
    """The first that would have been enough, after what the failed cell still holds, to the megabyte."""
    assert failed(**known).advice == step


OWNERS = tuple(Owner(f"<b>{'x' * 200}&{i}", 2**40 - i, "cuda:0", "variable") for i in range(5))


CARD = OutOfMemory(
    "cuda:0", 2**40, None, 2**40, 0, None, 2**40, 2**40, 2**40, OWNERS, "Do <this> & that " + "x" * 200
)


def record_with(card):
    return plain(status="error", error="OutOfMemoryError", out_of_memory=card)


def test_the_card_as_html_names_the_holders():
    """What is missing, a command to copy, who holds the device, and the size asked for to the megabyte."""
    owners = (
        Owner("model", 2400 * MB, "cuda:0", "variable"),
        Owner("last traceback: step.act", 3000 * MB, "cuda:0", "traceback"),
    )
    advice = (
        "`%gpulog free` gives 3000 MB back (the failed call's step.act). Then run the cell again: it fits."
    )
    card = OutOfMemory(
        "cuda:0", 8000 * MB, 5000 * MB, 6000 * MB, 0, 0, 4500 * MB, 3000 * MB, 0, owners, advice
    )
    page = out_of_memory.html(card, 1200)
    assert len(page.encode()) <= 1200
    words = re.sub(r"<div", "\n<div", page).replace("\N{NO-BREAK SPACE}", " ")
    assert [re.sub("<[^>]*>", "", line) for line in words.splitlines() if re.sub("<[^>]*>", "", line)] == [
        "GPU 0 is out of memory. 7.8 GB asked, 4.9 GB free: 2.9 GB short.",
        f"Do this: {html_escape(advice.replace('`', '').replace('3000 MB', '2.9 GB'))}",
        "held by: model 2.3 GB · step.act (last traceback) 2.9 GB",
        "asked 8000 MB · free 5000 MB · live 6000 MB · other processes 4500 MB",
    ]
    assert "<code>%gpulog free</code>" in page
    for room in (1200, 900, 700, 500, 300):
        assert len(out_of_memory.html(card, room).encode()) <= room


@pytest.mark.parametrize("compact", [False, True])
def test_the_card_as_text(compact):
    """Directly below the figures, on lines of its own; who grew and the notes come after it."""
    said = {"owners": (Owner("act", 2000 * MB, "cuda:0", "traceback"),), "notes": ("A note.",)}
    lines = text.report(replace(record_with(CARD), **said), compact=compact).splitlines()
    start = lines.index("Out of memory on cuda:0: asked 1.0 TB")
    assert start == (1 if compact else 2)
    assert lines[start + 1].startswith("  -> Do <this> & that")
    assert lines[start + 2] == "  live 1048576 MB, cached 0 MB, other processes 1048576 MB"
    assert lines[-2:] == ["grew: act 2000 MB (cuda:0)", "A note."]


def test_a_broken_explanation_costs_nothing(shell, capsys, monkeypatch):
    """Without any GPU there is what the error said; without it a report all the same, and the reason once."""

    def broken(*_):
        raise LookupError("of ours")

    fails = "raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')"
    il = IPyGPULogger().start()
    shell.run_cell(fails, store_history=True)
    assert il.record.out_of_memory.asked_bytes == 2 * GIB
    assert "Out of memory: asked 2.00 GiB" in capsys.readouterr().out
    monkeypatch.setattr("ipygpulogger.owners.out_of_memory.oom_snapshot", broken)
    for _ in range(2):
        shell.run_cell(fails, store_history=True)
    il.stop()
    printed = capsys.readouterr()
    assert printed.out.count("failed: RuntimeError") == 2
    assert printed.err.count("could not explain an error: LookupError: of ours") == 1
    assert il.record.out_of_memory is None
    drop_hidden_references(shell)


# -- the words of an error


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
    said = read_message(TORCH)
    assert said.requested_bytes == round(8.79 * GIB)
    assert said.device_index == 1
    assert said.free_bytes == round(6.22 * GIB)
    assert said.live_bytes == round(5.86 * GIB)
    assert said.cached_bytes == 12.5 * MB
    assert said.setting == "PYTORCH_ALLOC_CONF"


@pytest.mark.parametrize(
    ("message", "requested_bytes", "device_index"),
    [
        ("CUDA out of memory. Tried to allocate 512 bytes. GPU 0 has a total", 512, 0),
        ("XPU out of memory. Tried to allocate 2.00 KiB. GPU 3 has", 2048, 3),
        ("Tried to allocate 10.00 GB on private pool.", 10 * GIB, None),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.", 8 * GIB, None),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8.00GiB.", 8 * GIB, None),
        ("Out of memory allocating 1,073,741,824 bytes (allocated so far: 512 bytes).", GIB, None),
        ("OOM when allocating tensor with shape[1024,1024] and type half on /device:GPU:2", None, 2),
        ("CUDA error: out of memory", None, None),
        ("", None, None),
    ],
)
def test_other_words(message, requested_bytes, device_index):
    """Sizes with and without decimals, commas and spaces."""
    said = read_message(message)
    assert (said.requested_bytes, said.device_index) == (requested_bytes, device_index)
    assert said.live_bytes == (512 if "so far" in message else None)


def test_half_a_message():
    """Words that are cut off or doubled say nothing, and break nothing."""
    assert read_message("CUDA out of memory. 1.2.3 GiB free").free_bytes is None


# -- the batch size of code that failed -------------------------------------------------------------


def test_the_batch_is_found_nearest_to_the_failure(shell, capsys):
    """The failing function's own before its caller's, an object's attribute before a global."""
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
        return find_batch(shell.last_execution_result.error_in_exec, shell)

    assert batch("outer(args)") == ("args.bs", 5)
    assert batch("inner()") == ("batch_size", 7)
    assert batch("def train(batch):\n    bs = 64\n    1 / 0\ntrain(3)") == (
        "bs",
        64,
    )  # `batch` counts batches
    assert batch("del batch_size, args\ninner()") is None
    drop_hidden_references(shell)
