"""An allocation of general RAM that fails: what was asked for is told where it is certain, and who holds memory."""

import ast
import gc
import sys
import weakref
from contextlib import suppress

import pytest
from memory import MB

from ipygpulogger.owners.referents import asked_of_ram, whole_number
from ipygpulogger.owners.roots import drop_hidden_references
from ipygpulogger.render import html, text

PETA = 10**15  # more than any address space
HAS_POSITIONS = sys.version_info >= (3, 11)  # the columns of what failed within its line

# By the cell: the bytes that it asked for, by its own words.
COMPUTED = {
    "x = bytearray(10**15)": PETA,
    "n = 10**15\nx = bytearray(n)": PETA,
    "x = bytes(2 * 5 * 10**14)": PETA,
    "def big(n):\n    return bytearray(n << 1)\nbig(10**15)": 2 * PETA,
    "def outer():\n    n = 10**15\n    def inner():\n        x = bytes(n)\n    inner()\nouter()": PETA,
    "kept = []\nkept.append(bytearray(10**15))": PETA,
    "found = {'a': 1, 'b': len(bytes(3 *\n    10**15))}": 3 * PETA,
    "x = [bytearray(n) for n in (10, 10**15)]": PETA,
    "é = 10**15; x = len('é') + len(bytes(é))": PETA,
}
SAID = {
    "import numpy\nx = numpy.zeros(10**14)": 8 * 10**14,
    "import numpy\nnumpy.ones((10**7, 10**7), numpy.int16)": 2 * 10**14,
    'raise RuntimeError("DefaultCPUAllocator: can\'t allocate memory: you tried to allocate 8000000 bytes.")': 8
    * 10**6,
}
UNKNOWN = {
    "raised by hand": "raise MemoryError",
    "by hand, beside a size": "n = 10**15\nraise MemoryError(bytearray(1) * 2)",
    "an object that says how often": (
        "class N:\n    def __index__(self):\n        global asked\n        asked = True\n        return 10**15\n"
        "asked, n = False, N()\nx = bytearray(n)"
    ),
    "another bytearray": "def bytearray(n):\n    raise MemoryError\nbytearray(10**15)",
    "the number is another by now": (
        "def f():\n    n = 10**15\n    try:\n        x = bytearray(n)\n    except MemoryError:\n        n = 5\n        raise\nf()"
    ),
    "behind another error": (
        "try:\n    x = bytearray(10**15)\nexcept MemoryError as error:\n    raise ValueError('no') from error"
    ),
    "and as the function is left": (
        "def f():\n    n = 10**15\n    try:\n        x = bytearray(n)\n    finally:\n        n = 5\nf()"
    ),
    "repeated": "x = b'ab' * 10**15",
    "an attribute": "class A: n = 10**15\nx = bytearray(A.n)",
}


@pytest.fixture
def failed(run):
    """Runs a cell that fails for lack of RAM; returns its record."""

    def cell(code):
        record = run(code)
        assert record.status == "error"
        return record

    return cell


@pytest.mark.parametrize(("code", "asked_bytes"), (SAID | (COMPUTED if HAS_POSITIONS else {})).items())
def test_what_was_asked_for(failed, code, asked_bytes):
    """The bytes are those of the cell's own numbers: told by numpy or torch, or of the expression that failed."""
    assert failed(code).out_of_memory.asked_bytes == asked_bytes


@pytest.mark.parametrize("code", UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_not_certain_is_not_told(failed, shell, code):
    """None of the user's code is run to find it out, and a name that was bound again proves nothing."""
    shell.user_ns.pop("asked", None)
    shell.user_ns.pop("bytearray", None)
    card = failed(code).out_of_memory
    shell.user_ns.pop("bytearray", None)
    assert card.asked_bytes is None
    assert "not known how much was asked for, and the limit is" in card.advice


HOLDS = "def f(big):\n    return bytearray(10**15)\nf(bytearray(40 << 20))"


def test_who_holds_memory_and_the_next_step(failed, shell):
    """In the form of a device's report: what is missing, the step, the holders; nothing of it is said twice."""
    record = failed(f"kept = bytearray(30 << 20)\n{HOLDS}")
    card = record.out_of_memory
    assert card.device == "cpu"
    assert [(one.name, one.size_bytes) for one in card.owners[:2]] == [
        ("last traceback: f.big", 40 * MB),
        ("kept", 30 * MB),
    ]
    assert card.traceback_bytes == 40 * MB
    assert card.advice.startswith(
        "`%gpulog free` gives 40 MB back (the failed call's f.big). Use less at once: "
    )
    printed = text.report(record)
    assert "An allocation of RAM failed: asked 909.5 TB, free " in printed
    assert "held by: last traceback: f.big 40 MB, kept 30 MB" in printed
    for page in (printed, html.report(record)):
        assert page.count("An allocation of RAM failed") == 1
        assert "RAM left" not in page
        assert "the cell fail" not in page


def test_nothing_is_kept_alive(failed, shell):
    """What the traceback holds is freed with it."""
    failed(
        "class Big(bytearray): pass\nbig = Big(2 << 20)\ndef f(one):\n    return bytearray(10**15)\nf(big)"
    )
    weak = weakref.ref(shell.user_ns["big"])
    drop_hidden_references(shell)
    del shell.user_ns["big"]
    gc.collect()
    assert weak() is None


def test_without_a_traceback(shell):
    """An error that was never raised asked for nothing."""
    assert asked_of_ram(MemoryError(), shell) is None


@pytest.mark.parametrize("text", ["b'x' * 10**15", "'x' * n", "n * 1.5", "f(n)", "n or 2", "[0] * n", "m"])
def test_a_number_is_made_of_numbers_alone(text):
    """Nothing large is made to find out a size."""
    with suppress(NameError):
        assert whole_number(ast.parse(text, mode="eval").body, {"n": 10**15, "m": True}) is None
