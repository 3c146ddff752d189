"""`ipygpulogger compare`: what grew, and the exit status."""

import nbformat
import pytest
from command_line import command, made, refused, saved
from memory import MB

from ipygpulogger import History
from ipygpulogger.cli import main


@pytest.mark.parametrize(
    ("before_mb", "after_mb", "words", "status"),
    [
        (100, 100, [], 0),
        (100, 50, [], 0),
        (100, 105, [], 0),
        (100, 106, [], 1),
        (100, 106, ["--tolerance", "10%"], 0),
        (100, 103, ["--tolerance", "0%"], 1),
        (3, 4, [], 0),
        (100, 140, ["--floor", "50MB"], 0),
    ],
)
def test_compare(tmp_path, capsys, before_mb, after_mb, words, status):
    """1 when a peak grew beyond the tolerance and the floor, 0 when it shrank, stayed or grew within them."""
    base = saved(tmp_path / "base.jsonl", made(before_mb))
    new = saved(tmp_path / "new.jsonl", made(after_mb))
    assert main(["compare", str(base), str(new), *words]) == status
    out = capsys.readouterr().out
    assert ("GREW" in out) == bool(status)
    assert f"{before_mb:8}{after_mb:8}" in out


def test_nothing_in_common(tmp_path, capsys):
    """Two runs without a cell in common prove nothing: exit 2."""
    one, two = (saved(tmp_path / f"{word}.jsonl", made(source=word)) for word in ("one", "two"))
    assert refused(["compare", one, two], capsys, "have no cell in common")


def test_two_real_runs(notebook, tmp_path):
    """A notebook whose cell grows by 300 MB: compare finds it one way round, and is content the other way."""
    path = notebook("mb = 1", "len(b'x' * (mb << 20))", "open('done', 'w').close()")
    nb = nbformat.read(path, as_version=4)
    nb.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(nb, path)
    logs = []
    assert command("run", path).returncode == 0  # the first kernel of all compiles what it imports
    for mb in ("100", "400"):
        logs.append(tmp_path / f"{mb}.jsonl")
        assert command("run", path, "-p", "mb", mb, "--log", logs[-1]).returncode == 0
    grew = command("compare", *logs)
    assert grew.returncode == 1, grew.stderr
    (line,) = [line for line in grew.stdout.splitlines() if "GREW" in line]
    small, large = (next(one for one in History.load(log) if "len(" in one.source).gen for log in logs)
    needed = [usage.peaked_bytes / MB for usage in (small, large)]
    assert needed == [pytest.approx(100, abs=4), pytest.approx(400, abs=4)], (small, large)
    # The peaks themselves stand on what each kernel used before the cell, which differs by some MB.
    assert int(line.split()[3]) == pytest.approx((large.peak.lo_bytes - small.peak.lo_bytes) / MB, abs=1)
    assert command("compare", *reversed(logs)).returncode == 0
