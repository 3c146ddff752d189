"""Random programs of cells that make, keep, drop and rebind cycles which hold memory of known size.

The memory that is not freed is counted by weak references, so the truth after each cell is known to the byte.
"""

import gc
import itertools
import os
import re
import sys
import weakref
from pathlib import Path

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from memory import MB, trim

from ipygpulogger import IPyGPULogger
from ipygpulogger.owners.roots import drop_hidden_references

ROUNDED_BYTES = MB
live = {}  # by number: the bytes of each block that is not freed yet
_numbers = itertools.count()


class Node:
    """Holds a block; may refer to itself."""

    block = below = me = None


def counted(block, size_bytes):
    """Count a block as long as it lives."""
    number = next(_numbers)
    live[number] = size_bytes
    weakref.finalize(block, live.pop, number)
    return block


def node_of(block, *, cyclic=True):
    """Put a block into a node, by default one that only the garbage collector can free."""
    node = Node()
    node.block, node.me = block, node if cyclic else None
    return node


def churn():
    """Create so many objects that they set off collections of every generation."""
    return len([[] for _ in range(20_000)])


def failing(node):
    """Keep a node as a local variable of a frame that the traceback refers to."""
    raise ValueError(node.block)


_NAMES = st.sampled_from(["a", "b", "c"])
_MAKE = st.builds(
    "make({}, cyclic={})".format, st.sampled_from([1, 2, 5, 20, 100]), st.sampled_from([True, True, False])
)
_STATEMENT = st.one_of(
    st.builds("{} = {}".format, _NAMES, _MAKE),
    st.builds("{} = {}; churn()".format, _NAMES, _MAKE),
    st.builds("kept['{}'] = {}".format, _NAMES, _MAKE),
    st.builds("row.append({})".format, _MAKE),
    st.builds("{0} = Node(); {0}.below = [{1}, ()]".format, _NAMES, _MAKE),
    st.builds("{} = {}".format, _NAMES, _NAMES),
    st.builds("{} = None".format, _NAMES),
    st.builds("kept.pop('{}', None)".format, _NAMES),
    st.builds("kept['{}'] = {}".format, _NAMES, _NAMES),
    st.builds("{0} = kept.pop('{1}', None)".format, _NAMES, _NAMES),
    st.builds("{0} and setattr({0}, 'below', None)".format, _NAMES),
    st.builds("{0} and setattr({0}, 'below', {1})".format, _NAMES, _MAKE),
    st.builds("failing({})".format, _MAKE),
    st.builds("churn(); {}; None".format, _MAKE),
    st.builds("x = {}; churn(); del x; None".format, _MAKE),
    st.sampled_from(["row.pop() if row else None", "row.clear()", "row = list(row)", "Out.clear()"]),
    st.sampled_from(["churn()", "gc.collect(0)", "gc.collect(1)", "gc.collect()", "pass", "1/0"]),
    _MAKE,
)
PROGRAMS = st.lists(st.lists(_STATEMENT, min_size=1, max_size=3).map("\n".join), min_size=1, max_size=7)
_BEGIN = "a = b = c = None; kept = {}; row = []"
_PHASES = [Phase.explicit, Phase.generate]  # to make a failing program shorter takes minutes


def collectable_bytes():
    """Return how much resident memory a full collection would free now: a forked child tries."""
    sys.stdout.flush()
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            before = _in_use_bytes()
            gc.collect()
            os.write(writable, str(before - _in_use_bytes()).encode())
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as answer:
        freed_bytes = int(answer.read())
    os.waitpid(pid, 0)
    return max(0, freed_bytes)  # a page may be copied meanwhile


def _in_use_bytes():
    """Without pages of files, which a child has in memory only once it comes to them."""
    trim()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) << 10


def said_bytes(notes, pattern):
    """Return the sizes in those of these notes that fit a pattern."""
    found = (re.fullmatch(pattern, str(note)) for note in notes)
    units = {"MB": MB, "GB": MB << 10}
    return [float(match["size"]) * units[match["unit"]] for match in found if match]


SIZE = r"(?P<size>[\d.]+) (?P<unit>MB|GB)"
EARLIER = rf"garbage of earlier cells: \u2212{SIZE}"
DROPPED = rf"\w+ was dropped, its {SIZE} are not yet free: %gpulog free"
HELD = rf"\w+ was dropped, its {SIZE} are still held by .*"


def run_checked(shell, il, sources, collectable=collectable_bytes):
    """Run cells; check every sentence about garbage, and return how many there were.

    What was freed of earlier cells was garbage before the cell; what is said to wait is freed by a collection.
    Of blocks that are counted, what is called freed was there before and is not now, and what is held lives.
    """
    count = 0
    for source in sources:
        trim()
        before_bytes, counted_before = collectable(), dict(live)
        shell.run_cell(source, store_history=True)
        notes = [note for note in il.record.notes if "garbage" in str(note) or "not yet free" in str(note)]
        if counted_before:
            gone_bytes = sum(size for number, size in counted_before.items() if number not in live)
            said = (str(note).partition(", of which")[0] for note in il.record.notes)
            freed = re.findall(r"\d+(?= MB)", " ".join(one for one in said if one.startswith("freed: ")))
            assert sum(map(int, freed)) * MB <= gone_bytes + ROUNDED_BYTES * len(freed), (
                source,
                il.record.notes,
            )
            assert sum(said_bytes(il.record.notes, HELD)) <= sum(live.values()), (source, il.record.notes)
        earlier, dropped = said_bytes(notes, EARLIER), said_bytes(notes, DROPPED)
        assert len(earlier) + len(dropped) == len(notes), (source, notes)
        assert sum(earlier) <= before_bytes + ROUNDED_BYTES, (source, notes, before_bytes)
        if dropped:
            assert sum(dropped) <= collectable() + ROUNDED_BYTES * len(dropped), (source, notes)
        count += len(notes)
    return count


def check_what_is_said(shell, make_block, examples, collectable=collectable_bytes):
    """Run random programs, and check every sentence about garbage.

    Args:
        shell: IPython's.
        make_block: Returns a block of so many bytes.
        examples: How many programs; ten times as many where `LONG_HUNT` is set.
        collectable: Returns how much a full collection would free.
    """

    def make(size_mb, *, cyclic=True):
        return node_of(counted(make_block(size_mb * MB), size_mb * MB), cyclic=cyclic)

    shell.user_ns.update(Node=Node, churn=churn, failing=failing, gc=gc, make=make)
    hunt = "LONG_HUNT" in os.environ
    said = []

    # The same programs each time, but in a hunt: resident memory is what the machine makes of it.
    @settings(max_examples=examples * (10 if hunt else 1), phases=_PHASES, derandomize=not hunt)
    @given(PROGRAMS)
    def holds(program):
        il = IPyGPULogger(report="none").start()
        shell.run_cell(_BEGIN, store_history=True)
        said.append(run_checked(shell, il, program, collectable))
        il.stop()
        drop_hidden_references(shell)
        shell.run_cell(_BEGIN)
        gc.collect()
        assert not live

    holds()
    return sum(said)
