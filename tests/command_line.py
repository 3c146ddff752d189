"""The command line as a user meets it, for the tests: a process of its own, records as a run saves them."""

import json
import subprocess
import sys
from pathlib import Path

import nbformat
from made import plain

import ipygpulogger
from ipygpulogger import History
from ipygpulogger.cli import main
from ipygpulogger.records import Peak, RamUsage

MB = 2**20


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "ipygpulogger", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        **options,
    )


def executed(path):
    """The executed notebook of a run, beside its own."""
    return nbformat.read(path.with_name(f"{path.stem}.executed.ipynb"), as_version=4)


def is_executed(path):
    return path.with_name(f"{path.stem}.executed.ipynb").exists()


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def made(peak_mb=100, source="x = 1", **fields):
    """A record as a run would have made it."""
    size = peak_mb * MB
    begun = {"label": "In [1]", "execution_count": 1, "cell_id": None, "time_s": 1.0}
    gen = RamUsage(0, 0, Peak(size, size, "exact"))
    return plain(**{**begun, "gen": gen, "source": source, **fields})


def saved(path, *cells):
    history = History()
    for cell in cells:
        history.append(cell)
    history.save(path, log_source=True)
    return path


def refused(arguments, capsys, says):
    """Whether the command line refused with one sentence that says this."""
    try:
        status = main([str(word) for word in arguments])
    except SystemExit as stop:  # argparse's own
        status = stop.code
    out, err = capsys.readouterr()
    assert (status, out) == (2, ""), err
    assert len(err.splitlines()) == 1
    assert says in err
    assert "Errno" not in err
    return err.startswith("ipygpulogger")


def tracebacks_of_ours(stderr):
    """Those through the package: ipykernel may print one of its own while it shuts down."""
    return [told for told in stderr.split("Traceback")[1:] if str(Path(ipygpulogger.__file__).parent) in told]
