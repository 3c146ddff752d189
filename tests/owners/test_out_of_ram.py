"""An allocation of general RAM that fails: what was asked for is told where it is certain, and who holds memory."""

import gc
import weakref

import pytest
from memory import MB

from ipygpulogger.owners.roots import drop_hidden_references
from ipygpulogger.render import html, text

# By the cell: the bytes that it asked for, by its own words.
SAID = {
    "import numpy\nx = numpy.zeros(10**14)": 8 * 10**14,
    "import numpy\nnumpy.ones((10**7, 10**7), numpy.int16)": 2 * 10**14,
    'raise RuntimeError("DefaultCPUAllocator: can\'t allocate memory: you tried to allocate 8000000 bytes.")': 8
    * 10**6,
}
UNKNOWN = {"raised by hand": "raise MemoryError", "of Python": "x = bytearray(10**15)"}


@pytest.fixture
def failed(run):
    """Runs a cell that fails for lack of RAM; returns its record."""

    def cell(code):
        record = run(code)
        assert record.status == "error"
        return record

    return cell


@pytest.mark.parametrize(("code", "asked_bytes"), SAID.items())
def test_what_was_asked_for(failed, code, asked_bytes):
    """The bytes are those of the cell's own numbers: told by numpy or torch."""
    assert failed(code).out_of_memory.asked_bytes == asked_bytes


@pytest.mark.parametrize("code", UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_not_known_is_not_told(failed, code):
    """The report says so, and what the limit is."""
    card = failed(code).out_of_memory
    assert card.asked_bytes is None
    assert "not known how much was asked for, and the limit is" in card.advice


HOLDS = "import numpy\ndef f(big):\n    return numpy.ones(10**15, 'u1')\nf(bytearray(40 << 20))"


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
