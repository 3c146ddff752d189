"""What an engine does for the clients that watch it, without one: each cell measured and published once."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from ipygpulogger.cluster import engine_cells
from ipygpulogger.cluster.arrivals import unpacked

MB = 2**20
TRANSIENT = "block = bytearray(64 << 20); block[::4096] = b'x' * len(block[::4096]); del block"


@pytest.fixture
def engine(shell):
    """The shell as an engine's; `sent` is what was published."""
    sent = []
    publisher = SimpleNamespace(publish_data=sent.append)
    shell.data_pub = publisher
    yield SimpleNamespace(shell=shell, sent=sent, publisher=publisher)
    del shell.data_pub


def run(engine, code):
    """Run a cell; return the records that were published for it."""
    engine.sent.clear()
    engine.shell.run_cell(code, store_history=True)
    return [unpacked(one[engine_cells.KEY]) for one in engine.sent]


@pytest.fixture
def watched(engine):
    """The same, watched."""
    engine_cells.begin()
    yield engine
    engine_cells.end()


def test_how_a_cell_ended(watched, capsys):
    """An error, a syntax error and an interrupt are told; the cell after it is measured as any other."""
    ends = []
    for code in ("1 / 0", "1 +", "raise KeyboardInterrupt", "x = 1\ny = 2"):
        (record,) = run(watched, code)
        assert (record.source, record.rank, record.worker) == (code.splitlines()[0], None, None)
        ends.append((record.status, record.error))
    assert ends == [
        ("error", "ZeroDivisionError"),
        ("error", "SyntaxError"),
        ("interrupted", "KeyboardInterrupt"),
        ("ok", None),
    ]


@pytest.mark.usefixtures("fresh_mark")
def test_a_cell_within_a_cell(watched):
    """`%%capture` makes a nested cell: its memory is that of the cell around it."""
    (record,) = run(watched, f"%%capture out\n{TRANSIENT}")
    assert record.source == "%%capture out"
    assert abs(record.gen.peaked_bytes - 64 * MB) < 2 * MB


def test_what_cannot_be_sent_hurts_no_cell(watched):
    """The cell's own result is what it was."""
    watched.publisher.publish_data = lambda _: 1 / 0
    assert watched.shell.run_cell("6 * 7", store_history=True).result == 42


def test_clients_that_watch(engine):
    """However many, each cell is measured once; after one ended it no callback remains."""
    before = {event: list(found) for event, found in engine.shell.events.callbacks.items()}
    for _ in range(2):
        engine_cells.begin()
    assert len(run(engine, "x = 1")) == 1
    for _ in range(2):  # to end twice is no error
        engine_cells.end()
    assert engine.shell.events.callbacks == before
    del engine.shell.data_pub
    try:
        with pytest.raises(RuntimeError, match="only engines of ipyparallel"):
            engine_cells.begin()
    finally:
        engine.shell.data_pub = engine.publisher


def test_the_files_import_no_engine():
    """Neither side imports ipyparallel: the client's is there already, and the engine's too."""
    program = (
        "import sys, ipygpulogger.cluster.ipyparallel, ipygpulogger.cluster.engine_cells\n"
        "print(sorted({'ipyparallel', 'IPython', 'zmq', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"
