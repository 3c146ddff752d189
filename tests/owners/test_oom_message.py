"""Out-of-memory errors in every framework's words."""

import pytest
from memory import MB

from ipygpulogger.owners.dimensions import find_batch
from ipygpulogger.owners.out_of_memory import read_message
from ipygpulogger.owners.referents import out_of_memory_in
from ipygpulogger.owners.roots import drop_hidden_references

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
    said = read_message(TORCH)
    assert said.requested_bytes == round(8.79 * GIB)
    assert said.rounding_bytes == round(0.005 * GIB)
    assert said.device_index == 1
    assert said.free_bytes == round(6.22 * GIB)
    assert said.live_bytes == round(5.86 * GIB)
    assert said.cached_bytes == 12.5 * MB
    assert said.neighbours == ((4242, round(2.93 * GIB)), (17, 20 * MB))
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

    assert batch("outer(args)") == ("bs", 5)
    assert batch("inner()") == ("batch_size", 7)
    assert batch("def train(batch):\n    bs = 64\n    1 / 0\ntrain(3)") == (
        "bs",
        64,
    )  # `batch` counts batches
    assert batch("del batch_size, args\ninner()") is None
    drop_hidden_references(shell)
